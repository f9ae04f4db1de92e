/// @file
/// See cuda_flat_cache_store.h.
#include "step2_flat_cache/cuda_flat_cache_store.h"

#include <vector>

namespace kvcache {

CudaFlatCacheStore::CudaFlatCacheStore(const ModelConfig& config, const FlatCacheShape& shape, DType dtype,
                                       const cuda::Device& device)
    : layer_bytes_(shape.sequences * shape.max_seq_len * config.kv_width() * size_of(dtype)),
      device_(device),
      attention_(device, {config.heads, config.kv_heads, config.head_dim}, dtype),
      k_(config.layers * layer_bytes_, "the flat cache's K"),
      v_(config.layers * layer_bytes_, "the flat cache's V") {}

void CudaFlatCacheStore::begin(const PassPlan& plan) {
  slots_(plan.slots, device_.stream());
  std::vector<std::int64_t> first_slots;
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const auto begin = static_cast<std::size_t>(plan.row_begin[s]);
    first_slots.push_back(plan.slots[begin] - plan.positions[begin]);
  }
  first_slots_(first_slots, device_.stream());
  attention_.begin(plan.row_begin, plan.context_len);
}

std::vector<std::int64_t> CudaFlatCacheStore::launch_key() const {
  std::vector<std::int64_t> key = attention_.launch_key();
  if (!key.empty())
    key.push_back(reinterpret_cast<std::intptr_t>(k_.data()));  // another store has other memory
  return key;
}

void CudaFlatCacheStore::store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                                          Matrix& out) {
  attention_.store_and_run(heads, rows, slots_.data(), k_.data() + layer * layer_bytes_,
                           v_.data() + layer * layer_bytes_, {.first_slot = first_slots_.data()}, out);
}

}  // namespace kvcache
