// The report of a benchmark that times its calls one by one.
#include "common/bench/repeated_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvcache {
namespace {

using Reported = benchmark::BenchmarkReporter::Run;

/// Keeps the reported runs.
class Kept : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Reported>& runs) override {
    this->runs.insert(this->runs.end(), runs.begin(), runs.end());
  }
  std::vector<Reported> runs;
};

/// Runs a benchmark whose calls take these times, and then the last one for ever.
Reported report_of_calls(const std::vector<double>& seconds, const Enough& enough, std::size_t* called) {
  *called = 0;
  benchmark::RegisterBenchmark(
      "calls",
      [&](benchmark::State& state) {
        time_calls(state, enough, [&] { return seconds[std::min((*called)++, seconds.size() - 1)]; });
      })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kSecond);
  Kept kept;
  benchmark::RunSpecifiedBenchmarks(&kept);
  benchmark::ClearRegisteredBenchmarks();
  return kept.runs.at(0);
}

TEST(RepeatedCalls, ReportTheMedianAndTheDistanceOfTheQuartiles) {
  std::size_t called = 0;
  const Reported run = report_of_calls({8, 1000, 10, 9, 11}, {.calls = 5, .seconds = 0}, &called);
  EXPECT_EQ(run.GetAdjustedRealTime(), 10);
  EXPECT_EQ(run.counters.at(kSpread), 20);
  EXPECT_EQ(called, 5U);
}

TEST(RepeatedCalls, GoOnUntilTheyAreManyAndLongEnough) {
  std::size_t called = 0;
  report_of_calls({1}, {.calls = 2, .seconds = 6}, &called);
  EXPECT_EQ(called, 6U);
  report_of_calls({1}, {.calls = 9, .seconds = 6}, &called);
  EXPECT_EQ(called, 9U);
}

}  // namespace
}  // namespace kvcache
