/// @file
/// Writes new rows of K or V to their slots, on the CPU. Chapter: step 1 (slot = row), step 3
/// (scatter).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/dtype.h"
#include "common/base/matrix.h"

namespace kvcache::cpu {

/// Stores row r of `rows` [tokens, cols] at `to` + slots[r] * cols numbers, rounded to `dtype`. A row with
/// slot -1 is not stored.
void scatter_rows(const Matrix& rows, std::span<const std::int64_t> slots, DType dtype, std::byte* to);

}  // namespace kvcache::cpu
