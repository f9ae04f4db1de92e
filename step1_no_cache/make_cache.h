/// @file
/// Step 1's memory as the command line asks for it. Chapter: step1_no_cache/README.md.
#pragma once

#include "common/cli/program.h"

namespace kvcache {

/// For the device and the type of `program`, which must outlive it.
Cache make_no_cache(const Program& program);

}  // namespace kvcache
