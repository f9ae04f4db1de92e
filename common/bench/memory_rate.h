/// @file
/// How fast this machine reads memory, measured in the process whose times are compared with it.
#pragma once

#include <cstdint>

#include "common/cli/program.h"

namespace kvcache {

/// Bytes per second of reading, from more memory than the caches hold, on the program's device and with all
/// its threads: the best of several sweeps.
double memory_read_rate(const Program& program);

}  // namespace kvcache
