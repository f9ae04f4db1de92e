/// @file
/// See peak_loop.h.
#include "common/bench/peak_loop.h"

#include "common/cuda/attention_mma.cuh"
#include "common/cuda/launch.cuh"

namespace kvcache::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 4096;  // many more than run at once, so the last ones to end weigh little
constexpr int kSteps = 2048;
constexpr int kSums = 8;  // side by side: each step of a sum waits for the step before

/// The sums are never read, which the compiler must not know.
__device__ void pretend_to_need(float sum, float* sink) {
  if (sum == 0.123456F) *sink = sum;
}

__global__ void __launch_bounds__(kThreads) peak_loop_multiply_add(float start, float* sink) {
  float sums[kSums];
#pragma unroll
  for (int n = 0; n < kSums; ++n) sums[n] = start + static_cast<float>(threadIdx.x + n);
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kSums; ++n) sums[n] = fmaf(sums[n], start, 1.0F);
  }
  float all = 0;
#pragma unroll
  for (int n = 0; n < kSums; ++n) all += sums[n];
  pretend_to_need(all, sink);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) peak_loop_tensor_cores(std::uint32_t start, float* sink) {
#if __CUDA_ARCH__ >= 800
  float sums[kSums][4] = {};
  const std::uint32_t a[4] = {start, start + 1, start + 2, start + threadIdx.x};
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kSums; ++n) multiply_add<T>(sums[n], a, start + n, start);
  }
  float all = 0;
#pragma unroll
  for (int n = 0; n < kSums; ++n) all += sums[n][0] + sums[n][1] + sums[n][2] + sums[n][3];
  pretend_to_need(all, sink);
#endif
}

}  // namespace

double peak_loop(const Device& device, DType dtype, float* sink) {
  constexpr double kThreadSteps = static_cast<double>(kBlocks) * kThreads * kSteps * kSums;
  const LaunchShape shape{kBlocks, kThreads};
  if (dtype == DType::f32) {
    launch("peak_loop_multiply_add", peak_loop_multiply_add, shape, device.stream(), 0.5F, sink);
    return kThreadSteps * 2;
  }
  constexpr std::uint32_t kSmallNumbers = 0x3C003C00;  // two numbers of about 1 in f16, about 0.01 in bf16
  launch("peak_loop_tensor_cores",
         dtype == DType::f16 ? peak_loop_tensor_cores<__half> : peak_loop_tensor_cores<__nv_bfloat16>, shape,
         device.stream(), kSmallNumbers, sink);
  constexpr double kProduct = 16 * 8 * 16;  // multiply-adds of one instruction of one warp
  return kThreadSteps / 32 * kProduct * 2;
}

}  // namespace kvcache::cuda
