/// @file
/// See rotate_and_store.h.
#include "common/cuda/rotate_and_store.h"

#include "common/cuda/kernels.h"
#include "common/cuda/scatter.h"

namespace kvcache::cuda {

void rotate_and_store(DType dtype, const HeadSettings& heads, std::int64_t head_dim, const NewRows& rows,
                      const std::int64_t* slots, void* k_pool, void* v_pool, cudaStream_t stream) {
  norm_and_rotate(dtype, rows_of(rows.q), rows_of(rows.k), head_dim, heads, stream);
  scatter_kv(dtype, {rows.k.data, rows.k.stride, rows.v.data, rows.v.stride, rows.k.rows}, rows.k.cols, slots,
             k_pool, v_pool, stream);
}

}  // namespace kvcache::cuda
