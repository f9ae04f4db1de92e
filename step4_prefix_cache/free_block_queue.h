/// @file
/// The blocks without references, in the order in which the pool will take them. Chapter:
/// step4_prefix_cache/README.md.
#pragma once

#include <cstdint>
#include <vector>

namespace kvcache {

/// A queue of block ids, each at most once. Blocks leave at the front. SharedBlockPool::release decides at
/// which end a block enters.
///
/// A doubly-linked list over [0, total): every operation is O(1). A prefix hit removes its blocks from the
/// middle. A broken precondition throws std::logic_error, which names the block if there is one, and changes
/// nothing.
class FreeBlockQueue {
 public:
  /// All of [0, total), in order.
  explicit FreeBlockQueue(std::int64_t total);

  /// Blocks in the queue.
  std::int64_t size() const { return size_; }
  /// Whether `block` is in the queue; false for what is no block.
  bool contains(std::int32_t block) const { return is_block(block) && links_[index(block)].queued; }
  /// The block that leaves next. @throws std::logic_error if the queue is empty.
  [[nodiscard]] std::int32_t front() const;

  /// `block` leaves after all others. @throws std::logic_error if it is queued already, or is no block.
  void push_back(std::int32_t block);
  /// `block` leaves next. @throws std::logic_error if it is queued already, or is no block.
  void push_front(std::int32_t block);
  /// Takes `block` out, wherever it is. @throws std::logic_error if it is not queued, or is no block.
  void remove(std::int32_t block);
  /// Puts a removed block back between its two neighbours, which it still remembers (Knuth's "dancing
  /// links"). Removals have to be undone in reverse, with no other change since.
  /// @throws std::logic_error if `block` is queued, is no block, or its neighbours are not side by side now.
  void undo_remove(std::int32_t block);

  /// [size] from front to back.
  std::vector<std::int32_t> in_order() const;
  /// For speed: `block` will enter or leave soon, so the processor fetches its links.
  void prefetch(std::int32_t block) const {
    if (is_block(block)) __builtin_prefetch(&links_[index(block)], 1);
  }

 private:
  struct Links {
    std::int32_t previous = -1, next = -1;
    bool queued = false;
  };
  static std::size_t index(std::int32_t block) { return static_cast<std::size_t>(block); }
  bool is_block(std::int32_t block) const { return block >= 0 && block < end_; }
  void insert(std::int32_t block, std::int32_t after);

  std::int32_t end_;          // total, which is no block
  std::vector<Links> links_;  // [total + 1], a ring: links_[end_].next is the front, .previous the back
  std::int64_t size_ = 0;
};

}  // namespace kvcache
