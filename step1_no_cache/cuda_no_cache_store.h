/// @file
/// Step 1's store on a GPU. Chapter: step1_no_cache/README.md.
#pragma once

#include <cstddef>

#include "common/cuda/attention.h"
#include "common/cuda/memory.h"
#include "common/kv/kv_store.h"
#include "common/model/config.h"

namespace kvcache {

/// As NoCacheStore: K and V of one layer of one pass.
class CudaNoCacheStore final : public KvStore {
 public:
  /// @throws InputError for a head_dim that the kernels were not compiled for.
  CudaNoCacheStore(const ModelConfig& config, DType dtype, const cuda::Device& device);

  void begin(const PassPlan& plan) override;
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override;

 private:
  DType dtype_;
  std::int64_t width_;  // numbers of a K or V row: kv_heads * head_dim
  const cuda::Device& device_;
  cuda::Attention attention_;
  cuda::Upload<std::int64_t> slots_, first_slots_;  // [tokens], [sequences] of the pass
  cuda::DeviceBuffer<std::byte> k_, v_;             // [tokens, kv_heads, head_dim] of one layer
};

}  // namespace kvcache
