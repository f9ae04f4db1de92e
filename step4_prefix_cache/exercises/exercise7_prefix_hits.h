/// @file
/// Exercise 7, stated in exercise7_prefix_hits.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvcache {

/// Tokens of each prompt that step 4 takes from the cache, if the prompts come one after the other, nothing
/// is generated, and the pool never runs short.
/// @param prompts  [prompts] token ids, none of them empty
/// @return [prompts]
std::vector<std::int64_t> cached_tokens_of(std::span<const std::vector<std::int32_t>> prompts,
                                           std::int64_t block_size);

}  // namespace kvcache
