/// @file
/// The blocks of a pool that sequences share, as numbers: which are free, how many sequences use each, and
/// what can be found in each. Compare step3_paged/block_pool.h, where a block has one owner. Chapter:
/// step4_prefix_cache/README.md.
///
///                  allocate                release, if findable
///      +------+ -------------> +--------+ ------------------------> +--------+
///      |      |                |        |                           |        |
///      | free |                | in use |                           | cached |
///      |      |  release, if   |        |  acquire (a hit), or      |        |
///      |      |  not findable  |        |  allocate (an eviction)   |        |
///      +------+ <------------- +--------+ <------------------------ +--------+
///         ^                                                              |
///         |                           forget                             |
///         +--------------------------------------------------------------+
///
///   free     no references, and nothing can be found in it
///   in use   one or more sequences refer to it; `publish` makes it findable once it is full
///   cached   no references, but its content can still be found
///
/// The arrow `release` is the release of the last reference.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "step4_prefix_cache/free_block_queue.h"
#include "step4_prefix_cache/prefix_index.h"

namespace kvcache {

/// A fixed number of blocks with ids 0 to total - 1, each with a reference count.
///
/// A plan takes blocks with `acquire`, `allocate` and `unshare`, and ends with `settle` or `undo`. All other
/// changes are made while no plan is open. A broken precondition throws std::logic_error that names the
/// block; what each call checks stands beside it.
class SharedBlockPool {
 public:
  /// All blocks are free.
  SharedBlockPool(std::int64_t total, std::int64_t block_size);

  // Within a plan

  /// Takes the block at the front of the queue: it has one reference now.
  /// @throws std::logic_error if the queue is empty: a plan counts before it takes.
  [[nodiscard]] std::int32_t allocate();
  /// A hit: one reference more to each of `blocks`. Cached ones leave the queue, so no later allocation can
  /// evict them.
  /// @throws std::logic_error if a block is free: nothing can be found in it.
  void acquire(std::span<const std::int32_t> blocks);
  /// Copy-on-write: moves one reference from `block` to a new one.
  /// @return the new block
  /// @throws std::logic_error unless `block` has other references.
  [[nodiscard]] std::int32_t unshare(std::int32_t block);
  /// For the host tier (skip it on a first reading): cached blocks that the open plan has allocated, the
  /// least recently used first. Until `settle` the index has their old content, which HostTier::swap_out may
  /// move to the host tier.
  const std::vector<std::int32_t>& evicted() const { return evicted_; }
  /// The plan is final: the old content of evicted blocks is not found any more.
  void settle();
  /// Takes back all steps of the plan, down to the order of the queue.
  void undo();

  // Between plans

  /// A fork: one reference more to each of `blocks`; no plan undoes it.
  /// @throws std::logic_error if one is not in use.
  void share(std::span<const std::int32_t> blocks);
  /// A sequence ends: one reference less to each block of its table, from the tail on. A block without
  /// references enters the queue, at the front if it is free, at the back if it is cached: this is the order
  /// of eviction.
  /// @throws std::logic_error if one is not in use.
  void release(std::span<const std::int32_t> blocks);
  /// Makes a full block findable. Its pass is queued, so a later plan may read its K and V.
  /// @param content    from PrefixFinder::content_of; identity 0: the pool gives a new one
  /// @param token_ids  [block_size]
  /// @throws std::logic_error if `block` is not in use, or findable already.
  void publish(std::int32_t block, BlockContent content, std::span<const std::int32_t> token_ids);
  /// Makes a findable block unfindable: now, or, if it is in use, when its last reference goes.
  /// @throws std::logic_error if it is not findable.
  void forget(std::int32_t block);
  /// A number for a new content or a new salt: never given out before, and not 0.
  [[nodiscard]] std::uint64_t new_identity() { return ++identities_; }

  /// Blocks that `allocate` can still give: the free and the cached.
  std::int64_t free_count() const { return queue_.size(); }
  /// How many refer to `block`.
  std::int32_t reference_count(std::int32_t block) const { return references_[at(block)]; }
  /// Whether `block` is a block of this pool and has references.
  bool in_use(std::int32_t block) const {
    return at(block) < references_.size() && references_[at(block)] > 0;  // a negative id is a large index
  }
  /// What can be found, and in which blocks.
  const PrefixIndex& index() const { return index_; }

  // For reports

  /// Blocks, whatever their state.
  std::int64_t total() const { return static_cast<std::int64_t>(references_.size()); }
  /// Blocks with references.
  std::int64_t in_use_count() const { return total() - free_count(); }
  /// Cached blocks. Takes time in proportion to `free_count`.
  std::int64_t cached_count() const;
  /// Free and cached blocks, [free_count], the next to be taken first.
  std::vector<std::int32_t> free_in_order() const { return queue_.in_order(); }
  /// How many refer to each block, [total].
  const std::vector<std::int32_t>& references() const { return references_; }
  /// @throws std::logic_error saying which block is in two states or in none. Not while a plan is open.
  void check_invariants() const;

 private:
  /// One step of the open plan, as `undo` needs it.
  struct Step {
    std::int32_t block;
    enum : std::uint8_t { left_queue, gained_reference, lost_reference } what;
  };
  static std::size_t at(std::int32_t block) { return static_cast<std::size_t>(block); }
  void take_from_queue(std::int32_t block);
  void release(std::int32_t block);
  void prefetch(std::int32_t block) const;  // what its release will read
  void check_no_plan(std::int32_t block) const;

  std::vector<std::int32_t> references_;        // [total]
  FreeBlockQueue queue_;                        // blocks without references, in the order of eviction
  PrefixIndex index_;                           // findable blocks
  std::unordered_set<std::int32_t> condemned_;  // findable blocks in use that were forgotten
  std::uint64_t identities_ = 0;                // given out so far
  std::vector<Step> steps_;                     // of the open plan, in order
  std::vector<std::int32_t> evicted_;           // by the open plan
};

}  // namespace kvcache
