// A solution of exercise 7.
#include <optional>
#include <unordered_set>

#include "step4_prefix_cache/block_hash.h"
#include "step4_prefix_cache/exercises/exercise7_prefix_hits.h"

namespace kvcache {

std::vector<std::int64_t> cached_tokens_of(std::span<const std::vector<std::int32_t>> prompts,
                                           std::int64_t block_size) {
  std::unordered_set<std::uint64_t> known;
  std::vector<std::int64_t> cached;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    const auto length = static_cast<std::int64_t>(prompt.size());
    std::int64_t hits = 0;
    std::optional<std::uint64_t> parent;
    for (std::int64_t block = 0; block < length / block_size; ++block) {
      const auto first = static_cast<std::size_t>(block * block_size);
      parent = block_hash(parent, std::span(prompt).subspan(first, static_cast<std::size_t>(block_size)));
      const bool was_known = !known.insert(*parent).second;
      // No known block stands behind an unknown one: a block's hash covers all blocks before it.
      if (was_known && block < (length - 1) / block_size) ++hits;
    }
    cached.push_back(hits * block_size);
  }
  return cached;
}

}  // namespace kvcache
