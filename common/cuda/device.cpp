/// @file
/// See device.h.
#include "common/cuda/device.h"

#include <string>

#include "common/base/error.h"
#include "common/cuda/kernels.h"
#include "fmt/format.h"

namespace kvcache::cuda {

/// The oldest GPU that this build has kernels for: 75 is compute capability 7.5.
constexpr int kOldest = 75;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // resets the error, so that no later check reports it again
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

namespace {

/// Why there is no GPU; empty if there is one.
std::string reason_for_no_gpu() {
  int count = 0, driver = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (status == cudaSuccess && count > 0) return "";
  cudaDriverGetVersion(&driver);
  if (driver == 0) return "no NVIDIA driver is installed";
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("the NVIDIA driver is made for CUDA {}.{} and this build for {}.{}", driver / 1000,
                       driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  return status == cudaSuccess || status == cudaErrorNoDevice ? "no GPU was found"
                                                              : cudaGetErrorString(status);
}

}  // namespace

const GpuLimits& GpuLimits::get() {
  static const GpuLimits limits = [] {
    GpuLimits asked;
    const char* what = "asking for the GPU's limits";
    check(cudaDeviceGetAttribute(&asked.multiprocessors, cudaDevAttrMultiProcessorCount, 0), what);
    check(cudaDeviceGetAttribute(&asked.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), what);
    return asked;
  }();
  return limits;
}

std::string Device::why_unavailable() {
  try {
    const Device tried;
    return "";
  } catch (const RunError& error) {
    return error.what();
  }
}

bool Device::is_expected() {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return false;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  return status == cudaSuccess ? count > 0 : status != cudaErrorNoDevice;
}

Device::Device() {
  if (const std::string reason = reason_for_no_gpu(); !reason.empty())
    throw RunError(fmt::format("--device cuda: {}; use --device cpu", reason));
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "asking for the GPU's properties");
  name_ = properties.name;
  compute_capability_ = properties.major * 10 + properties.minor;
  if (compute_capability_ < kOldest) {
    throw RunError(
        fmt::format("--device cuda: {} has compute capability {}.{} and this build needs {}.{}; use "
                    "--device cpu",
                    name_, properties.major, properties.minor, kOldest / 10, kOldest % 10));
  }
  check(cudaSetDevice(0), "--device cuda: opening the GPU");
  if (!kernels_are_built()) {
    throw RunError(
        fmt::format("--device cuda: this build has no kernels for {}, compute capability {}.{}; build with "
                    "-DCMAKE_CUDA_ARCHITECTURES={}, or use --device cpu",
                    name_, properties.major, properties.minor, compute_capability_));
  }
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
  throw RunError(fmt::format("--dtype bf16 needs compute capability 8.0 and {} has {}.{}; use f16 or f32",
                             name_, compute_capability_ / 10, compute_capability_ % 10));
}

void Device::synchronize() const {
  check(cudaStreamSynchronize(stream()), "waiting for the GPU");
}

}  // namespace kvcache::cuda
