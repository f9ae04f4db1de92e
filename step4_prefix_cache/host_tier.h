/// @file
/// The host tier: a second, larger and slower home for the contents of evicted blocks. `swap_out` decides
/// what moves there. The floats move in tiered_kv_store.h. Chapter: step4_prefix_cache/README.md.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "common/kv/pass_plan.h"
#include "step4_prefix_cache/free_block_queue.h"
#include "step4_prefix_cache/prefix_index.h"
#include "step4_prefix_cache/shared_block_pool.h"

namespace kvcache {

/// Which host block holds what. Host blocks are places with numbers of their own, from 0 on: host block 2 and
/// block 2 of the pool have nothing to do with each other. Empty host blocks are filled first, then the least
/// recently stored content is given up.
///
/// A sequence that ends moves nothing: its full blocks stay in the pool, cached. A block moves when a plan
/// evicts it, and comes back when a later sequence finds it here.
///
/// A plan sets aside the host blocks that it will read from or store to, and changes nothing else. `store`
/// and `settle` make the plan final; `put_back` takes it back.
class HostTier {
 public:
  /// `total` empty host blocks of `block_size` tokens.
  HostTier(std::int64_t total, std::int64_t block_size)
      : total_(total), queue_(total), index_(total, block_size) {}

  /// A host block with this content, as PrefixIndex::find.
  [[nodiscard]] std::optional<std::int32_t> find(std::uint64_t hash, std::uint64_t parent_identity,
                                                 std::span<const std::int32_t> token_ids) const {
    return index_.find(hash, parent_identity, token_ids);
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

  /// Sets `host_block` aside: the plan will store no evicted block in it.
  /// @return false if it was set aside before: two sequences of a plan may bring back the same host block
  bool set_aside(std::int32_t host_block);
  /// Sets aside the host block that is the next to be overwritten; nothing when all are set aside.
  [[nodiscard]] std::optional<std::int32_t> set_aside_oldest();
  /// Decides which of the blocks that the open plan has evicted from `pool` move here, and to which host
  /// block. All of them move if there is room, one of those that hold the same. Otherwise the least recently
  /// used are lost.
  /// @return the moves, in the order in which they are to be stored
  [[nodiscard]] std::vector<BlockCopy> swap_out(const SharedBlockPool& pool);
  /// The plan is final: each move's host block holds what `pool_index` says of the move's block. Its old
  /// content is forgotten.
  /// @throws std::logic_error unless all these host blocks are set aside.
  void store(std::span<const BlockCopy> swaps_out, const PrefixIndex& pool_index);
  /// Ends the plan: the host blocks that these moves read are empty now.
  /// @throws std::logic_error unless all these host blocks are set aside.
  void settle(std::span<const BlockCopy> swaps_in);
  /// Takes the plan back: no host block is set aside any more, and their order is what it was.
  void put_back();

  // Between plans

  /// Empties `host_block`: its content is not found any more.
  void forget(std::int32_t host_block);

  /// @throws std::logic_error if a host block is lost. Not while any are set aside.
  void check_invariants() const;

 private:
  void empty(std::int32_t host_block);

  std::int64_t total_;
  FreeBlockQueue queue_;             // host blocks that may be overwritten, the next one first
  PrefixIndex index_;                // what they hold
  std::vector<std::int32_t> aside_;  // in the order in which they left the queue
};

}  // namespace kvcache
