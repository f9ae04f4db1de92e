/// @file
/// The blocks that nobody refers to, in the order in which they will be given to someone else.
/// Chapter: step4_prefix_cache/README.md.
#pragma once

#include <cstdint>
#include <vector>

namespace kvcache {

/// A queue of block ids, each at most once. Policy: blocks leave at the front. A block whose content may be
/// wanted again enters at the back, so the least recently used leaves first; of one sequence the tail enters
/// before the head, since a prefix is useful without its continuation and not the other way round. A block
/// without reusable content enters at the front and leaves before all others.
///
/// An intrusive doubly-linked list over [0, total): every operation is O(1), removal from the middle too (a
/// prefix hit takes its blocks from wherever they are).
class FreeBlockQueue {
 public:
  /// All of [0, total), in order.
  explicit FreeBlockQueue(std::int64_t total);

  /// Blocks in the queue.
  std::int64_t size() const { return size_; }
  /// Whether `block` is in the queue.
  bool contains(std::int32_t block) const { return links_[index(block)].queued; }
  /// The block that leaves next; the queue must not be empty.
  std::int32_t front() const { return links_[end()].next; }

  /// `block`, which must not be in the queue, leaves after all others.
  void push_back(std::int32_t block) { insert(block, links_[end()].previous); }
  /// `block`, which must not be in the queue, leaves next.
  void push_front(std::int32_t block) { insert(block, static_cast<std::int32_t>(end())); }
  /// The block must be in the queue.
  void remove(std::int32_t block);
  /// Puts a removed block back where it was. Removals must be undone in reverse order, with nothing else done
  /// since: a removed block still remembers its neighbours (Knuth's "dancing links").
  void undo_remove(std::int32_t block);

  /// [size] from front to back.
  std::vector<std::int32_t> in_order() const;

 private:
  struct Links {
    std::int32_t previous = -1, next = -1;
    bool queued = false;
  };
  static std::size_t index(std::int32_t block) { return static_cast<std::size_t>(block); }
  /// The list is a ring, closed by one entry that is no block.
  std::size_t end() const { return links_.size() - 1; }
  void insert(std::int32_t block, std::int32_t after);

  std::vector<Links> links_;  // [total + 1]
  std::int64_t size_ = 0;
};

}  // namespace kvcache
