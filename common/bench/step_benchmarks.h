/// @file
/// The benchmarks that every step has, with the same names and workloads, so any two steps compare line by
/// line. Each runs through the loop of common/engine/run.h, as a user's requests do.
#pragma once

#include <optional>
#include <span>

#include "common/cli/program.h"

namespace kvcache {

/// Runs the benchmarks of a step as a Google Benchmark program. Words that begin with `--benchmark_` are
/// options of Google Benchmark; the others are the step's own (`--random-weights fairytale` if no model is
/// named). The workloads set prompts and numbers of tokens.
/// @return exit code
int run_step_benchmarks(Step step, int argc, char** argv, const MakeCache& make_cache);

/// The step's own options of a benchmark's command line, without Google Benchmark's. If no model is named:
/// random weights in the shipped model's shape.
/// @return no value after `--help` or `--version`
/// @throws InputError as parse_options
std::optional<Options> own_options(Step step, std::span<char* const> line);

}  // namespace kvcache
