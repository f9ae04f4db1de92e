/// @file
/// Requests that wait at the server: the bodies that are still to be read, in order of arrival, and the
/// seconds after which a refused client should come again. The answer 429 itself is sent by
/// `refuse_one_too_many` in generation_server.cpp. Nothing here is locked: only the server's thread uses it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/server/generate_request.h"
#include "common/server/http_server.h"

namespace kvcache {

/// A request whose body is still to be read.
struct UnreadRequest {
  std::shared_ptr<HttpExchange> exchange;                      ///< with its client
  std::string body;                                            ///< of the request
  std::function<AskedGeneration(std::string_view body)> read;  ///< parses the body; throws RequestError
  Engine::Clock::time_point arrived;                           ///< since when it waits
};

/// Bodies that wait for a reader. There are two readers: one takes the body that came first, whatever its
/// length; the other takes the short body that came first, so a short body waits for no long one.
class UnreadRequests {
 public:
  /// Which body a reader takes next.
  enum class Reader : std::uint8_t { of_all, of_short };
  static constexpr std::size_t kShortBody = 16 << 10;  ///< bytes
  static constexpr std::size_t kMostBytes = 64 << 20;  ///< of all bodies that wait

  /// Takes a request, unless all waiting bodies would then have more than kMostBytes.
  /// @return whether it was taken
  bool add(UnreadRequest request);
  /// Forgets the request of a client that has left, with its body. An unknown exchange changes nothing.
  void drop(const HttpExchange& exchange);
  /// The next request for `reader`; no value if no body waits for it.
  std::optional<UnreadRequest> take(Reader reader);
  /// Forgets and returns all requests.
  std::deque<UnreadRequest> take_all();
  /// Requests that wait.
  std::int64_t size() const { return std::ssize(requests_); }

 private:
  UnreadRequest take_at(std::deque<UnreadRequest>::iterator place);

  std::deque<UnreadRequest> requests_;  // in order of arrival
  std::size_t bytes_ = 0;               // of all their bodies
};

/// How fast requests end, and so how long a line of requests takes. Clients that were refused count as if
/// they waited in the line; otherwise all of them would come back at once.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;            ///< of when requests ended
  static constexpr std::chrono::seconds kLately{30};  ///< older ends do not count
  static constexpr std::int64_t kLongestWait = 60;    ///< seconds
  static constexpr std::int64_t kFirstGuess = 8;      ///< requests a second, until kFewestEnds have ended
  static constexpr std::int64_t kFewestEnds = 8;      ///< so many ends make a pace

  /// Notes that a request has ended.
  void note_end(Clock::time_point now);
  /// Notes that a request was taken.
  /// @param line  requests that were there before it
  void note_taken(std::int64_t line);
  /// The seconds after which a refused client should come again, 1 to kLongestWait: the time in which `line`
  /// requests, and those of clients that were refused before, will end at the pace of the last kLately.
  std::int64_t retry_after(std::int64_t line, Clock::time_point now);

 private:
  static constexpr std::size_t kMostEnds = 256;
  std::deque<Clock::time_point> ends_;  // when the last requests ended, oldest first
  std::int64_t turned_away_ = 0;        // refused clients that have not come again
};

}  // namespace kvcache
