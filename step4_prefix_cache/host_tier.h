/// @file
/// A second, larger and slower home for blocks: which of its slots hold what. The bytes move in
/// tiered_kv_store.h. Chapter: step4_prefix_cache/README.md.
#pragma once

#include <optional>
#include <vector>

#include "step4_prefix_cache/free_block_queue.h"
#include "step4_prefix_cache/prefix_index.h"

namespace kvcache {

/// Slots for blocks that left the pool. Empty slots are filled first, then the least recently stored one is
/// given up. Within a plan slots are only set aside; `store` and `remove` make it final, `put_back` undoes
/// it.
class HostTier {
 public:
  /// `total` empty slots, each for a block of `block_size` tokens.
  HostTier(std::int64_t total, std::int64_t block_size) : queue_(total), index_(total, block_size) {}

  /// A slot with this content, as PrefixIndex::find.
  std::optional<std::int32_t> find(std::uint64_t hash, std::uint64_t parent,
                                   std::span<const std::int32_t> token_ids) const {
    return index_.find(hash, parent, token_ids);
  }
  /// What `slot` holds; identity 0: nothing.
  const BlockContent& content(std::int32_t slot) const { return index_.content(slot); }
  /// The tokens of `slot`, [block_size].
  std::span<const std::int32_t> token_ids(std::int32_t slot) const { return index_.token_ids(slot); }
  /// Slots that hold something.
  std::int64_t stored() const { return index_.size(); }

  /// Sets a slot aside, to be read from or stored to: it will not be handed out by `set_aside_oldest`. False
  /// if it is already.
  bool set_aside(std::int32_t slot);
  /// Sets aside the slot that a new block should go to; nothing when all are.
  std::optional<std::int32_t> set_aside_oldest();
  /// Undoes everything that was set aside since the last `settle`.
  void put_back();

  /// A slot that was set aside now holds this; what it held before is forgotten.
  void store(std::int32_t slot, const BlockContent& content, std::span<const std::int32_t> token_ids);
  /// A slot that was set aside is empty now. Harmless if it is already.
  void remove(std::int32_t slot);
  /// The plan is over.
  void settle() { aside_.clear(); }

  /// @throws std::logic_error if a slot is lost. Not while slots are set aside.
  void check_invariants() const;

 private:
  FreeBlockQueue queue_;             // slots that may be overwritten, the next one first
  PrefixIndex index_;                // what they hold
  std::vector<std::int32_t> aside_;  // in the order in which they left the queue
};

}  // namespace kvcache
