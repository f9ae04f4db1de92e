/// @file
/// The walk-through of step 2 on the terminal (`--demo`): how much of each sequence's reservation was ever
/// filled.
#pragma once

#include <cstdint>

#include "common/engine/report.h"

namespace kvcache {

/// Draws one bar per sequence: positions filled out of the `max_seq_len` reserved.
void print_reservations(const Report& report, std::int64_t max_seq_len);

}  // namespace kvcache
