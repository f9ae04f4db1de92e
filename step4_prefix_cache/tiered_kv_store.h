/// @file
/// Step 3's storage with a host tier behind it: the same pool, and a second buffer that whole blocks move to
/// and from. Which blocks move is decided in host_tier.h. On the CPU both buffers lie in main memory; the
/// policy is the one a GPU needs. Chapter: step4_prefix_cache/README.md.
#pragma once

#include "step3_paged/paged_kv_store.h"

namespace kvcache {

/// A paged store with a second buffer of host blocks. `begin` moves blocks to it and back, as the plan says.
class TieredKvStore final : public PagedKvStore {
 public:
  /// @param host_blocks  blocks of the host tier
  TieredKvStore(const ModelConfig& config, const PagedShape& shape, std::int64_t host_blocks, DType dtype,
                Settings settings, ThreadPool& threads);

  /// Moves blocks out and in before anything of the pass is written.
  void begin(const PassPlan& plan) override;

  /// XXH64 of a block of the pool, K and V of all layers. For tests.
  std::uint64_t checksum_of_block(std::int32_t block);
  /// The same of a host block.
  std::uint64_t checksum_of_host_block(std::int32_t host_block) const;

 private:
  /// K of one layer of a host block; V follows it.
  std::byte* host(std::int32_t host_block, std::int64_t layer) const {
    return host_.data() + (host_block * layers() + layer) * 2 * block_bytes();
  }

  ReservedMemory
      host_;  // [host blocks, layers, 2 (K, V), block_size, kv_heads, head_dim]: a block in one piece
};

}  // namespace kvcache
