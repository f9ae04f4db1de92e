/// @file
/// The highest rate at which a GPU computes: multiply-adds on numbers in registers.
#pragma once

#include <cuda_runtime_api.h>

#include "common/base/dtype.h"
#include "common/cuda/device.h"

namespace kvcache::cuda {

/// Queues the loop: fused multiply-adds in float32 for f32; for f16 and bf16 the tensor cores' mma.sync with
/// float32 sums, from compute capability 8.0 on.
/// @param sink  4 bytes on the GPU, almost never written; so the compiler cannot leave the loop out
/// @return floating-point operations of the call, two for a multiply-add
double peak_loop(const Device& device, DType dtype, float* sink);

}  // namespace kvcache::cuda
