/// @file
/// See pace.h.
#include "common/server/pace.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace kvcache {

void Pace::note_end(Clock::time_point now) {
  ends_.push_back(now);
  if (ends_.size() > kMostEnds) ends_.pop_front();
}

void Pace::note_taken(std::int64_t line, Clock::time_point now) {
  if (line > 0) return;
  will_come_ = {};  // refused clients that have not come again may never come
  if (ends_.empty()) return;
  const Clock::duration idle = now - ends_.back();
  for (Clock::time_point& end : ends_) end += idle;
}

std::int64_t Pace::retry_after(std::int64_t line, Clock::time_point now) {
  while (!will_come_.empty() && will_come_.top() <= now) will_come_.pop();
  const std::int64_t refused = std::min(std::ssize(will_come_), line), requests = line + refused;
  while (std::ssize(ends_) > kFewestEnds && now - ends_.front() > kLately) ends_.pop_front();
  const auto count = static_cast<double>(ends_.size());
  const double lately = ends_.empty() ? 0 : std::chrono::duration<double>(now - ends_.front()).count();
  const double seconds = std::ssize(ends_) < kFewestEnds ? static_cast<double>(requests) / kFirstGuess
                                                         : static_cast<double>(requests) * lately / count;
  const std::int64_t told =
      std::clamp(static_cast<std::int64_t>(std::ceil(seconds)), std::int64_t{1}, kLongestWait);
  if (refused < line) will_come_.push(now + std::chrono::seconds(told));
  return told;
}

}  // namespace kvcache
