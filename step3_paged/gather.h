/// @file
/// Gathers the scattered K or V rows of a sequence into one contiguous buffer, on the CPU. Its counterpart,
/// scatter_rows in common/cpu/scatter.h, writes rows to their slots. Chapter: step3_paged/README.md.
#pragma once

#include <cstddef>

#include "common/cpu/attention.h"

namespace kvcache::cpu {

/// Copies the rows of the positions 0 to context - 1 from their slots to `to`, in order of position.
/// @param pool       [slots, row_bytes]
/// @param to         [context, row_bytes]
/// @param row_bytes  bytes of kv_heads * head_dim numbers
void gather_rows(const std::byte* pool, const SlotMap& slots, std::int64_t context, std::int64_t row_bytes,
                 std::byte* to);

}  // namespace kvcache::cpu
