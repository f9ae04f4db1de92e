/// @file
/// The table of ./steps bench: the same workloads in every step, side by side, and how their cost grows.
#pragma once

#include <span>
#include <string>

#include "common/bench/step_runs.h"

namespace kvcache {

/// The table as text, in three parts:
///
/// 1. One row per workload, one column per step: the median of the runs in ms, its ratio to the step before,
///    the spread of the runs. Rows under it give counters that explain a time, and, with a `!`, counters that
///    spoil it.
/// 2. For workloads that differ only in their last number and have at least four sizes: the exponent of the
///    time per token against the context, with its spread over the rounds, above the points that it was
///    fitted to.
/// 3. The notes.
std::string benchmark_table(std::span<const StepRuns> steps);

}  // namespace kvcache
