/// @file
/// Fills a fresh block on the GPU with one number (`--debug-fill`): with NaN, a slot that is read before it
/// is written shows in the output.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"

namespace kvcache::cuda {

/// Fills one block of K, or of V, in all layers.
/// @param bits            the number, as bits of `dtype`
/// @param block           the block in layer 0, on the GPU
/// @param numbers         of K, or of V, of a block in one layer
/// @param layer_distance  numbers from one layer to the next
void fill_block(DType dtype, std::uint32_t bits, void* block, std::int64_t numbers, std::int64_t layers,
                std::int64_t layer_distance, cudaStream_t stream);

}  // namespace kvcache::cuda
