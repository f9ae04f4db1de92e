/// @file
/// The name of a full block: a hash of everything that its K and V depend on. Chapter:
/// step4_prefix_cache/README.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvcache {

/// XXH64 (seed 0) of the parent's hash, as 8 bytes little endian, then the token ids as int32 little endian.
/// The K and V of a token depend on all tokens before it. The parent's hash stands for the blocks before.
/// @param parent  hash of the block before; of a sequence's first block the salt's, or nothing without a salt
/// @param bits    low bits that are kept; fewer than 64 make collisions, which tests want
/// Source: Collet, "xxHash"; the chaining is that of vLLM's automatic prefix caching.
[[nodiscard]] std::uint64_t block_hash(std::optional<std::uint64_t> parent,
                                       std::span<const std::int32_t> token_ids, int bits = 64);

/// The hash of a salt, which a first block has as its parent's hash (salts.h).
[[nodiscard]] std::uint64_t salt_hash(std::string_view salt);

/// The ids of block `n` of a sequence, [block_size].
inline std::span<const std::int32_t> tokens_of_block(std::span<const std::int32_t> token_ids, std::int64_t n,
                                                     std::int64_t block_size) {
  return token_ids.subspan(static_cast<std::size_t>(n * block_size), static_cast<std::size_t>(block_size));
}

}  // namespace kvcache
