/// @file
/// The blocks that can be found, each by its content. Chapter: step4_prefix_cache/README.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvcache {

/// What a full block holds. Blocks with equal parents and equal tokens hold the same K and V, and have one
/// identity. Two contents may have one hash, but never one identity.
struct BlockContent {
  std::uint64_t hash = 0;             ///< block_hash.h: where to look
  std::uint64_t identity = 0;         ///< of this content; 0: no content
  std::uint64_t parent_identity = 0;  ///< of the block before it, or of the salt; 0: `kNoSalt`
};

/// What a block follows, the block before it or the sequence's salt: the two numbers that go into the block's
/// own content.
struct BlockParent {
  std::optional<std::uint64_t> hash;  ///< goes into the block's own hash
  std::uint64_t identity = 0;         ///< becomes the block's `parent_identity`
};

/// What a first block follows in a sequence without a salt: nothing goes into its hash.
inline constexpr BlockParent kNoSalt{};

/// The findable blocks of one pool. Several blocks may hold the same; each has its own entry.
///
/// A hash table that never grows: a bucket names its first block, and each block names the next one of its
/// bucket. So a look-up reads a bucket and a block, in a pool of a million blocks too.
class PrefixIndex {
 public:
  /// Nothing is findable. Takes all the memory it will ever need.
  PrefixIndex(std::int64_t total, std::int64_t block_size);

  /// Makes `block` findable.
  /// @param token_ids  [block_size]
  /// @throws std::logic_error if it is findable already, or is no block; nothing has changed then.
  void insert(std::int32_t block, const BlockContent& content, std::span<const std::int32_t> token_ids);
  /// Removes exactly this block's entry; others of the same hash stay.
  /// @throws std::logic_error if `block` is not findable; nothing has changed then.
  void erase(std::int32_t block);

  /// Whether `block` is findable.
  bool contains(std::int32_t block) const { return content(block).identity != 0; }
  /// What `block` holds; identity 0: it is not findable.
  const BlockContent& content(std::int32_t block) const {
    return entries_[static_cast<std::size_t>(block)].content;
  }
  /// `block` as the parent of the block behind it.
  BlockParent as_parent(std::int32_t block) const { return {content(block).hash, content(block).identity}; }
  /// The ids of a findable block, [block_size].
  std::span<const std::int32_t> token_ids(std::int32_t block) const;

  /// A block with this parent and these tokens, [block_size]. The hash only says where to look: parent and
  /// tokens are compared.
  [[nodiscard]] std::optional<std::int32_t> find(std::uint64_t hash, std::uint64_t parent_identity,
                                                 std::span<const std::int32_t> token_ids) const;
  /// The next block that holds the same as `block`, until there is none; `find` gives the first.
  [[nodiscard]] std::optional<std::int32_t> next_twin(std::int32_t block) const;

  /// Findable blocks.
  std::int64_t size() const { return size_; }
  /// Tokens of a block.
  std::int64_t block_size() const { return block_size_; }

  // For the speed of large pools: the processor fetches what a later call will read

  /// `find` will look for `hash`.
  void prefetch(std::uint64_t hash) const;
  /// `content` of `block` will be asked for.
  void prefetch_entry(std::int32_t block) const {
    if (is_block(block)) __builtin_prefetch(&entries_[static_cast<std::size_t>(block)]);
  }

 private:
  static constexpr std::int32_t kNone = -1;
  struct Entry {
    BlockContent content;       // identity 0: not findable
    std::int32_t next = kNone;  // another findable block of the same bucket
  };
  bool is_block(std::int32_t block) const {
    return block >= 0 && static_cast<std::size_t>(block) < entries_.size();
  }
  std::size_t bucket(std::uint64_t hash) const { return hash & (first_.size() - 1); }

  std::int64_t block_size_;
  std::vector<std::int32_t> first_;  // [buckets], a power of two, at least 2 * total: most blocks are alone
  std::vector<Entry> entries_;       // [total]
  std::vector<std::int32_t> token_ids_;  // [total, block_size]
  std::int64_t size_ = 0;
};

}  // namespace kvcache
