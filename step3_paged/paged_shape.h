/// @file
/// The sizes of a paged cache, which its manager and its store agree on. PassPlan::add_slots
/// (common/kv/pass_plan.h) makes slots of them. Chapter: step3_paged/README.md.
#pragma once

#include <cstdint>

namespace kvcache {

/// The sizes of a paged cache.
struct PagedShape {
  std::int64_t blocks = 0;           ///< in the pool
  std::int64_t block_size = 16;      ///< tokens per block
  std::int64_t bytes_per_token = 0;  ///< K and V over all layers: ModelConfig::kv_bytes_per_token

  /// K and V of one block over all layers.
  std::int64_t block_bytes() const { return block_size * bytes_per_token; }
  /// Blocks that hold `tokens` tokens.
  std::int64_t blocks_for(std::int64_t tokens) const { return (tokens + block_size - 1) / block_size; }
  /// Blocks that stay free when a sequence is admitted beside others, so that running sequences can grow.
  std::int64_t watermark() const { return blocks / 100; }
};

}  // namespace kvcache
