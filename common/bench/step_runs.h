/// @file
/// What the benchmark program of a step has measured, read from the JSON that Google Benchmark writes, and
/// several rounds of it put together as if they were one program's repetitions.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvcache {

/// One run of one benchmark.
struct BenchmarkRun {
  std::string name;  ///< "decode/context:512", without what the library appends
  double ms = 0;     ///< wall time, > 0
  std::map<std::string, double, std::less<>> counters;  ///< every number that it has
};

/// The runs of one step with one set of options, in one round or in several.
struct StepRuns {
  std::string step;      ///< "step3_paged"
  std::string settings;  ///< "random:fairytale, cpu f32, 2 threads, AMD EPYC": alike in what can be compared
  std::string when;     ///< "2026-11-28T10:39:17+00:00, commit 1a2b3c4, load 0.4 at the start", what is known
  bool gather = false;  ///< --attention gather
  std::vector<std::string> notes;  ///< of the program: how to read its numbers
  std::vector<BenchmarkRun> runs;  ///< in the order of the file
  nlohmann::ordered_json json;     ///< {"context": {...}, "benchmarks": [runs]}

  /// Of its column and its file: "step3_paged", "step3_paged_gather".
  std::string name() const { return gather ? step + "_gather" : step; }
};

/// Reads --benchmark_out of a step's benchmark program; aggregates in it are left out.
/// @throws InputError, with the file's name, if it is something else, or if a benchmark in it failed.
StepRuns read_step_runs(const std::filesystem::path& file);

/// Puts rounds of the same step together, in the order in which the steps first appear.
/// @throws InputError for rounds of unlike settings, or of one step with unlike benchmarks.
std::vector<StepRuns> merge_rounds(std::vector<StepRuns> rounds);

/// In Google Benchmark's own form, the runs of a benchmark as its repetitions: what its compare.py reads.
nlohmann::ordered_json to_json(const StepRuns& step);

}  // namespace kvcache
