/// @file
/// The walk-through of step 3 on the terminal (`--demo`): block tables and pool, drawn while three sequences
/// come, grow and go.
#pragma once

#include "common/cli/program.h"

namespace kvcache {

/// Replays the run's token ids through a PagedManager with blocks of four tokens and draws each moment;
/// then compares the memory of all sequences with step 2's reservations.
void print_walk_through(const Program& program, const Report& report);

}  // namespace kvcache
