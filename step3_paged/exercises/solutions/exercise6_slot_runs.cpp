// A solution of exercise 6.
#include <algorithm>

#include "step3_paged/exercises/exercise6_slot_runs.h"

namespace kvcache {

std::vector<SlotRun> slot_runs(std::span<const std::int32_t> blocks, std::int64_t block_size,
                               std::int64_t context) {
  std::vector<SlotRun> runs;
  for (std::int64_t position = 0; position < context; position += block_size) {
    const std::int64_t slot = blocks[static_cast<std::size_t>(position / block_size)] * block_size;
    const std::int64_t tokens = std::min(block_size, context - position);
    if (!runs.empty() && runs.back().first_slot + runs.back().tokens == slot) {
      runs.back().tokens += tokens;
    } else {
      runs.push_back({slot, tokens});
    }
  }
  return runs;
}

}  // namespace kvcache
