/// @file
/// See pinned_prefix.h.
#include "step4_prefix_cache/pinned_prefix.h"

#include <algorithm>
#include <iterator>

#include "common/kv/pass_plan.h"

namespace kvcache {

void share_pinned(PrefixHits& hits, const PinnedBlocks& pinned, std::span<const std::int32_t> token_ids,
                  const PrefixIndex& index) {
  for (std::size_t n = 0; n < std::min(hits.blocks.size(), pinned.blocks.size()); ++n) {
    if (index.content(hits.blocks[n]).identity == index.content(pinned.blocks[n]).identity)
      hits.blocks[n] = pinned.blocks[n];
  }
  const std::size_t length = pinned.token_ids.size();
  // Shared are the tokens before the first position that is computed.
  const std::int64_t shared = first_computed_position(std::ssize(pinned.token_ids), std::ssize(token_ids));
  if (shared > hits.tokens && token_ids.size() >= length &&
      std::ranges::equal(token_ids.first(length), pinned.token_ids)) {
    const std::int64_t blocks = (shared + index.block_size() - 1) / index.block_size();
    hits = {{pinned.blocks.begin(), pinned.blocks.begin() + blocks}, {}, shared};
  }
}

std::int64_t shared_with_prefix(std::span<const std::int32_t> token_ids, std::span<const std::int32_t> prefix,
                                std::int64_t block_size, bool prefix_cache) {
  const auto common = std::ranges::mismatch(token_ids, prefix).in1 - token_ids.begin();
  if (token_ids.empty() || (!prefix_cache && common < std::ssize(prefix))) return 0;
  return first_computed_position(common, std::ssize(token_ids)) / block_size;
}

}  // namespace kvcache
