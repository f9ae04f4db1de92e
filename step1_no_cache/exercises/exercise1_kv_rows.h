/// @file
/// Exercise 1, stated in exercise1_kv_rows.cpp.
#pragma once

#include <cstdint>

#include "common/kv/report.h"

namespace kvcache {

/// Counts the rows of K and V per layer that step 1 computes for one sequence, and those that it had computed
/// before.
/// @param prompt      tokens of the prompt, at least 1
/// @param new_tokens  tokens that follow it; 0: the prompt still goes through the model once
KvRowsReport kv_rows_of_run(std::int64_t prompt, std::int64_t new_tokens);

}  // namespace kvcache
