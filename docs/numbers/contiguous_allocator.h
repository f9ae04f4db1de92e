/// @file
/// What paging replaces: memory given out in contiguous pieces of exactly the size asked for. Nothing is
/// wasted inside a piece; what goes wrong is between them. Chapter: step3_paged/README.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace kvcache {

/// Which of the holes that are large enough is taken (Knuth, "The art of computer programming", vol. 1, 2.5).
/// Of several that are equally good, the lowest.
enum class Fit : std::uint8_t {
  first,  ///< the lowest
  best,   ///< the smallest
  worst   ///< the largest
};

/// Slots 0 to total - 1 for the K and V of one token each.
class ContiguousAllocator {
 public:
  /// All slots are free: one hole.
  explicit ContiguousAllocator(std::int64_t total, Fit fit = Fit::first);

  /// The first of `size` >= 1 neighbouring slots; nothing if no hole is that large.
  std::optional<std::int64_t> allocate(std::int64_t size);
  /// Gives back `size` slots from `first` on, as allocated; holes that touch become one.
  /// @throws std::logic_error if any of them is free already or does not exist.
  void free(std::int64_t first, std::int64_t size);

  /// Slots, free or not.
  std::int64_t total() const { return total_; }
  /// Slots of all holes together.
  std::int64_t free_slots() const;
  /// Slots of the largest hole: what can be allocated in one piece.
  std::int64_t largest_hole() const;
  /// Free pieces, none of which touch.
  std::int64_t holes() const { return static_cast<std::int64_t>(holes_.size()); }

 private:
  using Holes = std::map<std::int64_t, std::int64_t>;
  Holes::iterator hole_for(std::int64_t size);

  std::int64_t total_;
  Fit fit_;
  Holes holes_;  // first slot -> size; no two touch
};

}  // namespace kvcache
