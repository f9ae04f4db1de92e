/// @file
/// The operations on the rows of a pass that are neither products nor attention, on the CPU: the norm, the
/// heads' norm and rotation and the MLP's activation. Rows of the embedding: cpu_backend.cpp. Every stored
/// result is rounded once to the activations' type. Chapter: docs/transformer.md.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/dtype.h"
#include "common/base/matrix.h"
#include "common/base/thread_pool.h"

namespace kvcache::cpu {

/// Calls `function(row)` for each of `rows` rows of `cols` numbers, on all threads when there is enough to
/// do.
template <typename Function>
void for_each_row(std::int64_t rows, std::int64_t cols, ThreadPool& threads, Function function) {
  constexpr std::int64_t kSerialNumbers = 16 * 1024;  // up to so many, one thread alone is faster
  constexpr std::int64_t kTaskNumbers = 2 * 1024;     // the fewest of a task
  if (rows * cols < kSerialNumbers) {
    for (std::int64_t row = 0; row < rows; ++row) function(row);
    return;
  }
  threads.run_pieces(rows, std::max<std::int64_t>(1, kTaskNumbers / cols),
                     [&](std::int64_t begin, std::int64_t end) {
                       for (std::int64_t row = begin; row < end; ++row) function(row);
                     });
}

/// out = x / sqrt(mean(x^2) + eps) * weight, for each row. @param out  [rows, cols] as x
void norm_rows(const Matrix& x, const Norm& norm, DType activations, ThreadPool& threads, Matrix& out);

/// Normalises each head of x [rows, heads * head_dim], if `norm` has a weight, then rotates the head, if
/// there is a rotation.
void norm_and_rotate(Matrix& x, std::int64_t head_dim, const Norm& norm, const Rotation& rotation,
                     DType activations, ThreadPool& threads);

/// The same for one row.
void norm_and_rotate_row(Matrix& x, std::int64_t row, std::int64_t head_dim, const Norm& norm,
                         const Rotation& rotation, DType activations);

/// out = silu(gate) * up, where silu(g) = g / (1 + e^-g). @param out  [rows, cols] as gate
void swiglu(const Matrix& gate, const Matrix& up, DType activations, ThreadPool& threads, Matrix& out);

}  // namespace kvcache::cpu
