/// @file
/// How large a pool the command line asks for.
#pragma once

#include "common/cli/program.h"
#include "step3_paged/kv_cache_manager.h"

namespace kvcache {

/// The pool of --num-blocks or --kv-memory, else just as many blocks as the program's requests need together.
/// @throws InputError with the numbers, for a size that holds no block or more than the machine's memory.
PagedShape paged_shape(const Program& program);

/// @param what  "a pool"
/// @throws InputError if that many blocks are more than the machine's memory.
void check_memory(const char* what, std::int64_t blocks, const PagedShape& shape);

}  // namespace kvcache
