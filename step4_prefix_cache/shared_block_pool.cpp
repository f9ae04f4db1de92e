/// @file
/// See shared_block_pool.h.
#include "step4_prefix_cache/shared_block_pool.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace kvcache {
namespace {

[[noreturn]] void refuse(std::int32_t block, const char* why) {
  throw std::logic_error("block " + std::to_string(block) + " " + why);
}

}  // namespace

SharedBlockPool::SharedBlockPool(std::int64_t total, std::int64_t block_size)
    : references_(static_cast<std::size_t>(total), 0), queue_(total), index_(total, block_size) {}

// Within a plan

std::int32_t SharedBlockPool::allocate() {
  const std::int32_t block = queue_.front();
  take_from_queue(block);
  if (index_.contains(block)) evicted_.push_back(block);
  return block;
}

void SharedBlockPool::acquire(std::span<const std::int32_t> blocks) {
  for (const std::int32_t block : blocks) {
    if (queue_.contains(block) && index_.contains(block)) {
      take_from_queue(block);
      continue;
    }
    if (!in_use(block)) refuse(block, "cannot be acquired: it is free, so nothing is found in it");
    ++references_[at(block)];
    steps_.push_back({block, Step::gained_reference});
  }
}

std::int32_t SharedBlockPool::unshare(std::int32_t block) {
  if (!in_use(block) || references_[at(block)] == 1)
    refuse(block, "is not shared: who uses it alone writes in place");
  const std::int32_t copy = allocate();
  --references_[at(block)];
  steps_.push_back({block, Step::lost_reference});
  return copy;
}

void SharedBlockPool::take_from_queue(std::int32_t block) {
  queue_.remove(block);
  references_[at(block)] = 1;
  steps_.push_back({block, Step::left_queue});
}

void SharedBlockPool::settle() {
  for (const std::int32_t block : evicted_) index_.erase(block);
  evicted_.clear();
  steps_.clear();
}

void SharedBlockPool::undo() {
  // In reverse: the queue can put a block back only when all that left after it are back.
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    references_[at(step->block)] += step->what == Step::lost_reference ? 1 : -1;
    if (step->what == Step::left_queue) queue_.undo_remove(step->block);
  }
  evicted_.clear();
  steps_.clear();
}

// Between plans

void SharedBlockPool::share(std::span<const std::int32_t> blocks) {
  for (const std::int32_t block : blocks) {
    if (!in_use(block)) refuse(block, "cannot be shared: nobody uses it");
    ++references_[at(block)];
  }
}

void SharedBlockPool::release(std::span<const std::int32_t> blocks) {
  if (!blocks.empty()) check_no_plan(blocks.front());
  constexpr std::size_t kAhead = 8;  // by then what a release reads has come from memory
  for (std::size_t n = blocks.size(); n-- > 0;) {
    if (n >= kAhead) prefetch(blocks[n - kAhead]);
    release(blocks[n]);
  }
}

void SharedBlockPool::release(std::int32_t block) {
  if (!in_use(block)) refuse(block, "cannot be released: nobody uses it");
  if (--references_[at(block)] > 0) return;
  if (condemned_.erase(block) > 0) index_.erase(block);
  if (index_.contains(block)) {
    queue_.push_back(block);
  } else {
    queue_.push_front(block);
  }
}

void SharedBlockPool::prefetch(std::int32_t block) const {
  if (at(block) >= references_.size()) return;
  __builtin_prefetch(&references_[at(block)], 1);
  queue_.prefetch(block);
  index_.prefetch_entry(block);
}

void SharedBlockPool::publish(std::int32_t block, BlockContent content,
                              std::span<const std::int32_t> token_ids) {
  check_no_plan(block);
  if (!in_use(block)) refuse(block, "cannot be published: nobody uses it");
  if (content.identity == 0) content.identity = new_identity();
  index_.insert(block, content, token_ids);
}

void SharedBlockPool::forget(std::int32_t block) {
  check_no_plan(block);
  if (in_use(block)) {
    if (!index_.contains(block)) refuse(block, "cannot be forgotten: nothing is found in it");
    condemned_.insert(block);
    return;
  }
  index_.erase(block);
  queue_.remove(block);
  queue_.push_front(block);  // it is free now
}

// What holds

/// Another change now would come between a step of the plan and its undoing.
void SharedBlockPool::check_no_plan(std::int32_t block) const {
  if (!steps_.empty()) refuse(block, "cannot change: the plan before is neither settled nor undone");
}

std::int64_t SharedBlockPool::cached_count() const {
  return std::ranges::count_if(free_in_order(),
                               [this](std::int32_t block) { return index_.contains(block); });
}

void SharedBlockPool::check_invariants() const {
  const auto expect = [](bool holds, std::int32_t block, const char* what) {
    if (!holds) refuse(block, what);
  };
  if (!steps_.empty()) check_no_plan(steps_.front().block);
  std::vector<bool> queued(references_.size(), false);
  for (const std::int32_t block : free_in_order()) {
    expect(!queued[at(block)], block, "is twice in the queue");
    queued[at(block)] = true;
  }
  if (std::ranges::count(queued, true) != queue_.size()) throw std::logic_error("the queue miscounts");
  std::int64_t findable = 0;
  for (std::int32_t block = 0; block < total(); ++block) {
    expect((reference_count(block) == 0) == queued[at(block)], block, "is free and in use, or neither");
    expect(!condemned_.contains(block) || (reference_count(block) > 0 && index_.contains(block)), block,
           "is to be forgotten later, but nobody uses or finds it");
    findable += index_.contains(block) ? 1 : 0;
  }
  if (findable != index_.size())
    throw std::logic_error("the index has an entry for a block that it does not know");
}

}  // namespace kvcache
