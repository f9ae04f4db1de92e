/// @file
/// Step 3's manager and store, in the size that the command line asks for. Chapter: step3_paged/README.md.
#pragma once

#include "common/cli/program.h"

namespace kvcache {

/// A pool for the requests of `program`, which must outlive it.
/// @throws InputError for a pool size that is impossible, or a prompt that the pool could never hold;
/// RunError when there is not enough memory.
Cache make_paged_cache(const Program& program);

}  // namespace kvcache
