/// @file
/// Step 1's memory as the command line asks for it. Chapter: step1_no_cache/README.md.
#pragma once

#include "common/cli/program.h"

namespace kvcache {

/// Makes the manager and the store for the device and the number type of `program`, which must outlive them.
Cache make_no_cache(const Program& program);

}  // namespace kvcache
