/// @file
/// The table of ./steps bench: the same workloads in every step, side by side, and how their cost grows.
#pragma once

#include <span>
#include <string>

#include "common/bench/step_runs.h"

namespace kvcache {

/// One row per workload, one column per step: the median of its runs in ms, its ratio to the step before, and
/// the spread of the runs. Under a row stands what explains its time, and, with a `!`, what spoils it. Then,
/// for workloads that differ in their last number only and come in at least four sizes, the exponent of the
/// time per token against the context and its spread over the rounds, above the points that it was fitted to.
/// Then the notes.
std::string benchmark_table(std::span<const StepRuns> steps);

}  // namespace kvcache
