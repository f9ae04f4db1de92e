/// @file
/// How fast this machine reads memory, measured in the same process as what is compared with it.
#pragma once

#include <cstdint>

#include "common/cli/program.h"

namespace kvcache {

/// Bytes per second of reading more memory than the caches hold, on the program's device with all of the
/// program's threads: the best of several sweeps.
double memory_read_rate(const Program& program);

}  // namespace kvcache
