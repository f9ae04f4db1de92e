/// @file
/// See prefix_finder.h.
#include "step4_prefix_cache/prefix_finder.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "step4_prefix_cache/block_hash.h"

namespace kvcache {

PrefixHits PrefixFinder::find(std::span<const std::int32_t> token_ids, const BlockParent& root) const {
  const PrefixIndex& index = pool_.index();
  const std::int64_t length = std::ssize(token_ids);
  const std::int64_t blocks = (length - 1) / index.block_size();  // the last token is always computed
  HashChain hashes(index, token_ids, blocks, root, hash_bits_);
  PrefixHits hits;
  std::uint64_t parent_identity = root.identity;
  for (std::int64_t n = 0; n < hashes.size(); ++n) {
    const std::uint64_t hash = hashes[n];
    const std::span<const std::int32_t> tokens = hashes.token_ids(n);
    // The host tier (skip it on a first reading): behind a host block no block of the pool is shared, since a
    // table begins with blocks of the pool and `bring_back` appends to it.
    const bool still_in_pool = hits.host_blocks.empty();
    if (const auto block = still_in_pool ? index.find(hash, parent_identity, tokens) : std::nullopt) {
      hits.blocks.push_back(twin_to_share(*block));
      parent_identity = index.content(*block).identity;  // twins have one identity
    } else if (const auto host_block = host_.find(hash, parent_identity, tokens)) {
      hits.host_blocks.push_back(*host_block);
      parent_identity = host_.content(*host_block).identity;
    } else {
      break;
    }
    hits.tokens += index.block_size();
  }
  return hits;
}

/// Several blocks may hold the same as `found`. A block in use is the best: the others remain free for other
/// sequences.
std::int32_t PrefixFinder::twin_to_share(std::int32_t found) const {
  for (std::optional<std::int32_t> twin = found; twin; twin = pool_.index().next_twin(*twin)) {
    if (pool_.reference_count(*twin) > 0) return *twin;
  }
  return found;
}

BlockContent PrefixFinder::content_of(const BlockParent& parent,
                                      std::span<const std::int32_t> token_ids) const {
  BlockContent content{.hash = block_hash(parent.hash, token_ids, hash_bits_),
                       .identity = 0,
                       .parent_identity = parent.identity};
  if (const auto twin = pool_.index().find(content.hash, content.parent_identity, token_ids)) {
    content.identity = pool_.index().content(*twin).identity;
  } else if (const auto host_block = host_.find(content.hash, content.parent_identity, token_ids)) {
    content.identity = host_.content(*host_block).identity;
  }
  return content;
}

/// Hashes are made three blocks ahead, for speed alone. A look-up in a large pool waits for memory; meanwhile
/// the index fetches the entries of the next hashes, which do not depend on what it finds. Three ahead halve
/// the time of a long prompt's look-up; more gain nothing.
std::uint64_t HashChain::operator[](std::int64_t n) {
  constexpr std::int64_t kAhead = 3;
  if (n < 0 || n >= blocks_) {
    throw std::logic_error("block " + std::to_string(n) + " of a sequence was looked for, and it has " +
                           std::to_string(blocks_));
  }
  while (std::ssize(hashes_) < std::min(n + 1 + kAhead, blocks_)) {
    const std::optional<std::uint64_t> parent = hashes_.empty() ? root_ : hashes_.back();
    hashes_.push_back(block_hash(parent, token_ids(std::ssize(hashes_)), hash_bits_));
    index_.prefetch(hashes_.back());
  }
  return hashes_[static_cast<std::size_t>(n)];
}

std::span<const std::int32_t> HashChain::token_ids(std::int64_t n) const {
  return tokens_of_block(token_ids_, n, index_.block_size());
}

}  // namespace kvcache
