/// @file
/// Two kernels for benchmarks: one only reads memory, the limit that others are compared with; one makes
/// random numbers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"

namespace kvcache::cuda {

/// Reads `bytes`, a multiple of 16, once, as fast as this GPU's memory can be read.
/// @param sink  4 bytes on the GPU, almost never written; so the compiler cannot leave the reading out
void read_sweep(const void* data, std::int64_t bytes, std::uint32_t* sink, cudaStream_t stream);

/// Fills `data` with numbers in [-1, 1].
void fill_with_random(DType dtype, void* data, std::int64_t count, std::uint32_t seed, cudaStream_t stream);

}  // namespace kvcache::cuda
