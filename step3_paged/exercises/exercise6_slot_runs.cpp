// Exercise 6: Gather with as few copies as can be
//
// Gathering copies the rows of a sequence, position by position, into one contiguous buffer. Rows of one
// block are neighbours in the pool. If a block table has 5 and then 6, the rows of these two blocks are
// neighbours too, and a single copy moves them all.
//
// Write slot_runs(blocks, block_size, context). `blocks` is a sequence's block table: at least
// ceil(context / block_size) ids, no two alike, none negative. Position p is in slot
// blocks[p / block_size] * block_size + p % block_size. The result lists the slots of the positions
// 0 to context - 1 as runs, in order of position: {first_slot, tokens} stands for the slots first_slot,
// first_slot + 1, ..., as many as `tokens`. There must be as few runs as possible: no run begins where the
// one before ends. For context 0 there are none. No input is an error.
//
// Example: block_size 4, blocks 5 3 4, context 10. Positions 0 to 3 are in slots 20 to 23, positions 4 to
// 7 in 12 to 15, positions 8 and 9 in 16 and 17. The last six are neighbours, so there are two runs: {20,
// 4} and {12, 6}.
//
// The test compares with the slot of each position, with contexts that fill the last block and others that do
// not. One block id is so large that its slots do not fit into 32 bits.
#include "step3_paged/exercises/exercise6_slot_runs.h"

namespace kvcache {

std::vector<SlotRun> slot_runs(std::span<const std::int32_t> blocks, std::int64_t block_size,
                               std::int64_t context) {
  // A run for every position, as if no two were neighbours: write this.
  std::vector<SlotRun> runs;
  for (std::int64_t position = 0; position < context; ++position) {
    const std::int64_t block = blocks[static_cast<std::size_t>(position / block_size)];
    runs.push_back({block * block_size + position % block_size, 1});
  }
  return runs;
}

}  // namespace kvcache
