/// @file
/// See block_hash.h.
#include "step4_prefix_cache/block_hash.h"

#define XXH_STATIC_LINKING_ONLY  // the streaming state on the stack
#include <xxhash.h>

#include <bit>
#include <cstring>
#include <vector>

namespace kvcache {

static_assert(std::endian::native == std::endian::little, "hashes are of little-endian bytes");

std::uint64_t block_hash(std::optional<std::uint64_t> parent, std::span<const std::int32_t> token_ids) {
  if (!parent) return XXH64(token_ids.data(), token_ids.size_bytes(), 0);
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  XXH64_update(&state, &*parent, sizeof *parent);
  XXH64_update(&state, token_ids.data(), token_ids.size_bytes());
  return XXH64_digest(&state);
}

std::uint64_t salt_hash(std::string_view salt) {
  return XXH64(salt.data(), salt.size(), 0);
}

}  // namespace kvcache
