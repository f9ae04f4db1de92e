/// @file
/// Which blocks of a paged KV cache are free, and which one is given out next. Integers only: K and V are in
/// paged_kv_store.h. Chapter: step3_paged/README.md.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace kvcache {

/// A fixed number of blocks with ids 0 to total - 1; each is room for the K and V of block_size tokens over
/// all layers. The block freed last is allocated first, since a processor's cache may still hold it. Blocks
/// that were never used follow in order of id. Freeing blocks in the reverse order of their allocation
/// restores the pool exactly.
class BlockPool {
 public:
  /// All blocks are free.
  /// @throws std::logic_error for a total that is negative or beyond the ids of 32 bits.
  explicit BlockPool(std::int64_t total);

  /// A free block's id, now in use; nothing when all are in use.
  [[nodiscard]] std::optional<std::int32_t> allocate();
  /// Gives a block back.
  /// @throws std::logic_error that names `id`, if that block is not in use; nothing has changed then.
  void free(std::int32_t id);

  /// Blocks, free or not.
  std::int64_t total() const { return static_cast<std::int64_t>(in_use_.size()); }
  /// Blocks that `allocate` can still give.
  std::int64_t free_count() const { return static_cast<std::int64_t>(free_ids_.size()); }
  /// Blocks that were allocated and not freed.
  std::int64_t in_use_count() const { return total() - free_count(); }
  /// Whether `id` is allocated.
  /// @throws std::logic_error that names `id`, for one that is no block of this pool.
  bool in_use(std::int32_t id) const;
  /// [free_count] the next to be taken first.
  std::vector<std::int32_t> free_in_order() const { return {free_ids_.rbegin(), free_ids_.rend()}; }

  /// @throws std::logic_error if a block is free twice, free and in use, or neither.
  void check_invariants() const;

 private:
  std::vector<bool> in_use_;            // [total] allocated and not freed since
  std::vector<std::int32_t> free_ids_;  // a stack: the next to be taken is at the back
};

}  // namespace kvcache
