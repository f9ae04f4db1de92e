/// @file
/// Benchmarks that time their calls one by one. They print the median of the calls in place of Google
/// Benchmark's mean, and beside it how far apart the calls lie.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>

namespace kvcache {

/// The names of counters per second, which are made from the median call.
inline constexpr const char* kGigabytesPerSecond = "GB/s at median";           ///< 10^9 bytes
inline constexpr const char* kGigaflopsPerSecond = "GFLOP/s at median";        ///< 10^9 operations
inline constexpr const char* kTeraflopsPerSecond = "TFLOP/s at median";        ///< 10^12 operations
inline constexpr const char* kTokensPerSecond = "tokens/s at median";          ///< tokens per second
inline constexpr const char* kOperationsPerSecond = "operations/s at median";  ///< of the bookkeeping
/// The distance of the quartiles in percent of the median. A single call that was interrupted moves neither.
inline constexpr const char* kSpread = "IQR %";

/// The seconds of a core that this thread has used, with the system's work for it. Other programs' time is
/// not in it.
double seconds_of_this_thread();

/// When a benchmark has made enough calls: both limits are reached.
struct Enough {
  std::int64_t calls = 7;  ///< the fewest calls
  double seconds = 0.3;    ///< the shortest time of all calls
};

/// Runs the only iteration of a benchmark (UseManualTime, Iterations(1)): makes enough calls, and sets the
/// time to their median and the counter kSpread to their spread.
/// @param call  returns its own seconds, > 0; on a GPU it must wait for the device before it reads the clock
/// @return the median, in seconds
double time_calls(benchmark::State& state, const Enough& enough, const std::function<double()>& call);

}  // namespace kvcache
