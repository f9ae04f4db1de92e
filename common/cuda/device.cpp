/// @file
/// See device.h.
#include "common/cuda/device.h"

#include "common/error.h"
#include "fmt/format.h"

namespace kvcache::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky must not be reported a second time
  throw RunError(fmt::format("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status)));
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a CUDA stream");
  return Stream(stream);
}

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making a CUDA event");
  return Event(event);
}

void wait_for(cudaStream_t later, cudaStream_t earlier, cudaEvent_t event) {
  check(cudaEventRecord(event, earlier), "recording a CUDA event");
  check(cudaStreamWaitEvent(later, event), "waiting for a CUDA event");
}

bool Device::available() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();
  return found;
}

Device::Device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    throw RunError(fmt::format("--device cuda: {}; use --device cpu",
                               status == cudaSuccess ? "no GPU was found" : cudaGetErrorString(status)));
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "asking for the GPU's properties");
  name_ = properties.name;
  compute_capability_ = properties.major * 10 + properties.minor;
  multiprocessors_ = properties.multiProcessorCount;
  if (compute_capability_ < 75) {
    throw RunError(fmt::format("--device cuda: {} has compute capability {}.{} and this build needs 7.5; use "
                               "--device cpu",
                               name_, properties.major, properties.minor));
  }
  check(cudaSetDevice(0), "choosing the GPU");
  stream_ = make_stream();
}

std::int64_t Device::free_memory() const {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the GPU's free memory");
  return static_cast<std::int64_t>(free);
}

std::int64_t Device::total_memory() const {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the GPU's memory");
  return static_cast<std::int64_t>(total);
}

void Device::check_dtype(DType dtype) const {
  if (dtype != DType::bf16 || compute_capability_ >= 80) return;
  throw RunError(fmt::format("--dtype bf16 needs compute capability 8.0 and {} has {}.{}; use f16 or f32", name_,
                             compute_capability_ / 10, compute_capability_ % 10));
}

void Device::synchronize() const {
  check(cudaStreamSynchronize(stream()), "waiting for the GPU");
}

}  // namespace kvcache::cuda
