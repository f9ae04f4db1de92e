/// @file
/// Step 3's storage on a GPU with a host tier behind it: page-locked memory of the host. Whole blocks move to
/// it and back, in a stream of their own. Which blocks move is decided in host_tier.h. Compare
/// tiered_kv_store.h. Chapter: step4_prefix_cache/README.md.
#pragma once

#include <vector>

#include "step3_paged/cuda_paged_kv_store.h"

namespace kvcache {

/// Blocks move while the pass embeds and projects, before its first write. The host waits for nothing. Two
/// rules make that safe:
/// 1. No block is moved or overwritten before earlier passes are done with it: the moves wait for what is in
///    the compute stream when the pass begins.
/// 2. No block is written before its move is done: the pass's first write waits for the moves.
class CudaTieredKvStore final : public CudaPagedKvStore {
 public:
  /// @param host_blocks  blocks of the host tier
  /// @throws RunError when the GPU has not that much memory, or the host has not that much to lock.
  CudaTieredKvStore(const ModelConfig& config, const PagedShape& shape, std::int64_t host_blocks, DType dtype,
                    Settings settings, const cuda::Device& device);
  ~CudaTieredKvStore() override;

  /// Moves blocks out and in before anything of the pass is written.
  void begin(const PassPlan& plan) override;
  std::vector<std::int64_t> launch_key() const override;
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override;

  /// XXH64 of a block of the pool, K and V of all layers, as TieredKvStore's. Waits for the GPU.
  /// For tests.
  std::uint64_t checksum_of_block(std::int32_t block);
  /// The same of a host block.
  std::uint64_t checksum_of_host_block(std::int32_t host_block) const;

 private:
  void move_out(const BlockCopy& move);
  void move_in(const BlockCopy& move);
  /// K of all layers of a host block; V of each follows it.
  std::byte* host(std::int32_t host_block) const {
    return host_.data() + host_block * layers() * 2 * block_bytes();
  }

  // [host blocks, layers, 2 (K, V), block_size, kv_heads, head_dim]: a block in one piece
  cuda::PinnedBuffer<std::byte> host_;
  cuda::Stream moves_ = cuda::make_stream();
  cuda::Event order_ = cuda::make_event();
  bool moves_pending_ = false;  // the compute stream has not been told to wait for them
};

}  // namespace kvcache
