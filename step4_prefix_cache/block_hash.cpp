/// @file
/// See block_hash.h.
#include "step4_prefix_cache/block_hash.h"

#include <xxhash.h>

#include <bit>
#include <cstddef>
#include <cstring>
#include <vector>

namespace kvcache {

static_assert(std::endian::native == std::endian::little, "hashes are of little-endian bytes");

namespace {

std::uint64_t full_hash(std::optional<std::uint64_t> parent, std::span<const std::int32_t> token_ids) {
  if (!parent) return XXH64(token_ids.data(), token_ids.size_bytes(), 0);
  // In one piece: for the few bytes of a block, XXH64's streaming interface takes twice as long.
  thread_local std::vector<std::byte> bytes;
  bytes.resize(sizeof *parent + token_ids.size_bytes());
  std::memcpy(bytes.data(), &*parent, sizeof *parent);
  std::memcpy(bytes.data() + sizeof *parent, token_ids.data(), token_ids.size_bytes());
  return XXH64(bytes.data(), bytes.size(), 0);
}

}  // namespace

std::uint64_t block_hash(std::optional<std::uint64_t> parent, std::span<const std::int32_t> token_ids,
                         int bits) {
  const std::uint64_t hash = full_hash(parent, token_ids);
  return bits >= 64 ? hash : hash & ((std::uint64_t{1} << bits) - 1);
}

std::uint64_t salt_hash(std::string_view salt) {
  return XXH64(salt.data(), salt.size(), 0);
}

}  // namespace kvcache
