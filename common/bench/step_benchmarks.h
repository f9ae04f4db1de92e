/// @file
/// The benchmarks that every step has: the same names and workloads, so that any two steps compare line by
/// line. Each is run through the loop of common/engine/run.h, as a user's requests are.
#pragma once

#include <optional>
#include <span>

#include "common/cli/program.h"

namespace kvcache {

/// Runs the benchmarks of a step as a Google Benchmark program. Words that begin with --benchmark_ are Google
/// Benchmark's; the others are the step's own options (--random-weights fairytale if no model is named).
/// Prompts and numbers of tokens are the benchmarks', not the command line's.
/// @return exit code
int run_step_benchmarks(Step step, int argc, char** argv, const MakeCache& make_cache);

/// The words of a benchmark's command line that are not Google Benchmark's, as the step's own options;
/// without a model among them, random weights in the shipped model's shape.
/// @return nothing after --help or --version
/// @throws InputError as parse_options
std::optional<Options> own_options(Step step, std::span<char* const> line);

}  // namespace kvcache
