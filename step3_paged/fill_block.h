/// @file
/// Filling a fresh block of a pool on the GPU, to show that nothing reads a slot before it is written
/// (DebugFill).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"

namespace kvcache::cuda {

/// Fills one block of K, or of V, in all layers.
/// @param bits            of a number of `dtype`
/// @param block           the block in layer 0, on the GPU
/// @param numbers         of a block in one layer
/// @param layer_distance  numbers from one layer to the next
void fill_block(DType dtype, std::uint32_t bits, void* block, std::int64_t numbers, std::int64_t layers,
                std::int64_t layer_distance, cudaStream_t stream);

}  // namespace kvcache::cuda
