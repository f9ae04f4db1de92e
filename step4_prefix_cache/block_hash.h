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
/// K and V of a token depend on all tokens before it, so a block's hash covers those before it through its
/// parent's.
/// @param parent  of the block that this one follows; nothing for a sequence's first block
/// Source: Collet, "xxHash"; the chaining is that of vLLM's automatic prefix caching.
std::uint64_t block_hash(std::optional<std::uint64_t> parent, std::span<const std::int32_t> token_ids);

/// What stands in for the parent of a first block when there is a salt: sequences share only with those of
/// equal salt.
std::uint64_t salt_hash(std::string_view salt);

}  // namespace kvcache
