/// @file
/// Salts: what the first blocks of sequences follow. PrefixCachingManager::publish asks `remember` for the
/// parent of a first block, whose hash block_hash (block_hash.h) takes in. Chapter:
/// step4_prefix_cache/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "step4_prefix_cache/host_tier.h"
#include "step4_prefix_cache/prefix_index.h"
#include "step4_prefix_cache/shared_block_pool.h"

namespace kvcache {

/// The salts under which blocks can be found. Each has an identity, as if it were a block. Two salts may have
/// one hash, but never one identity.
class Salts {
 public:
  /// What a first block under `salt` follows; `kNoSalt` for the empty salt. An empty std::optional is not
  /// `kNoSalt`: the salt is unknown, so no block can be found under it.
  [[nodiscard]] std::optional<BlockParent> find(std::string_view salt) const;
  /// The same for a first block that is about to be published; an unknown salt gets an identity. Clients
  /// choose their salts, so there is a limit: twice the number of blocks in `pool` and `host`. At the limit
  /// all salts without a findable block are forgotten.
  [[nodiscard]] BlockParent remember(const std::string& salt, SharedBlockPool& pool, const HostTier& host);

  /// Salts that are remembered.
  std::int64_t size() const { return static_cast<std::int64_t>(salts_.size()); }
  /// Identities that first blocks name as their parent.
  std::unordered_set<std::uint64_t> identities() const;

 private:
  void forget_unused(const SharedBlockPool& pool, const HostTier& host);

  std::map<std::string, BlockParent, std::less<>> salts_;
};

}  // namespace kvcache
