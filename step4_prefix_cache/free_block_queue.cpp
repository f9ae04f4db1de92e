/// @file
/// See free_block_queue.h.
#include "step4_prefix_cache/free_block_queue.h"

#include <stdexcept>
#include <string>

namespace kvcache {
namespace {

[[noreturn]] void refuse(std::int32_t block, const char* why) {
  throw std::logic_error("block " + std::to_string(block) + " " + why);
}

}  // namespace

FreeBlockQueue::FreeBlockQueue(std::int64_t total)
    : end_(static_cast<std::int32_t>(total)), links_(index(end_) + 1) {
  links_[index(end_)] = {end_, end_, true};
  for (std::int32_t block = 0; block < end_; ++block) push_back(block);
}

std::int32_t FreeBlockQueue::front() const {
  if (size_ == 0) throw std::logic_error("the queue of free blocks is empty and has no front");
  return links_[index(end_)].next;
}

void FreeBlockQueue::push_back(std::int32_t block) {
  insert(block, links_[index(end_)].previous);
}

void FreeBlockQueue::push_front(std::int32_t block) {
  insert(block, end_);
}

void FreeBlockQueue::insert(std::int32_t block, std::int32_t after) {
  if (!is_block(block) || contains(block))
    refuse(block, "cannot be queued: it is so already, or is no block");
  const std::int32_t before = links_[index(after)].next;
  links_[index(block)] = {after, before, true};
  links_[index(after)].next = block;
  links_[index(before)].previous = block;
  ++size_;
}

void FreeBlockQueue::remove(std::int32_t block) {
  if (!contains(block)) refuse(block, "is not in the queue of free blocks");
  Links& links = links_[index(block)];
  links_[index(links.previous)].next = links.next;
  links_[index(links.next)].previous = links.previous;
  links.queued = false;
  --size_;
}

void FreeBlockQueue::undo_remove(std::int32_t block) {
  if (!is_block(block)) refuse(block, "was not removed from the queue of free blocks");
  Links& links = links_[index(block)];
  Links& before = links_[index(links.previous)];
  Links& after = links_[index(links.next)];
  // `remove` linked the two neighbours to each other. Only if they still are is the block's place free.
  // The neighbours of a queued block are linked to the block.
  if (before.next != links.next || after.previous != links.previous)
    refuse(block, "cannot go back to its place in the queue: another one stands there");
  before.next = after.previous = block;
  links.queued = true;
  ++size_;
}

std::vector<std::int32_t> FreeBlockQueue::in_order() const {
  std::vector<std::int32_t> blocks;
  blocks.reserve(static_cast<std::size_t>(size_));
  for (std::int32_t block = links_[index(end_)].next; block != end_; block = links_[index(block)].next)
    blocks.push_back(block);
  return blocks;
}

}  // namespace kvcache
