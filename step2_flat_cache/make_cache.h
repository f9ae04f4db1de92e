/// @file
/// Step 2's memory as the command line asks for it. Chapter: step2_flat_cache/README.md.
#pragma once

#include "common/cli/program.h"

namespace kvcache {

/// One reservation per request of `program`, which must outlive it.
/// @throws InputError for a prompt that its reservation could never hold; RunError when there is no memory.
Cache make_flat_cache(const Program& program);

}  // namespace kvcache
