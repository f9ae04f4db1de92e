/// @file
/// See salts.h.
#include "step4_prefix_cache/salts.h"

#include "step4_prefix_cache/block_hash.h"

namespace kvcache {

std::optional<BlockParent> Salts::find(std::string_view salt) const {
  if (salt.empty()) return kNoSalt;
  const auto known = salts_.find(salt);
  return known == salts_.end() ? std::nullopt : std::optional(known->second);
}

BlockParent Salts::remember(const std::string& salt, SharedBlockPool& pool, const HostTier& host) {
  if (const std::optional<BlockParent> known = find(salt)) return *known;
  if (size() >= 2 * (pool.total() + host.total())) forget_unused(pool, host);
  return salts_[salt] = {salt_hash(salt), pool.new_identity()};
}

/// At least half of the salts go: each that stays has a first block of its own in the pool or the host tier.
void Salts::forget_unused(const SharedBlockPool& pool, const HostTier& host) {
  std::unordered_set<std::uint64_t> parents;
  for (std::int32_t n = 0; n < pool.total(); ++n) parents.insert(pool.index().content(n).parent_identity);
  for (std::int32_t n = 0; n < host.total(); ++n) parents.insert(host.content(n).parent_identity);
  std::erase_if(salts_, [&](const auto& salt) { return !parents.contains(salt.second.identity); });
}

std::unordered_set<std::uint64_t> Salts::identities() const {
  std::unordered_set<std::uint64_t> all;
  for (const auto& [salt, root] : salts_) all.insert(root.identity);
  return all;
}

}  // namespace kvcache
