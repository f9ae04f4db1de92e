/// @file
/// See host_tier.h.
#include "step4_prefix_cache/host_tier.h"

namespace kvcache {

void HostTier::set_aside(std::int32_t slot) {
  if (!queue_.contains(slot)) return;
  queue_.remove(slot);
  aside_.push_back(slot);
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

}  // namespace kvcache
