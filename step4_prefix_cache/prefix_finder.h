/// @file
/// How much of a new sequence is cached: the walk along its blocks, from the first block to the first one
/// that is nowhere. Chapter: step4_prefix_cache/README.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "step4_prefix_cache/host_tier.h"
#include "step4_prefix_cache/prefix_index.h"
#include "step4_prefix_cache/shared_block_pool.h"

namespace kvcache {

/// What a new sequence finds: first blocks of the pool, then blocks of the host tier.
struct PrefixHits {
  std::vector<std::int32_t> blocks;       ///< block ids, to share
  std::vector<std::int32_t> host_blocks;  ///< places in the host tier, to bring back; no block ids
  std::int64_t tokens = 0;                ///< that need not be computed
};

/// Looks for blocks in the pool and in the host tier behind it, and changes neither.
class PrefixFinder {
 public:
  /// @param hash_bits  low bits of a hash that are kept, as in block_hash.h
  PrefixFinder(const SharedBlockPool& pool, const HostTier& host, int hash_bits)
      : pool_(pool), host_(host), hash_bits_(hash_bits) {}

  /// What a new sequence of `token_ids` need not compute.
  /// @param root  what its first block follows
  [[nodiscard]] PrefixHits find(std::span<const std::int32_t> token_ids, const BlockParent& root) const;
  /// The content of a block with these ids, [block_size], after `parent`. It has the identity of a block that
  /// holds the same; 0: no block does.
  [[nodiscard]] BlockContent content_of(const BlockParent& parent,
                                        std::span<const std::int32_t> token_ids) const;

 private:
  std::int32_t twin_to_share(std::int32_t found) const;

  const SharedBlockPool& pool_;
  const HostTier& host_;
  int hash_bits_;
};

/// The hashes of a sequence's first blocks, made when they are asked for.
class HashChain {
 public:
  /// @param index   is told which hashes will be looked for, and knows the block size
  /// @param blocks  how many full blocks of `token_ids` the chain has
  /// @param root    what the first block follows
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

}  // namespace kvcache
