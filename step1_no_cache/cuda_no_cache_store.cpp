/// @file
/// See cuda_no_cache_store.h.
#include "step1_no_cache/cuda_no_cache_store.h"

#include <vector>

namespace kvcache {

CudaNoCacheStore::CudaNoCacheStore(const ModelConfig& config, DType dtype, const cuda::Device& device)
    : dtype_(dtype),
      width_(config.kv_width()),
      device_(device),
      attention_(device, {config.heads, config.kv_heads, config.head_dim}, dtype) {}

void CudaNoCacheStore::begin(const PassPlan& plan) {
  k_.reserve(plan.tokens() * width_ * size_of(dtype_), "K of one layer");
  v_.reserve(plan.tokens() * width_ * size_of(dtype_), "V of one layer");
  slots_(plan.slots, device_.stream());
  const std::vector<std::int64_t> first_slots(plan.row_begin.begin(), plan.row_begin.end() - 1);
  first_slots_(first_slots, device_.stream());
  attention_.begin(plan.row_begin, plan.context_len);
}

void CudaNoCacheStore::store_and_attend(std::int64_t, const HeadSettings& heads, const NewRows& rows,
                                        Matrix& out) {
  attention_.store_and_run(heads, rows, slots_.data(), k_.data(), v_.data(),
                           {.first_slot = first_slots_.data()}, out);
}

}  // namespace kvcache
