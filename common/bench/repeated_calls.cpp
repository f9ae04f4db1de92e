/// @file
/// See repeated_calls.h.
#include "common/bench/repeated_calls.h"

#include <numeric>
#include <vector>

#include "common/bench/statistics.h"

namespace kvcache {

double time_calls(benchmark::State& state, const Enough& enough, const std::function<double()>& call) {
  std::vector<double> seconds;
  double middle = 0;
  for (auto _ : state) {
    state.PauseTiming();  // the column "CPU" would hold all calls together
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
