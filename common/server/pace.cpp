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
  if (line > 0) {
    turned_away_ = std::max<std::int64_t>(0, turned_away_ - 1);
    return;
  }
  turned_away_ = 0;  // refused clients that have not come again may never come
  if (ends_.empty()) return;
  const Clock::duration idle = now - ends_.back();
  for (Clock::time_point& end : ends_) end += idle;
}

std::int64_t Pace::retry_after(std::int64_t line, Clock::time_point now) {
  const std::int64_t requests = line + turned_away_++;
  while (std::ssize(ends_) > kFewestEnds && now - ends_.front() > kLately) ends_.pop_front();
  const auto count = static_cast<double>(ends_.size());
  const double lately = ends_.empty() ? 0 : std::chrono::duration<double>(now - ends_.front()).count();
  const double seconds = std::ssize(ends_) < kFewestEnds ? static_cast<double>(requests) / kFirstGuess
                                                         : static_cast<double>(requests) * lately / count;
  return std::clamp(static_cast<std::int64_t>(std::ceil(seconds)), std::int64_t{1}, kLongestWait);
}

}  // namespace kvcache
