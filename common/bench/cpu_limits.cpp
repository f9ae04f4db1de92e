/// @file
/// See cpu_limits.h.
#include "common/bench/cpu_limits.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "common/cpu/reserved_memory.h"
#include "common/cpu/vec16.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBytes = std::int64_t{1} << 30;  // few last-level caches hold half of it
constexpr std::int64_t kPiece = 256 << 10;              // bytes that a thread takes at a time
/// The work that is timed as a whole. It is long beside the start of threads, and short beside the
/// milliseconds after which the system gives a core to another program.
constexpr std::int64_t kStretchPieces = 32;  // per thread
constexpr int kRounds = 3;                   // over the whole memory

/// Sums that grow side by side: enough to keep all multiply-add units of a core busy, few enough for its
/// registers.
#if defined(KVCACHE_AVX512)
constexpr int kSums = 12;
#else
constexpr int kSums = 6;
#endif

/// The seconds that one call takes.
template <typename Call>
double seconds_of(const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Memory that is in use, in large pages if possible: with pages of 4 KiB a third of the time goes into
/// finding pages. Every thread writes a part first, so a machine with several memories uses all of them.
ReservedMemory memory_in_use(std::int64_t bytes, ThreadPool& threads) {
  ReservedMemory memory(bytes);
#ifdef MADV_HUGEPAGE
  madvise(memory.data(), static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // may fail: small pages work, too
#endif
  threads.run_pieces(bytes, kPiece, [&](std::int64_t begin, std::int64_t end) {
    std::memset(memory.data() + begin, 1, static_cast<std::size_t>(end - begin));
  });
  return memory;
}

/// Calls `work` with the offset of each piece of `bytes` bytes, stretch by stretch, kRounds times.
/// @return bytes per second of the fastest stretch
template <typename Work>
double best_rate(std::int64_t bytes, ThreadPool& threads, const Work& work) {
  const std::int64_t stretch = kStretchPieces * kPiece * threads.threads();
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    for (std::int64_t begin = 0; begin + stretch <= bytes; begin += stretch) {
      best = std::min(best, seconds_of([&] {
                        threads.run(kStretchPieces * threads.threads(),
                                    [&](std::int64_t piece) { work(begin + piece * kPiece); });
                      }));
    }
  }
  return static_cast<double>(stretch) / best;
}

/// Reads one piece with vector loads. Each load prefetches the line 16 cache lines ahead: the processor's own
/// prefetching reaches five sixths of this rate.
float sum_of_piece(const std::byte* bytes) {
  constexpr std::int64_t kVectors = 8, kLine = 64, kAhead = 16 * kLine;
  Vec16 sums[kVectors];
  for (Vec16& lanes : sums) lanes = Vec16::all(0);
  for (std::int64_t at = 0; at < kPiece; at += kVectors * kLine) {
    for (std::int64_t n = 0; n < kVectors; ++n) {
      const std::byte* line = bytes + at + n * kLine;
      __builtin_prefetch(line + kAhead);
      sums[n] = sums[n] + Vec16::load<DType::f32>(line);
    }
  }
  for (std::int64_t n = 1; n < kVectors; ++n) sums[0] = sums[0] + sums[n];
  return sum(sums[0]);
}

}  // namespace

double cpu_read_rate(ThreadPool& threads) {
  const ReservedMemory memory = memory_in_use(kBytes, threads);
  std::vector<float> sums(kBytes / kPiece);  // never read, which the compiler does not know
  return best_rate(kBytes, threads, [&](std::int64_t at) {
    sums[static_cast<std::size_t>(at / kPiece)] = sum_of_piece(memory.data() + at);
  });
}

double cpu_copy_rate(ThreadPool& threads) {
  const ReservedMemory from = memory_in_use(kBytes / 2, threads), to = memory_in_use(kBytes / 2, threads);
  return 2 * best_rate(kBytes / 2, threads, [&](std::int64_t at) {
           std::memcpy(to.data() + at, from.data() + at, static_cast<std::size_t>(kPiece));
         });
}

double cpu_multiply_add_rate(ThreadPool& threads) {
  constexpr std::int64_t kSteps = 10'000, kStretches = 500;
  std::vector<float> results(static_cast<std::size_t>(threads.threads()) * 4);
  const auto work = [&](std::int64_t task) {
    Vec16 sums[kSums];
    for (Vec16& lanes : sums) lanes = Vec16::all(static_cast<float>(task));
    const Vec16 x = Vec16::all(0.5F), y = Vec16::all(results[static_cast<std::size_t>(task)]);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      for (Vec16& lanes : sums) lanes = fma(lanes, x, y);
    }
    for (int n = 1; n < kSums; ++n) sums[0] = sums[0] + sums[n];
    results[static_cast<std::size_t>(task)] = sum(sums[0]);
  };
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t stretch = 0; stretch < kStretches; ++stretch)
    best = std::min(best, seconds_of([&] { threads.run(std::ssize(results), work); }));
  return static_cast<double>(std::ssize(results) * kSteps * kSums * 16 * 2) / best;
}

}  // namespace kvcache
