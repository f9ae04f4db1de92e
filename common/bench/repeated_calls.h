/// @file
/// Benchmarks that time their calls one by one: the time that is printed is the median of the calls, not
/// Google Benchmark's mean, and beside it stands how far apart they lie.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>

namespace kvcache {

/// Counters of what a second holds are named so: they are made of the median call.
inline constexpr const char* kGigabytesPerSecond = "GB/s at median";           ///< 10^9 bytes
inline constexpr const char* kGigaflopsPerSecond = "GFLOP/s at median";        ///< 10^9 operations
inline constexpr const char* kTeraflopsPerSecond = "TFLOP/s at median";        ///< 10^12 operations
inline constexpr const char* kTokensPerSecond = "tokens/s at median";          ///< tokens
inline constexpr const char* kOperationsPerSecond = "operations/s at median";  ///< of the bookkeeping
/// The distance of the quartiles in percent of the median: a call that the system broke into moves neither.
inline constexpr const char* kSpread = "IQR %";

/// Seconds of a core that this thread has used, the system's work for it included: what else the machine does
/// is not in them.
double seconds_of_this_thread();

/// How long a benchmark goes on calling.
struct Enough {
  std::int64_t calls = 7;  ///< at least
  double seconds = 0.3;    ///< at least, in all
};

/// Runs the only iteration of a benchmark (UseManualTime, Iterations(1)): calls until there are enough of
/// them, sets the time to their median, and the counter kSpread.
/// @param call  returns the seconds to be counted for it, > 0
/// @return the median, in seconds
double time_calls(benchmark::State& state, const Enough& enough, const std::function<double()>& call);

}  // namespace kvcache
