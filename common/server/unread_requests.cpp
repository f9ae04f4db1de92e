/// @file
/// See unread_requests.h.
#include "common/server/unread_requests.h"

#include <algorithm>
#include <utility>

namespace kvcache {

bool UnreadRequests::add(UnreadRequest request) {
  const std::size_t bytes = request.body.size();
  if (bytes_ + bytes > kMostBytes) return false;
  requests_.push_back(std::move(request));
  bytes_ += bytes;
  return true;
}

void UnreadRequests::drop(const HttpExchange& exchange) {
  const auto place = std::ranges::find_if(
      requests_, [&](const UnreadRequest& request) { return request.exchange.get() == &exchange; });
  if (place != requests_.end()) take_at(place);
}

std::optional<UnreadRequest> UnreadRequests::take(Reader reader) {
  const auto place = std::ranges::find_if(requests_, [reader](const UnreadRequest& request) {
    return reader == Reader::of_all || request.body.size() <= kShortBody;
  });
  return place == requests_.end() ? std::nullopt : std::optional(take_at(place));
}

std::deque<UnreadRequest> UnreadRequests::take_all() {
  bytes_ = 0;
  return std::exchange(requests_, {});
}

UnreadRequest UnreadRequests::take_at(const std::deque<UnreadRequest>::iterator& place) {
  UnreadRequest request = std::move(*place);
  requests_.erase(place);
  bytes_ -= request.body.size();
  return request;
}

}  // namespace kvcache
