/// @file
/// Scatter on the GPU: writes the new K and V rows of a pass to their slots. Chapter: step3_paged/README.md;
/// in step 1 a row's slot is its number.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"

namespace kvcache::cuda {

/// K and V of new tokens in one layer, on the GPU.
struct NewKv {
  const void* k = nullptr;    ///< [tokens, kv_heads, head_dim], rows k_stride numbers apart
  std::int64_t k_stride = 0;  ///< numbers
  const void* v = nullptr;    ///< as k
  std::int64_t v_stride = 0;  ///< numbers
  std::int64_t tokens = 0;    ///< of the pass
};

/// How scatter and gather move rows. `plain` has one thread for every number; tests and benchmarks compare
/// with it. `packs` is the fast way; rows that do not begin and end on 16 bytes are moved as by `plain`.
enum class RowKernels : std::uint8_t { plain, packs };

/// Stores row r of k and v at slot slots[r] of the pools. A slot of -1 is skipped. If a number of v is NaN or
/// infinite, it is stored as 0 and the number of k at its place as NaN. So a query that sees the token gets
/// NaN through its score. A query that must not see it stays sound: attention multiplies the token's V by 0,
/// and 0 times NaN would be NaN.
/// @param width   numbers of a row: kv_heads * head_dim
/// @param slots   [tokens] on the GPU
/// @param k_pool, v_pool  [slots, kv_heads, head_dim] on the GPU
void scatter_kv(DType dtype, const NewKv& rows, std::int64_t width, const std::int64_t* slots, void* k_pool,
                void* v_pool, cudaStream_t stream, RowKernels kernels = RowKernels::packs);

}  // namespace kvcache::cuda
