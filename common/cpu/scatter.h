/// @file
/// Writes new rows of K or V to their slots, on the CPU. Chapter: step 1 (slot = row), step 3 (scatter).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/dtype.h"
#include "common/base/matrix.h"
#include "common/base/thread_pool.h"
#include "common/kv/kv_store.h"

namespace kvcache::cpu {

/// Stores row r of `rows` [tokens, cols] at `to` + slots[r] * cols numbers, rounded to `dtype`. A row with
/// slot -1 is not stored; no other slot may occur twice.
void scatter_rows(const Matrix& rows, std::span<const std::int64_t> slots, DType dtype, std::byte* to,
                  ThreadPool& threads);

/// Normalises and rotates the heads of q and k, then stores k and v at their slots, as `scatter_rows` does.
/// The first half of KvStore::store_and_attend.
/// @param dtype             of the activations and of the store
/// @param k_store, v_store  [slots, kv_heads, head_dim]
void rotate_and_store(const HeadSettings& heads, std::int64_t head_dim, const NewRows& rows,
                      std::span<const std::int64_t> slots, DType dtype, std::byte* k_store,
                      std::byte* v_store, ThreadPool& threads);

}  // namespace kvcache::cpu
