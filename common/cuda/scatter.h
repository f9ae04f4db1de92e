/// @file
/// Writing new K/V rows where a slot mapping says, on the GPU. Chapter: step 1 (slot = row), step 3
/// (scatter).
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

/// How K/V rows are moved. `packs` is the fast way, wherever rows begin and end on 16 bytes, and else the
/// same as `plain`, which tests and benchmarks hold against it: one thread for every number.
enum class RowKernels : std::uint8_t { plain, packs };

/// Stores row r of k and v at slot slots[r] of the pools. A slot of -1 is skipped. Where a number of v is NaN
/// or infinite, v is stored as 0 and k as NaN: attention gives NaN to those who see that token, and to nobody
/// else (the kernels multiply tokens that a query must not see by 0).
/// @param width   numbers of a row: kv_heads * head_dim
/// @param slots   [tokens] on the GPU
/// @param k_pool, v_pool  [slots, kv_heads, head_dim] on the GPU
void scatter_kv(DType dtype, const NewKv& rows, std::int64_t width, const std::int64_t* slots, void* k_pool,
                void* v_pool, cudaStream_t stream, RowKernels kernels = RowKernels::packs);

}  // namespace kvcache::cuda
