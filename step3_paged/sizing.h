/// @file
/// How many blocks the pool has: what the command line asks for, or what the requests need. Chapter:
/// step3_paged/README.md.
#pragma once

#include "common/cli/program.h"
#include "step3_paged/paged_shape.h"

namespace kvcache {

/// The pool that --num-blocks or --kv-memory asks for. Without these options it has as many blocks as the
/// program's requests need together; with --serve at most as many as Program::memory_to_serve holds.
/// @throws InputError with the numbers, for a size that holds no block or more than the device's memory.
PagedShape paged_shape(const Program& program);

/// Blocks of the smallest pool that has `wanted` blocks above its watermark.
std::int64_t blocks_with_watermark(std::int64_t wanted);

/// Checks the size of step 4's host tier.
/// @throws InputError if `blocks` blocks take more than the machine's memory.
void check_host_tier(std::int64_t blocks, const PagedShape& shape);

}  // namespace kvcache
