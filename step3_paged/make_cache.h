/// @file
/// Step 3's memory as the command line asks for it. Chapter: step3_paged/README.md.
#pragma once

#include "common/cli/program.h"

namespace kvcache {

/// A pool for the requests of `program`, which must outlive it.
/// @throws InputError for a pool that cannot be, or a prompt that it could never hold; RunError when there is
/// no memory.
Cache make_paged_cache(const Program& program);

}  // namespace kvcache
