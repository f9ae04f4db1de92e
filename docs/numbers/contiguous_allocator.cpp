/// @file
/// See contiguous_allocator.h.
#include "docs/numbers/contiguous_allocator.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace kvcache {

ContiguousAllocator::ContiguousAllocator(std::int64_t total, Fit fit) : total_(total), fit_(fit) {
  if (total > 0) holes_.emplace(0, total);
}

ContiguousAllocator::Holes::iterator ContiguousAllocator::hole_for(std::int64_t size) {
  auto chosen = holes_.end();
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    if (hole->second < size) continue;
    const bool better = chosen == holes_.end() || (fit_ == Fit::best && hole->second < chosen->second) ||
                        (fit_ == Fit::worst && hole->second > chosen->second);
    if (better) chosen = hole;
  }
  return chosen;
}

std::optional<std::int64_t> ContiguousAllocator::allocate(std::int64_t size) {
  const auto hole = hole_for(size);
  if (hole == holes_.end()) return std::nullopt;
  const auto [first, hole_size] = *hole;
  holes_.erase(hole);
  if (hole_size > size) holes_.emplace(first + size, hole_size - size);
  return first;
}

void ContiguousAllocator::free(std::int64_t first, std::int64_t size) {
  const auto after = holes_.lower_bound(first);
  const auto before = after == holes_.begin() ? holes_.end() : std::prev(after);
  const std::int64_t end = first + size;
  if (first < 0 || size < 1 || end > total_ || (after != holes_.end() && after->first < end) ||
      (before != holes_.end() && before->first + before->second > first)) {
    throw std::logic_error("a piece is freed that is not allocated");
  }
  std::int64_t hole_first = first, hole_size = size;
  if (before != holes_.end() && before->first + before->second == first) {
    hole_first = before->first;
    hole_size += before->second;
    holes_.erase(before);
  }
  if (after != holes_.end() && after->first == end) {
    hole_size += after->second;
    holes_.erase(after);
  }
  holes_.emplace(hole_first, hole_size);
}

std::int64_t ContiguousAllocator::free_slots() const {
  std::int64_t sum = 0;
  for (const auto& [first, size] : holes_) sum += size;
  return sum;
}

std::int64_t ContiguousAllocator::largest_hole() const {
  std::int64_t largest = 0;
  for (const auto& [first, size] : holes_) largest = std::max(largest, size);
  return largest;
}

}  // namespace kvcache
