/// @file
/// Step 4's memory as the command line asks for it. Chapter: step4_prefix_cache/README.md.
#pragma once

#include "common/cli/program.h"

namespace kvcache {

/// A pool for the requests of `program`, with sharing as its options say. `program` must outlive it.
/// @throws InputError for a pool or a host tier that cannot be, or a prompt that the pool could never hold;
/// RunError when there is no memory.
Cache make_prefix_cache(const Program& program);

}  // namespace kvcache
