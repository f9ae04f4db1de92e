/// @file
/// See block_pool.h.
#include "step3_paged/block_pool.h"

#include <limits>
#include <stdexcept>
#include <string>

namespace kvcache {

BlockPool::BlockPool(std::int64_t total) {
  if (total < 0 || total > std::numeric_limits<std::int32_t>::max())
    throw std::logic_error("a pool of " + std::to_string(total) + " blocks");
  in_use_.resize(static_cast<std::size_t>(total), false);
  for (std::int64_t id = total - 1; id >= 0; --id) free_ids_.push_back(static_cast<std::int32_t>(id));
}

std::optional<std::int32_t> BlockPool::allocate() {
  if (free_ids_.empty()) return std::nullopt;
  const std::int32_t id = free_ids_.back();
  free_ids_.pop_back();
  in_use_[static_cast<std::size_t>(id)] = true;
  return id;
}

void BlockPool::free(std::int32_t id) {
  if (!in_use(id)) throw std::logic_error("block " + std::to_string(id) + " is freed and was not in use");
  in_use_[static_cast<std::size_t>(id)] = false;
  free_ids_.push_back(id);
}

bool BlockPool::in_use(std::int32_t id) const {
  if (id < 0 || id >= total()) throw std::logic_error("the pool has no block " + std::to_string(id));
  return in_use_[static_cast<std::size_t>(id)];
}

void BlockPool::check_invariants() const {
  std::vector<bool> listed(in_use_.size(), false);
  for (const std::int32_t id : free_ids_) {
    if (listed[static_cast<std::size_t>(id)]) throw std::logic_error("a block is twice in the free list");
    listed[static_cast<std::size_t>(id)] = true;
  }
  for (std::size_t id = 0; id < listed.size(); ++id) {
    if (in_use_[id] == listed[id])
      throw std::logic_error(in_use_[id] ? "a block is free and in use"
                                         : "a block is neither free nor in use");
  }
}

}  // namespace kvcache
