/// @file
/// Matrix products by NVIDIA's cuBLAS. The library is loaded when a GPU is first used, so a program that runs
/// on the CPU neither needs it nor waits until its half gigabyte is mapped. Chapter: step3_paged/README.md.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>

#include "common/base/dtype.h"
#include "common/cuda/memory.h"

namespace kvcache::cuda {

/// y = x W^T (+ y). Sums are float32. A row's bits may depend on the number of rows, by which cuBLAS chooses
/// a kernel.
class Cublas {
 public:
  /// Products run in `stream`.
  /// @throws RunError if the library cannot be loaded, with the loader's message.
  explicit Cublas(cudaStream_t stream);
  /// @throws RunError as the constructor does if the library cannot be loaded.
  static void check_library();

  /// @param x       [rows, in], rows `x_stride` numbers apart
  /// @param weight  [out, in], packed
  /// @param y       [rows, out], rows `y_stride` numbers apart
  /// @param add     the product is added to y, in float32, before rounding
  void multiply(DType dtype, const void* x, std::int64_t x_stride, const void* weight, void* y,
                std::int64_t y_stride, std::int64_t rows, std::int64_t in, std::int64_t out, bool add);

 private:
  struct Library;
  struct Plan;
  /// What a plan depends on: number type, sizes, strides and the alignment of the addresses.
  using Key = std::array<std::int64_t, 7>;
  /// cuBLAS takes a tenth of a millisecond to choose a kernel, so it chooses for rounded numbers of rows
  /// only; a number of rows that comes for the first time takes the kernel of the next of these.
  const Plan& plan_for(const Key& key);
  cublasLtMatmulAlgo_t choose(const Plan& plan, std::int64_t alignment) const;
  /// Whether cuBLAS can multiply matrices of a plan's sizes with the plan's kernel.
  bool can_use(const Plan& plan) const;

  cudaStream_t stream_;
  std::shared_ptr<const Library> library_;
  std::shared_ptr<void> handle_;  // a cublasLtHandle_t
  DeviceBuffer<std::byte> workspace_;
  std::map<Key, std::shared_ptr<const Plan>> plans_;
};

}  // namespace kvcache::cuda
