/// @file
/// A pinned prefix: a sequence that stays, and whose blocks later sequences share. Chapter:
/// step4_prefix_cache/README.md, "More places for a prefix".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "step4_prefix_cache/prefix_finder.h"
#include "step4_prefix_cache/prefix_index.h"

namespace kvcache {

/// The pinned sequence when it was pinned: a copy, since another thread may call `capacity_for`.
struct PinnedPrefix {
  std::int32_t sequence = 0;            ///< its id
  std::vector<std::int32_t> token_ids;  ///< of all its tokens
  std::string salt;                     ///< only sequences of this salt share its blocks
};

/// What a pinned sequence stores now.
struct PinnedBlocks {
  std::span<const std::int32_t> blocks;     ///< its table
  std::span<const std::int32_t> token_ids;  ///< [tokens stored]
};

/// Adds the pinned blocks to what a new sequence of `token_ids` finds by its hashes. If the sequence begins
/// with all pinned tokens, it also shares the partly filled last block, which has no hash.
/// @param hits   names, of blocks that hold the same, the pinned one afterwards: `capacity_for` counts on it
/// @param index  of the pool
void share_pinned(PrefixHits& hits, const PinnedBlocks& pinned, std::span<const std::int32_t> token_ids,
                  const PrefixIndex& index);

/// Full blocks that a sequence of `token_ids` shares for certain with a pinned prefix of the ids `prefix`.
/// @param prefix_cache  on: blocks are found by their hashes; off: the prefix is found as a whole or not
[[nodiscard]] std::int64_t shared_with_prefix(std::span<const std::int32_t> token_ids,
                                              std::span<const std::int32_t> prefix, std::int64_t block_size,
                                              bool prefix_cache);

}  // namespace kvcache
