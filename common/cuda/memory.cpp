/// @file
/// See memory.h.
#include "common/cuda/memory.h"

#include <atomic>

#include "common/base/error.h"
#include "fmt/format.h"

namespace kvcache::cuda {

namespace {

std::atomic<std::int64_t> allocation_count = 0;

}  // namespace

std::int64_t allocations() {
  return allocation_count;
}

std::shared_ptr<void> allocate_device(std::int64_t bytes, const char* what) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw RunError(
        fmt::format("not enough of the GPU's memory for {}: {} bytes, and {} are free; ask for less, or end "
                    "other programs that use the GPU",
                    what, bytes, free));
  }
  check(status, what);
  ++allocation_count;
  return {data, [](void* memory) { cudaFree(memory); }};
}

std::shared_ptr<void> allocate_pinned(std::int64_t bytes, const char* what) {
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw RunError(
        fmt::format("not enough page-locked host memory for {}: {} bytes; ask for less", what, bytes));
  }
  check(status, what);
  return {data, [](void* memory) { cudaFreeHost(memory); }};
}

}  // namespace kvcache::cuda
