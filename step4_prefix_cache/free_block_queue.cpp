/// @file
/// See free_block_queue.h.
#include "step4_prefix_cache/free_block_queue.h"

namespace kvcache {

FreeBlockQueue::FreeBlockQueue(std::int64_t total) : links_(static_cast<std::size_t>(total) + 1) {
  const auto ring_end = static_cast<std::int32_t>(total);
  links_[end()] = {ring_end, ring_end, true};
  for (std::int32_t block = 0; block < ring_end; ++block) push_back(block);
}

void FreeBlockQueue::insert(std::int32_t block, std::int32_t after) {
  const std::int32_t before = links_[index(after)].next;
  links_[index(block)] = {after, before, true};
  links_[index(after)].next = block;
  links_[index(before)].previous = block;
  ++size_;
}

void FreeBlockQueue::remove(std::int32_t block) {
  Links& links = links_[index(block)];
  links_[index(links.previous)].next = links.next;
  links_[index(links.next)].previous = links.previous;
  links.queued = false;
  --size_;
}

void FreeBlockQueue::undo_remove(std::int32_t block) {
  Links& links = links_[index(block)];
  links_[index(links.previous)].next = block;
  links_[index(links.next)].previous = block;
  links.queued = true;
  ++size_;
}

std::vector<std::int32_t> FreeBlockQueue::in_order() const {
  std::vector<std::int32_t> blocks;
  for (std::int32_t block = front(); index(block) != end(); block = links_[index(block)].next)
    blocks.push_back(block);
  return blocks;
}

}  // namespace kvcache
