/// @file
/// How much of a new sequence is there already: the walk along its blocks, from the first to the first that
/// is nowhere. Chapter: step4_prefix_cache/README.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "step4_prefix_cache/host_tier.h"
#include "step4_prefix_cache/prefix_index.h"
#include "step4_prefix_cache/shared_block_pool.h"

namespace kvcache {

/// What a new sequence finds: first some blocks of the pool, then some of the host tier.
struct PrefixHits {
  std::vector<std::int32_t> blocks;       ///< to share
  std::vector<std::int32_t> host_blocks;  ///< to bring back
  std::int64_t tokens = 0;                ///< that need not be computed
};

/// All places of one content.
struct PrefixPlaces {
  std::vector<std::int32_t> blocks;        ///< of the pool, in order of id
  std::optional<std::int32_t> host_block;  ///< never more than one
};

/// A sequence that stays, as a prefix for others; empty: none does.
struct PinnedPrefix {
  std::span<const std::int32_t> blocks;     ///< its table
  std::span<const std::int32_t> token_ids;  ///< [tokens stored]
};

/// Full blocks of a pinned prefix of these ids that a sequence of `token_ids` shares for certain.
/// @param prefix_cache  blocks are found by their hashes; else a prefix is found as a whole or not at all
[[nodiscard]] std::int64_t shared_with_prefix(std::span<const std::int32_t> token_ids,
                                              std::span<const std::int32_t> prefix, std::int64_t block_size,
                                              bool prefix_cache);

/// The hashes of a sequence's first blocks, each made when it is asked for. They are made a few blocks ahead
/// of that, see prefix_finder.cpp.
class HashChain {
 public:
  /// @param index   where the hashes will be looked for
  /// @param blocks  of `token_ids`, all of them full
  /// @param root    what the first one follows
  HashChain(const PrefixIndex& index, std::span<const std::int32_t> token_ids, std::int64_t blocks,
            const BlockParent& root, int hash_bits)
      : index_(index), token_ids_(token_ids), blocks_(blocks), root_(root.hash), hash_bits_(hash_bits) {}

  /// Blocks.
  std::int64_t size() const { return blocks_; }
  /// The hash of block `n`. @throws std::logic_error if there is no such block.
  std::uint64_t operator[](std::int64_t n);
  /// The ids of block `n`, [block_size].
  std::span<const std::int32_t> token_ids(std::int64_t n) const;

 private:
  const PrefixIndex& index_;
  std::span<const std::int32_t> token_ids_;
  std::int64_t blocks_;
  std::optional<std::uint64_t> root_;
  int hash_bits_;
  std::vector<std::uint64_t> hashes_;  // made so far
};

/// Looks in a pool and the host tier behind it, and changes neither.
class PrefixFinder {
 public:
  /// @param pinned  found by comparison, for sequences of its salt alone
  PrefixFinder(const SharedBlockPool& pool, const HostTier& host, const PinnedPrefix& pinned, int hash_bits)
      : pool_(pool), host_(host), pinned_(pinned), hash_bits_(hash_bits) {}

  /// What a sequence of `token_ids` need not compute.
  /// @param root  what its first block follows; nothing: no block can be found, only the pinned prefix
  [[nodiscard]] PrefixHits find(std::span<const std::int32_t> token_ids,
                                const std::optional<BlockParent>& root) const;
  /// Where the full blocks of `token_ids` are, up to the first that is nowhere.
  [[nodiscard]] std::vector<PrefixPlaces> find_all(std::span<const std::int32_t> token_ids,
                                                   const BlockParent& root) const;
  /// By what a block with these ids, [block_size], is found after `parent`. Its identity is that of the
  /// blocks that hold the same, so that a block cached after one of them is found after each; 0: there is
  /// none yet.
  [[nodiscard]] BlockContent content_of(const BlockParent& parent,
                                        std::span<const std::int32_t> token_ids) const;

 private:
  PrefixHits walk(std::span<const std::int32_t> token_ids, const BlockParent& root) const;
  std::int32_t twin_to_share(std::int32_t found, std::int64_t n) const;

  const SharedBlockPool& pool_;
  const HostTier& host_;
  PinnedPrefix pinned_;
  int hash_bits_;
};

}  // namespace kvcache
