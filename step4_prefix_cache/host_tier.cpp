/// @file
/// See host_tier.h.
#include "step4_prefix_cache/host_tier.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_set>

namespace kvcache {

bool HostTier::set_aside(std::int32_t host_block) {
  if (!queue_.contains(host_block)) return false;
  queue_.remove(host_block);
  aside_.push_back(host_block);
  return true;
}

std::optional<std::int32_t> HostTier::set_aside_oldest() {
  if (queue_.size() == 0) return std::nullopt;
  const std::int32_t host_block = queue_.front();
  set_aside(host_block);
  return host_block;
}

std::vector<BlockCopy> HostTier::swap_out(const SharedBlockPool& pool) {
  std::vector<BlockCopy> moves;
  std::unordered_set<std::uint64_t> moved;  // identities: of blocks that hold the same, one moves
  // The most recently used first: they get the room.
  for (auto block = pool.evicted().rbegin(); block != pool.evicted().rend(); ++block) {
    const BlockContent& content = pool.index().content(*block);
    if (!moved.insert(content.identity).second) continue;
    // If a host block holds the same already, the move goes there: that makes it the most recently stored.
    // Unless it is set aside: then this plan brings it back, or stores something else in it.
    auto host_block = find(content.hash, content.parent_identity, pool.index().token_ids(*block));
    if (!host_block || !set_aside(*host_block)) host_block = set_aside_oldest();
    if (!host_block) break;
    moves.push_back({*block, *host_block});
  }
  std::ranges::reverse(moves);  // they are stored last, and so given up last
  return moves;
}

void HostTier::put_back() {
  for (auto host_block = aside_.rbegin(); host_block != aside_.rend(); ++host_block)
    queue_.undo_remove(*host_block);
  aside_.clear();
}

void HostTier::store(std::span<const BlockCopy> swaps_out, const PrefixIndex& pool_index) {
  for (const auto& [block, host_block] : swaps_out) {
    if (queue_.contains(host_block))
      throw std::logic_error("host block " + std::to_string(host_block) + " is stored to and not set aside");
    if (index_.contains(host_block)) index_.erase(host_block);
    index_.insert(host_block, pool_index.content(block), pool_index.token_ids(block));
    queue_.push_back(host_block);
  }
}

void HostTier::settle(std::span<const BlockCopy> swaps_in) {
  for (const BlockCopy& move : swaps_in) {
    if (index_.contains(move.from)) empty(move.from);  // another sequence may have brought back the same
  }
  aside_.clear();
}

void HostTier::empty(std::int32_t host_block) {
  if (queue_.contains(host_block))
    throw std::logic_error("host block " + std::to_string(host_block) + " is removed and not set aside");
  index_.erase(host_block);
  queue_.push_front(host_block);
}

void HostTier::forget(std::int32_t host_block) {
  set_aside(host_block);
  empty(host_block);
  aside_.clear();
}

void HostTier::check_invariants() const {
  std::int64_t stored_blocks = 0;
  for (const std::int32_t block : queue_.in_order()) stored_blocks += index_.contains(block) ? 1 : 0;
  if (queue_.size() != total_ || stored_blocks != index_.size() || !aside_.empty())
    throw std::logic_error("a host block is lost");
}

}  // namespace kvcache
