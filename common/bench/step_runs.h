/// @file
/// The results of a step's benchmark program, read from Google Benchmark's JSON. Several rounds of one step
/// are put together as if they were repetitions of one run.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvcache {

/// One run of one benchmark.
struct BenchmarkRun {
  std::string name;  ///< "decode/context:512", without the library's suffix
  double ms = 0;     ///< wall time, > 0
  std::map<std::string, double, std::less<>> counters;  ///< every number of its entry
};

/// The runs of one step with one set of options, in one or several rounds.
struct StepRuns {
  std::string step;      ///< "step3_paged"
  std::string settings;  ///< "random:fairytale, cpu f32, 2 threads, AMD EPYC": must be equal in a table
  std::string when;      ///< "2026-11-28T10:39:17+00:00, commit 1a2b3c4, load 0.4 at the start"
  bool gather = false;   ///< `--attention gather`
  std::vector<std::string> notes;  ///< how to read the program's numbers
  std::vector<BenchmarkRun> runs;  ///< in the order of the file
  nlohmann::ordered_json json;     ///< {"context": {...}, "benchmarks": [runs]}

  /// The name of its column and its file: "step3_paged", "step3_paged_gather".
  std::string name() const { return gather ? step + "_gather" : step; }
};

/// Reads the file that `--benchmark_out` of a step's benchmark program wrote, without its aggregates.
/// @throws InputError, with the file's name, if the file is something else or holds aggregates alone, or if a
/// benchmark in it failed.
StepRuns read_step_runs(const std::filesystem::path& file);

/// Puts the rounds of each step together, in the order in which the steps first appear.
/// @throws InputError if settings differ, or the benchmarks of two rounds of one step.
std::vector<StepRuns> merge_rounds(std::vector<StepRuns> rounds);

/// The runs in Google Benchmark's form, which its compare.py reads: several runs of a benchmark are its
/// repetitions.
nlohmann::ordered_json to_json(const StepRuns& step);

}  // namespace kvcache
