/// @file
/// Collecting a sequence's scattered K or V rows into one contiguous buffer, on the CPU. Chapter:
/// step3_paged/README.md. Its counterpart, writing rows to their slots, is scatter_rows in
/// common/cpu/scatter.h.
#pragma once

#include <cstddef>

#include "common/cpu/attention.h"

namespace kvcache::cpu {

/// Copies the rows of the positions [0, context) from where `slots` says to `to`, one after the other.
/// @param pool       [slots, row_bytes]
/// @param to         [context, row_bytes]
/// @param row_bytes  kv_heads * head_dim numbers
void gather_rows(const std::byte* pool, const SlotMap& slots, std::int64_t context, std::int64_t row_bytes,
                 std::byte* to);

}  // namespace kvcache::cpu
