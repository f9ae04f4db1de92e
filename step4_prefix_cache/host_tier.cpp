/// @file
/// See host_tier.h.
#include "step4_prefix_cache/host_tier.h"

#include <stdexcept>

namespace kvcache {

bool HostTier::set_aside(std::int32_t slot) {
  if (!queue_.contains(slot)) return false;
  queue_.remove(slot);
  aside_.push_back(slot);
  return true;
}

std::optional<std::int32_t> HostTier::set_aside_oldest() {
  if (queue_.size() == 0) return std::nullopt;
  const std::int32_t slot = queue_.front();
  set_aside(slot);
  return slot;
}

void HostTier::put_back() {
  for (auto slot = aside_.rbegin(); slot != aside_.rend(); ++slot) queue_.undo_remove(*slot);
  aside_.clear();
}

void HostTier::store(std::int32_t slot, const BlockContent& content,
                     std::span<const std::int32_t> token_ids) {
  if (index_.contains(slot)) index_.erase(slot);
  index_.insert(slot, content, token_ids);
  queue_.push_back(slot);
}

void HostTier::remove(std::int32_t slot) {
  if (!index_.contains(slot)) return;
  index_.erase(slot);
  queue_.push_front(slot);
}

void HostTier::check_invariants() const {
  std::int64_t stored_slots = 0;
  for (const std::int32_t slot : queue_.in_order()) stored_slots += index_.contains(slot) ? 1 : 0;
  if (stored_slots != index_.size() || !aside_.empty())
    throw std::logic_error("a slot of the host tier is lost");
}

}  // namespace kvcache
