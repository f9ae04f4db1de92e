/// @file
/// Exercise 6, stated in exercise6_slot_runs.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcache {

/// Neighbouring slots that hold neighbouring positions: one copy moves them all.
struct SlotRun {
  std::int64_t first_slot = 0;  ///< of the first position
  std::int64_t tokens = 0;      ///< slots in a row
  /// Equal in both.
  bool operator==(const SlotRun&) const = default;
};

/// The slots of the positions 0 to context - 1 in order of position, in as few runs as possible.
/// @param blocks  a sequence's block table, [at least ceil(context / block_size)]
std::vector<SlotRun> slot_runs(std::span<const std::int32_t> blocks, std::int64_t block_size,
                               std::int64_t context);

}  // namespace kvcache
