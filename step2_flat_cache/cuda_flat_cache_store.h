/// @file
/// Step 2's store on a GPU. Chapter: step2_flat_cache/README.md.
#pragma once

#include <cstddef>
#include <vector>

#include "common/cuda/attention.h"
#include "common/cuda/memory.h"
#include "common/kv/kv_store.h"
#include "common/model/config.h"
#include "step2_flat_cache/flat_cache.h"

namespace kvcache {

/// As FlatCacheStore, but the GPU's memory is taken at once: nothing else can use the empty slots of a
/// reservation.
class CudaFlatCacheStore final : public KvStore {
 public:
  /// @throws RunError when the GPU has too little memory.
  CudaFlatCacheStore(const ModelConfig& config, const FlatCacheShape& shape, DType dtype,
                     const cuda::Device& device);

  void begin(const PassPlan& plan) override;
  std::vector<std::int64_t> launch_key() const override;
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override;

 private:
  std::int64_t layer_bytes_;  // of K, or of V
  const cuda::Device& device_;
  cuda::Attention attention_;
  cuda::Upload<std::int64_t> slots_, first_slots_;  // [tokens], [sequences] of the pass
  cuda::DeviceBuffer<std::byte> k_, v_;             // [layers, sequences, max_seq_len, kv_heads, head_dim]
};

}  // namespace kvcache
