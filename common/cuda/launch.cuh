/// @file
/// What all kernels share: `launch`, which starts and checks every one of them, and the number types.
/// Chapter: step3_paged/README.md.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "common/base/dtype.h"
#include "common/cuda/device.h"

namespace kvcache::cuda {

/// How many threads a kernel has.
struct LaunchShape {
  dim3 grid;                     ///< thread blocks; 0 in any direction: the kernel is not started
  dim3 block;                    ///< threads of a thread block
  std::size_t shared_bytes = 0;  ///< of dynamic shared memory
  /// Programmatic dependent launch: the kernel may start while the one before it in the stream still runs, if
  /// that one has called `start_next_kernel`. Before a kernel calls `wait_for_earlier_kernels`, it writes
  /// nothing and reads only what was complete when the last kernel without `overlaps` started.
  bool overlaps = false;
  /// Neighbouring thread blocks in x that run at the same time and read each other's shared memory. More than
  /// one needs `has_hopper_kernels`.
  unsigned cluster = 1;
};

/// Whether this build has kernels of compute capability 9.0 for this GPU: they can overlap, and their thread
/// blocks can form clusters. Others run one after the other.
bool has_hopper_kernels();

/// Allows a kernel the shared memory of its launch. CUDA is asked only where `kernel` needs more than before.
/// @param name  of the kernel, for the error
/// @throws RunError if the GPU does not have so much.
void allow_shared_memory(const char* name, const void* kernel, const LaunchShape& shape);

/// Starts `kernel` in `stream` and checks that it started. An empty grid starts nothing.
/// @param name  of the kernel, for the error
template <typename... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            std::type_identity_t<Parameters>... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  allow_shared_memory(name, reinterpret_cast<const void*>(kernel), shape);
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  config.attrs = attributes;
  if (shape.overlaps && has_hopper_kernels()) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {shape.cluster, 1, 1};
  }
  check(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

/// Lets the next kernel of the stream start as soon as every thread block of this one has called this.
__device__ inline void start_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the kernels before this one are done and their results can be read.
__device__ inline void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// numerator / denominator, rounded up; neither is negative.
constexpr std::int64_t ceil_div(std::int64_t numerator, std::int64_t denominator) {
  return (numerator + denominator - 1) / denominator;
}

/// `number` itself, so that kernels are written once for all types.
__device__ inline float to_float(float number) {
  return number;
}
/// `number` exactly.
__device__ inline float to_float(__half number) {
  return __half2float(number);
}
/// `number` exactly.
__device__ inline float to_float(__nv_bfloat16 number) {
  return __bfloat162float(number);
}

/// `number` rounded to nearest, ties to even.
template <typename T>
__device__ inline T from_float(float number) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(number);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(number);
  } else {
    return number;
  }
}

/// The sum over the threads of a warp, in a fixed order; every thread gets it.
__device__ inline float warp_sum(float number) {
  for (int distance = 16; distance > 0; distance /= 2) number += __shfl_xor_sync(~0U, number, distance);
  return number;
}

/// Numbers that one thread moves at once: 16 bytes.
template <typename T>
struct alignas(16) Pack {
  static constexpr int size = 16 / sizeof(T);  ///< numbers in 16 bytes
  T numbers[size];                             ///< neighbours in memory
};

/// Calls `function.operator()<T>()` with the number type of `dtype`.
template <typename Function>
void with_number_type(DType dtype, Function function) {
  switch (dtype) {
    case DType::f32:
      return function.template operator()<float>();
    case DType::f16:
      return function.template operator()<__half>();
    case DType::bf16:
      return function.template operator()<__nv_bfloat16>();
  }
}

}  // namespace kvcache::cuda
