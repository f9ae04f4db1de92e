/// @file
/// The walk-through of step 1 on the terminal (`--demo`): what a token costs as the sequence grows.
#pragma once

#include "common/engine/report.h"

namespace kvcache {

/// Prints a bar chart: for growing sequences, the time of a new token and the K/V rows that were computed for
/// it.
void print_growth(const Report& report);

}  // namespace kvcache
