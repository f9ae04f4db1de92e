// A solution of exercise 3.
#include <algorithm>

#include "step2_flat_cache/exercises/exercise3_sliding_window.h"

namespace kvcache {

std::vector<std::int64_t> window_slots(std::int64_t first, std::int64_t rows, std::int64_t window) {
  std::vector<std::int64_t> slots;
  const std::int64_t end = first + rows;
  for (std::int64_t position = first; position < end; ++position) {
    slots.push_back(position < end - window ? -1 : position % window);
  }
  return slots;
}

std::vector<std::int64_t> window_in_order(std::int64_t length, std::int64_t window) {
  std::vector<std::int64_t> slots;
  for (std::int64_t position = std::max<std::int64_t>(length - window, 0); position < length; ++position) {
    slots.push_back(position % window);
  }
  return slots;
}

}  // namespace kvcache
