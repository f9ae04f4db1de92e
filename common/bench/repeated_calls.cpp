/// @file
/// See repeated_calls.h.
#include "common/bench/repeated_calls.h"

#include <ctime>
#include <vector>

#include "common/bench/statistics.h"

namespace kvcache {

double seconds_of_this_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double time_calls(benchmark::State& state, const Enough& enough, const std::function<double()>& call) {
  std::vector<double> seconds;
  double middle = 0;
  for (auto _ : state) {
    state.PauseTiming();  // else the column "CPU" would count all calls together
    for (double total = 0; std::ssize(seconds) < enough.calls || total < enough.seconds;
         total += seconds.back())
      seconds.push_back(call());
    middle = median(seconds);
    state.ResumeTiming();
    state.SetIterationTime(middle);
  }
  state.counters[kSpread] = quartile_distance_percent(seconds);
  return middle;
}

}  // namespace kvcache
