/// @file
/// Requests that wait at the server: the bodies that are still to be read, in order of arrival, and how long
/// a client that finds the line full should stay away. Nothing here is locked; it belongs to the server's
/// thread.
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
  std::string body;                                            ///< taken from the exchange
  std::function<AskedGeneration(std::string_view body)> read;  ///< throws RequestError
  Engine::Clock::time_point arrived;                           ///< since when it waits
};

/// Bodies that wait for a reader. There are two: one takes the body that came first, whatever its length; the
/// other takes the short body that came first, so that a short body waits for no long one.
class UnreadRequests {
 public:
  /// Which body a reader takes next.
  enum class Reader : std::uint8_t { of_all, of_short };
  static constexpr std::size_t kShortBody = 16 << 10;  ///< bytes
  static constexpr std::size_t kMostBytes = 64 << 20;  ///< of all bodies that wait

  /// @return false if the bodies that wait would then have more than kMostBytes: it is not taken
  bool add(UnreadRequest request);
  /// Forgets the request of a client that has left, with its body. Harmless for one that is not there.
  void drop(const HttpExchange& exchange);
  /// The next request for a reader; none if there is none for it.
  std::optional<UnreadRequest> take(Reader reader);
  /// Forgets and returns all.
  std::deque<UnreadRequest> take_all();
  /// Requests that wait.
  std::int64_t size() const { return std::ssize(requests_); }

 private:
  UnreadRequest take_at(std::deque<UnreadRequest>::iterator place);

  std::deque<UnreadRequest> requests_;  // the first to come first
  std::size_t bytes_ = 0;               // of their bodies
};

/// How fast requests end, and so how long a line of them takes. Clients that were told to come again count as
/// if they waited: they would otherwise all come back at once.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;            ///< of the ends
  static constexpr std::chrono::seconds kLately{30};  ///< ends before that tell nothing of now
  static constexpr std::int64_t kLongestWait = 60;    ///< seconds; clients do not wait longer than a minute
  static constexpr std::int64_t kFirstGuess = 8;      ///< requests a second, while too few have ended
  static constexpr std::int64_t kFewestEnds = 8;      ///< of which a pace is taken

  /// A request has ended.
  void note_end(Clock::time_point now);
  /// A request was taken.
  /// @param line  requests that were there before it
  void note_taken(std::int64_t line);
  /// For a client that is told to come again: whole seconds, 1 to kLongestWait, until `line` requests and
  /// those of clients that were told so before have ended, if requests go on ending as they did lately.
  std::int64_t retry_after(std::int64_t line, Clock::time_point now);

 private:
  static constexpr std::size_t kMostEnds = 256;
  std::deque<Clock::time_point> ends_;  // the last of them, oldest first
  std::int64_t turned_away_ = 0;        // clients that were told to come again and have not
};

}  // namespace kvcache
