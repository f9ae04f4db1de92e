/// @file
/// A second, larger and slower home for blocks: which host block holds what, and which blocks a plan moves
/// there and back. The bytes move in tiered_kv_store.h. Chapter: step4_prefix_cache/README.md.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "common/kv/pass_plan.h"
#include "step4_prefix_cache/free_block_queue.h"
#include "step4_prefix_cache/prefix_index.h"
#include "step4_prefix_cache/shared_block_pool.h"

namespace kvcache {

/// Host blocks, with ids of their own from 0 on, for what leaves the pool. Empty ones are filled first, then
/// the least recently stored one is given up. Within a plan host blocks are only set aside; `settle` makes
/// the plan's moves final, `put_back` undoes them.
class HostTier {
 public:
  /// `total` empty host blocks of `block_size` tokens.
  HostTier(std::int64_t total, std::int64_t block_size)
      : total_(total), queue_(total), index_(total, block_size) {}

  /// A host block with this content, as PrefixIndex::find.
  [[nodiscard]] std::optional<std::int32_t> find(std::uint64_t hash, std::uint64_t parent,
                                                 std::span<const std::int32_t> token_ids) const {
    return index_.find(hash, parent, token_ids);
  }
  /// What `host_block` holds; identity 0: nothing.
  const BlockContent& content(std::int32_t host_block) const { return index_.content(host_block); }
  /// The tokens of `host_block`, [block_size].
  std::span<const std::int32_t> token_ids(std::int32_t host_block) const {
    return index_.token_ids(host_block);
  }
  /// Host blocks, empty or not.
  std::int64_t total() const { return total_; }
  /// Host blocks that hold something.
  std::int64_t stored() const { return index_.size(); }

  // Within a plan

  /// Sets `host_block` aside, to be read from or stored to: nothing else of the plan will be stored in it.
  /// False if it is already: two sequences of a plan may bring back the same one.
  bool set_aside(std::int32_t host_block);
  /// Sets aside the host block that a new content should go to; nothing when all are.
  [[nodiscard]] std::optional<std::int32_t> set_aside_oldest();
  /// What `pool` has evicted for the open plan moves here as long as there is room, the most recently used
  /// first.
  /// @return the moves, in the order in which they are to be stored
  [[nodiscard]] std::vector<BlockCopy> swap_out(const SharedBlockPool& pool);
  /// Undoes everything that was set aside since the plan began.
  void put_back();

  /// The plan with these moves is final, here and in `pool`: what moved is found where it is now.
  void settle(std::span<const BlockCopy> swaps_out, std::span<const BlockCopy> swaps_in,
              SharedBlockPool& pool);

  // Parts of `settle`

  /// `host_block` holds this now; what it held before is forgotten.
  /// @throws std::logic_error unless it is set aside.
  void store(std::int32_t host_block, const BlockContent& content, std::span<const std::int32_t> token_ids);
  /// `host_block` is empty now. Harmless if it is already. @throws std::logic_error unless it is set aside.
  void remove(std::int32_t host_block);
  /// The plan is over.
  void settle() { aside_.clear(); }

  /// Between plans: what `host_block` holds is not found any more.
  void forget(std::int32_t host_block);

  /// @throws std::logic_error if a host block is lost. Not while any are set aside.
  void check_invariants() const;

 private:
  std::int64_t total_;
  FreeBlockQueue queue_;             // host blocks that may be overwritten, the next one first
  PrefixIndex index_;                // what they hold
  std::vector<std::int32_t> aside_;  // in the order in which they left the queue
};

}  // namespace kvcache
