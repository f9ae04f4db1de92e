/// @file
/// A model's weights on the GPU. Chapter: step3_paged/README.md.
#pragma once

#include "common/cuda/device.h"
#include "common/model/weights.h"

namespace kvcache::cuda {

/// Copies `weights` to the GPU, all rounded to `dtype`; the pointers of the result are addresses there. The
/// q, k and v weights of a layer lie one after the other, and so do gate and up, so that one product computes
/// them together.
/// @throws RunError if they do not fit, with the numbers.
Weights upload_weights(const Weights& weights, DType dtype, const Device& device);

}  // namespace kvcache::cuda
