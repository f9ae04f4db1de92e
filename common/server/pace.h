/// @file
/// The seconds of Retry-After: when a client that was refused should come again. The answer 429 itself is
/// sent by `refuse_one_too_many` in generation_server.cpp. Only the server's thread uses it, without a lock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <vector>

namespace kvcache {

/// How fast requests end, and so how long a line of requests takes. A client that was refused counts as if it
/// waited in the line, until the time that it was told; otherwise all such clients would come back at once.
/// Nobody knows whether a client comes twice or two clients come. So at most as many refused clients count as
/// there are requests in the line, and one that asks again and again at most doubles the wait of the others.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;  ///< of when requests ended
  /// Of more than kFewestEnds ends, older ones do not count.
  static constexpr std::chrono::seconds kLately{30};
  static constexpr std::int64_t kLongestWait = 60;  ///< seconds
  static constexpr std::int64_t kFirstGuess = 8;    ///< requests a second, until kFewestEnds have ended
  static constexpr std::int64_t kFewestEnds = 8;    ///< so many ends make a pace

  /// Notes that a request has ended.
  void note_end(Clock::time_point now);
  /// Notes that a request was taken. If none was there before it, the time since the last end was idle and
  /// does not count, and the clients that were refused do not count any more.
  /// @param line  requests that were there before it
  void note_taken(std::int64_t line, Clock::time_point now);
  /// The seconds after which a refused client should come again, 1 to kLongestWait: the time in which `line`
  /// requests, and those of clients that were refused before and count, will end at the pace of the last
  /// ends.
  std::int64_t retry_after(std::int64_t line, Clock::time_point now);

 private:
  static constexpr std::size_t kMostEnds = 256;
  std::deque<Clock::time_point> ends_;  // when the last requests ended, oldest first
  // When the refused clients that count will come again, the earliest first.
  std::priority_queue<Clock::time_point, std::vector<Clock::time_point>, std::greater<>> will_come_;
};

}  // namespace kvcache
