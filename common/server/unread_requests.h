/// @file
/// Requests whose bodies are still to be read: which body is read next. Nothing here is locked: only the
/// server's thread uses it.
#pragma once

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
  UnreadRequest take_at(const std::deque<UnreadRequest>::iterator& place);

  std::deque<UnreadRequest> requests_;  // in order of arrival
  std::size_t bytes_ = 0;               // of all their bodies
};

}  // namespace kvcache
