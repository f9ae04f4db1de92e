// A solution of exercise 8.
#include <optional>
#include <unordered_map>
#include <vector>

#include "step4_prefix_cache/exercises/exercise8_eviction.h"
#include "step4_prefix_cache/free_block_queue.h"

namespace kvcache {

std::int64_t misses(Eviction eviction, std::span<const std::int32_t> contents, std::int64_t blocks) {
  FreeBlockQueue queue(blocks);
  std::unordered_map<std::int32_t, std::int32_t> block_of;
  std::vector<std::optional<std::int32_t>> held(static_cast<std::size_t>(blocks));
  std::int64_t count = 0;
  for (const std::int32_t content : contents) {
    const auto found = block_of.find(content);
    const bool hit = found != block_of.end();
    if (hit && eviction == Eviction::first_in_first_out) continue;
    const std::int32_t block = hit ? found->second : queue.front();
    queue.remove(block);
    queue.push_back(block);
    if (hit) continue;
    std::optional<std::int32_t>& old = held[static_cast<std::size_t>(block)];
    if (old) block_of.erase(*old);
    old = content;
    block_of[content] = block;
    ++count;
  }
  return count;
}

}  // namespace kvcache
