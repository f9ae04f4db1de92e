/// @file
/// See memory_rate.h.
#include "common/bench/memory_rate.h"

#include "common/bench/cpu_limits.h"
#ifdef WITH_CUDA
#include <algorithm>
#include <chrono>

#include "common/bench/read_sweep.h"
#include "common/cuda/memory.h"
#endif

namespace kvcache {
#ifdef WITH_CUDA
namespace {

constexpr int kSweeps = 5;

/// The seconds of the fastest of kSweeps calls. Each call ends with a wait for the device.
template <typename Call>
double fastest(const Call& call) {
  double best = 1e30;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

double gpu_rate(const cuda::Device& device) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  const cuda::DeviceBuffer<std::byte> data(kBytes, "the measurement of the memory rate");
  const cuda::DeviceBuffer<std::uint32_t> sink(1, "the measurement of the memory rate");
  cuda::fill_with_random(DType::f32, data.data(), kBytes / 4, 1, device.stream());
  device.synchronize();
  return kBytes / fastest([&] {
           cuda::read_sweep(data.data(), kBytes, sink.data(), device.stream());
           device.synchronize();
         });
}

}  // namespace
#endif

double memory_read_rate(const Program& program) {
#ifdef WITH_CUDA
  if (program.gpu) return gpu_rate(*program.gpu);
#endif
  return cpu_read_rate(*program.threads);
}

}  // namespace kvcache
