/// @file
/// See launch.cuh.
#include "common/cuda/launch.cuh"

#include <mutex>
#include <unordered_map>

namespace kvcache::cuda {

void allow_shared_memory(const char* name, const void* kernel, const LaunchShape& shape) {
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (!shape.overlaps && shape.shared_bytes <= kWithoutAsking) return;
  // Each of the two calls takes a fifth of the time of a launch.
  struct Allowed {
    bool asked = false;
    std::size_t bytes = kWithoutAsking;
  };
  static std::mutex mutex;
  static std::unordered_map<const void*, Allowed> kernels;
  const std::lock_guard lock(mutex);
  Allowed& allowed = kernels[kernel];
  if (!allowed.asked) {
    // A multiprocessor holds two kernels at once only if both want its memory split in the same way. And
    // where thread blocks have much, more of them fit if the first-level cache keeps little.
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared),
          name);
    allowed.asked = true;
  }
  if (shape.shared_bytes > allowed.bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          name);
    allowed.bytes = shape.shared_bytes;
  }
}

}  // namespace kvcache::cuda
