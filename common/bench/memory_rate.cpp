/// @file
/// See memory_rate.h.
#include "common/bench/memory_rate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "common/cpu/vec16.h"
#ifdef WITH_CUDA
#include "common/bench/read_sweep.h"
#include "common/cuda/memory.h"
#endif

namespace kvcache {
namespace {

constexpr int kSweeps = 5;

/// Seconds of the fastest of several calls.
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

/// Reads all numbers with vector loads, four at a time.
float sum_of(const float* numbers, std::int64_t count) {
  Vec16 sums[4] = {Vec16::all(0), Vec16::all(0), Vec16::all(0), Vec16::all(0)};
  for (std::int64_t at = 0; at + 64 <= count; at += 64) {
    for (int n = 0; n < 4; ++n) sums[n] = sums[n] + Vec16::load(numbers + at + 16 * n);
  }
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

double cpu_rate(ThreadPool& pool) {
  constexpr std::int64_t kNumbers =
      (std::int64_t{512} << 20) / 4;  // more than the last-level caches of servers
  constexpr std::int64_t kPiece = 1 << 18;
  const std::vector<float> numbers(kNumbers, 1.0F);
  std::vector<float> sums(kNumbers / kPiece);
  const double time = fastest([&] {
    pool.run(std::ssize(sums), [&](std::int64_t piece) {
      sums[static_cast<std::size_t>(piece)] = sum_of(numbers.data() + piece * kPiece, kPiece);
    });
  });
  return kNumbers * 4 / time;
}

#ifdef WITH_CUDA
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
#endif

}  // namespace

double memory_read_rate(const Program& program) {
#ifdef WITH_CUDA
  if (program.gpu) return gpu_rate(*program.gpu);
#endif
  return cpu_rate(*program.pool);
}

}  // namespace kvcache
