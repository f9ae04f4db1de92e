/// @file
/// How large a pool the command line asks for.
#pragma once

#include "common/cli/program.h"
#include "step3_paged/paged_shape.h"

namespace kvcache {

/// The pool of --num-blocks or --kv-memory, else just as many blocks as the program's requests need together;
/// with --serve no more of them than Program::memory_to_serve holds.
/// @throws InputError with the numbers, for a size that holds no block or more than the device's memory.
PagedShape paged_shape(const Program& program);

/// @throws InputError if a host tier of that many blocks is more than the machine's memory.
void check_host_tier(std::int64_t blocks, const PagedShape& shape);

}  // namespace kvcache
