/// @file
/// The walk-through of step 1 on the terminal (`--demo`): what a token costs as the sequence grows.
#pragma once

#include "common/engine/report.h"

namespace kvcache {

/// Prints a bar chart of the time per token against the length of the sequence, and how many K/V rows each of
/// these tokens had computed anew.
void print_growth(const Report& report);

}  // namespace kvcache
