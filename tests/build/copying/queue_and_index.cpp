// Finds a block by what it holds and evicts the one used longest ago. docs/copying.md builds it from copied
// files.
#include <array>
#include <cstdio>

#include "step4_prefix_cache/block_hash.h"
#include "step4_prefix_cache/free_block_queue.h"
#include "step4_prefix_cache/prefix_index.h"

int main() {
  kvcache::FreeBlockQueue queue(/*total=*/4);
  kvcache::PrefixIndex index(/*total=*/4, /*block_size=*/2);
  const std::array<std::int32_t, 2> ids{11, 12};

  const std::int32_t block = queue.front();  // a block for two tokens
  queue.remove(block);
  const std::uint64_t hash = kvcache::block_hash({}, ids);  // {}: no block before it
  index.insert(block, {.hash = hash, .identity = 1, .parent_identity = 0}, ids);
  queue.push_back(block);  // nobody needs it now; it leaves after the three others

  const std::optional<std::int32_t> found = index.find(hash, /*parent_identity=*/0, ids);
  if (!found) return 1;
  std::printf("block %d holds these tokens; block %d is evicted next\n", *found, queue.front());
}
