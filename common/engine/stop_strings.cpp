/// @file
/// See stop_strings.h.
#include "common/engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace kvcache {

std::string StopStrings::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  // The match that ends first; of equal ends, the one that begins first.
  std::size_t begin = std::string::npos, end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos || std::pair(at + stop.size(), at) >= std::pair(end, begin)) continue;
    begin = at;
    end = at + stop.size();
  }
  stopped_ = begin != std::string::npos;
  if (stopped_) return std::exchange(held_, {}).substr(0, begin);

  std::size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > longest; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) longest = length;
    }
  }
  std::string certain = held_.substr(0, held_.size() - longest);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopStrings::finish() {
  return std::exchange(held_, {});
}

}  // namespace kvcache
