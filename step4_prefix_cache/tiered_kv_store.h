/// @file
/// Step 3's storage with a host tier behind it: the same pool, and a second buffer that whole blocks move to
/// and from. On the CPU both lie in main memory; the policy is the one a GPU needs. Chapter:
/// step4_prefix_cache/README.md.
#pragma once

#include "step3_paged/paged_kv_store.h"

namespace kvcache {

/// A paged store with a host tier: a second buffer, `host_blocks` slots large, that `begin` moves blocks to
/// and from as the plan says.
class TieredKvStore final : public PagedKvStore {
 public:
  /// @param host_blocks  slots of the host tier
  TieredKvStore(const ModelConfig& config, const PagedShape& shape, std::int64_t host_blocks, DType dtype,
                Settings settings, ThreadPool& pool);

  /// Moves blocks out and in before anything of the pass is written.
  void begin(const PassPlan& plan) override;

  /// XXH64 of what a block of the pool holds: K and V of all layers. For tests.
  std::uint64_t checksum_of_block(std::int32_t block);
  /// The same of a slot of the host tier.
  std::uint64_t checksum_of_host_slot(std::int32_t slot) const;

 private:
  /// K of one layer of a host slot; V follows it.
  std::byte* host(std::int32_t slot, std::int64_t layer) const {
    return host_.data() + (slot * layers() + layer) * 2 * block_bytes();
  }

  ReservedMemory host_;  // [slots, layers, 2 (K, V), block_size, kv_heads, head_dim]: a block in one piece
};

}  // namespace kvcache
