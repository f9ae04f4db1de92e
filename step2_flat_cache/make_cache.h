/// @file
/// Step 2's memory as the command line asks for it. Chapter: step2_flat_cache/README.md.
#pragma once

#include "common/cli/program.h"

namespace kvcache {

/// Makes one reservation for each request of `program`, which must outlive the result.
/// @throws InputError for a prompt that its reservation could never hold; RunError when there is too little
/// memory.
Cache make_flat_cache(const Program& program);

}  // namespace kvcache
