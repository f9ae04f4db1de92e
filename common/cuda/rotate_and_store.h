/// @file
/// The first half of a layer's work in a store on the GPU: heads are normalised and rotated, and K and V go
/// to their slots. The second half is attention (attention.h). Chapter: step3_paged/README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"
#include "common/base/matrix.h"

namespace kvcache::cuda {

/// Normalises each head of q and k, if there are weights for it; then rotates the pairs (d, d + head_dim /
/// 2), if there is a rotation. q stays in its rows; k and v are stored as `scatter_kv` stores them
/// (scatter.h). What lies in the rows of k afterwards is not said. head_dim is a multiple of 4, at most
/// kMostHeadDim.
/// @param slots           [tokens] on the GPU
/// @param k_pool, v_pool  [slots, kv_heads, head_dim] on the GPU
void rotate_and_store(DType dtype, const HeadSettings& heads, std::int64_t head_dim, const NewRows& rows,
                      const std::int64_t* slots, void* k_pool, void* v_pool, cudaStream_t stream);

}  // namespace kvcache::cuda
