/// @file
/// See prefix_finder.h.
#include "step4_prefix_cache/prefix_finder.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/kv/pass_plan.h"
#include "step4_prefix_cache/block_hash.h"

namespace kvcache {
namespace {

/// A look-up in a large pool waits for memory. The hashes of the next blocks do not depend on what it finds,
/// so the index hears of them meanwhile and fetches their entries. Four blocks ahead halve the time of a long
/// prompt's look-up; more gain nothing.
constexpr std::int64_t kHashesAhead = 4;

}  // namespace

std::uint64_t HashChain::operator[](std::int64_t n) {
  if (n < 0 || n >= blocks_) {
    throw std::logic_error("block " + std::to_string(n) + " of a sequence was looked for, and it has " +
                           std::to_string(blocks_));
  }
  while (std::ssize(hashes_) < std::min(n + kHashesAhead, blocks_)) {
    const std::optional<std::uint64_t> parent = hashes_.empty() ? root_ : hashes_.back();
    hashes_.push_back(block_hash(parent, token_ids(std::ssize(hashes_)), hash_bits_));
    index_.prefetch(hashes_.back());
  }
  return hashes_[static_cast<std::size_t>(n)];
}

std::span<const std::int32_t> HashChain::token_ids(std::int64_t n) const {
  return tokens_of_block(token_ids_, n, index_.block_size());
}

PrefixHits PrefixFinder::find(std::span<const std::int32_t> token_ids,
                              const std::optional<BlockParent>& root) const {
  PrefixHits hits = root ? walk(token_ids, *root) : PrefixHits{};
  // The pinned prefix is found by comparing all its tokens: its tail is not full and has no hash.
  const std::size_t length = pinned_.token_ids.size();
  // Shared are the tokens before the first position that is computed.
  const std::int64_t shared = first_computed_position(std::ssize(pinned_.token_ids), std::ssize(token_ids));
  if (shared > hits.tokens && token_ids.size() >= length &&
      std::ranges::equal(token_ids.first(length), pinned_.token_ids)) {
    const std::int64_t blocks = (shared + pool_.index().block_size() - 1) / pool_.index().block_size();
    hits = {{pinned_.blocks.begin(), pinned_.blocks.begin() + blocks}, {}, shared};
  }
  return hits;
}

/// Block by block to the first that is nowhere: the pool first, then the host tier.
PrefixHits PrefixFinder::walk(std::span<const std::int32_t> token_ids, const BlockParent& root) const {
  const PrefixIndex& index = pool_.index();
  const std::int64_t length = std::ssize(token_ids);
  // (length - 1) / block_size full blocks: the last token is always computed.
  const std::int64_t blocks = first_computed_position(length, length) / index.block_size();
  HashChain hashes(index, token_ids, blocks, root, hash_bits_);
  PrefixHits hits;
  std::uint64_t parent = root.identity;
  for (std::int64_t n = 0; n < hashes.size(); ++n) {
    const std::uint64_t hash = hashes[n];
    const std::span<const std::int32_t> tokens = hashes.token_ids(n);
    // A table begins with blocks of the pool, and `bring_back` appends those of the host tier. So after a
    // host block only host blocks count; a block of the pool behind one is rare, and is not shared.
    if (const auto block = index.find(hash, parent, tokens); block && hits.host_blocks.empty()) {
      hits.blocks.push_back(twin_to_share(*block, n));
      parent = index.content(*block).identity;
    } else if (const auto host_block = host_.find(hash, parent, tokens)) {
      hits.host_blocks.push_back(*host_block);
      parent = host_.content(*host_block).identity;
    } else {
      break;
    }
    hits.tokens += index.block_size();
  }
  return hits;
}

/// Several blocks may hold the same as `found`, block `n` of a sequence. The best is the pinned prefix's own:
/// it stays. The next best is a block in use: the others remain free for other sequences.
std::int32_t PrefixFinder::twin_to_share(std::int32_t found, std::int64_t n) const {
  const PrefixIndex& index = pool_.index();
  if (n < std::ssize(pinned_.blocks)) {
    const std::int32_t own = pinned_.blocks[static_cast<std::size_t>(n)];
    if (index.content(own).identity == index.content(found).identity) return own;
  }
  for (std::optional<std::int32_t> twin = found; twin; twin = index.next_twin(*twin)) {
    if (pool_.reference_count(*twin) > 0) return *twin;
  }
  return found;
}

std::vector<PrefixPlaces> PrefixFinder::find_all(std::span<const std::int32_t> token_ids,
                                                 const BlockParent& root) const {
  const PrefixIndex& index = pool_.index();
  HashChain hashes(index, token_ids, std::ssize(token_ids) / index.block_size(), root, hash_bits_);
  std::vector<PrefixPlaces> places;
  std::uint64_t parent = root.identity;
  for (std::int64_t n = 0; n < hashes.size(); ++n) {
    const std::uint64_t hash = hashes[n];
    PrefixPlaces here{{}, host_.find(hash, parent, hashes.token_ids(n))};
    for (auto twin = index.find(hash, parent, hashes.token_ids(n)); twin; twin = index.next_twin(*twin))
      here.blocks.push_back(*twin);
    if (here.blocks.empty() && !here.host_block) break;  // no later block can be found
    std::ranges::sort(here.blocks);
    // All places of one content have one identity: any of them gives the parent.
    parent = here.host_block ? host_.content(*here.host_block).identity
                             : index.content(here.blocks.front()).identity;
    places.push_back(std::move(here));
  }
  return places;
}

BlockContent PrefixFinder::content_of(const BlockParent& parent,
                                      std::span<const std::int32_t> token_ids) const {
  BlockContent content{block_hash(parent.hash, token_ids, hash_bits_), 0, parent.identity};
  if (const auto twin = pool_.index().find(content.hash, content.parent, token_ids)) {
    content.identity = pool_.index().content(*twin).identity;
  } else if (const auto host_block = host_.find(content.hash, content.parent, token_ids)) {
    content.identity = host_.content(*host_block).identity;
  }
  return content;
}

std::int64_t shared_with_prefix(std::span<const std::int32_t> token_ids, std::span<const std::int32_t> prefix,
                                std::int64_t block_size, bool prefix_cache) {
  const auto common = std::ranges::mismatch(token_ids, prefix).in1 - token_ids.begin();
  if (token_ids.empty() || (!prefix_cache && common < std::ssize(prefix))) return 0;
  return first_computed_position(common, std::ssize(token_ids)) / block_size;
}

}  // namespace kvcache
