/// @file
/// See rows.h. Short loops over a row, sixteen numbers at a time.
#include "common/cpu/rows.h"

#include <cmath>

#include "common/base/stored_number.h"
#include "common/cpu/dot_tile.h"

namespace kvcache::cpu {
namespace {

/// Sum of squares of x [cols] in the order of vec16.h.
float sum_of_squares(const float* x, std::int64_t cols) {
  Vec16 squares = Vec16::all(0.0F);
  std::int64_t at = 0;
  for (; at + 16 <= cols; at += 16) {
    const Vec16 lanes = Vec16::load(x + at);
    squares = fma(lanes, lanes, squares);
  }
  if (at < cols) {
    const Vec16 lanes = load_tail<DType::f32>(reinterpret_cast<const std::byte*>(x + at), cols - at);
    squares = fma(lanes, lanes, squares);
  }
  return sum(squares);
}

/// out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
template <DType stored, DType activation>
void normalise(const float* x, std::int64_t cols, const Norm& norm, float* out) {
  const Weight& weight = norm.weight;
  const float scale = 1.0F / std::sqrt(sum_of_squares(x, cols) / static_cast<float>(cols) + norm.eps);
  std::int64_t at = 0;
  for (; at + 16 <= cols; at += 16) {
    const Vec16 gain = Vec16::load<stored>(weight.data + at * size_of(stored));
    round_to<activation>(Vec16::load(x + at) * Vec16::all(scale) * gain).store(out + at);
  }
  for (; at < cols; ++at) {
    out[at] = round_to(activation, x[at] * scale * read_number(stored, weight.data + at * size_of(stored)));
  }
}

void normalise(const float* x, std::int64_t cols, const Norm& norm, DType activation, float* out) {
  with_dtype(norm.weight.dtype, [&]<DType stored>() {
    with_dtype(activation, [&]<DType rounded>() { normalise<stored, rounded>(x, cols, norm, out); });
  });
}

/// Turns the pairs (d, d + half) of one head by the angles whose cosines and sines are given, [half].
template <DType activation>
void rotate(float* head, std::int64_t half, const float* cosines, const float* sines) {
  float* const other = head + half;
  std::int64_t d = 0;
  for (; d + 16 <= half; d += 16) {
    const Vec16 first = Vec16::load(head + d), second = Vec16::load(other + d);
    const Vec16 cosine = Vec16::load(cosines + d), sine = Vec16::load(sines + d);
    round_to<activation>(first * cosine - second * sine).store(head + d);
    round_to<activation>(second * cosine + first * sine).store(other + d);
  }
  for (; d < half; ++d) {
    const float first = head[d], second = other[d];
    head[d] = round_to(activation, first * cosines[d] - second * sines[d]);
    other[d] = round_to(activation, second * cosines[d] + first * sines[d]);
  }
}

}  // namespace

void norm_rows(const Matrix& x, const Norm& norm, DType activations, ThreadPool& threads, Matrix& out) {
  for_each_row(x.rows, x.cols, threads,
               [&](std::int64_t row) { normalise(x.row(row), x.cols, norm, activations, out.row(row)); });
}

void norm_and_rotate_row(Matrix& x, std::int64_t row, std::int64_t head_dim, const Norm& norm,
                         const Rotation& rotation, DType activations) {
  const std::int64_t half = head_dim / 2;
  for (float* head = x.row(row); head < x.row(row) + x.cols; head += head_dim) {
    if (norm.weight.present()) normalise(head, head_dim, norm, activations, head);
    if (rotation.cosines == nullptr) continue;
    with_dtype(activations, [&]<DType dtype>() {
      rotate<dtype>(head, half, rotation.cosines + row * half, rotation.sines + row * half);
    });
  }
}

void norm_and_rotate(Matrix& x, std::int64_t head_dim, const Norm& norm, const Rotation& rotation,
                     DType activations, ThreadPool& threads) {
  for_each_row(x.rows, x.cols, threads,
               [&](std::int64_t row) { norm_and_rotate_row(x, row, head_dim, norm, rotation, activations); });
}

void swiglu(const Matrix& gate, const Matrix& up, DType activations, ThreadPool& threads, Matrix& out) {
  for_each_row(gate.rows, gate.cols, threads, [&](std::int64_t row) {
    // Rows are padded to whole vectors, so the last vector may be computed in full.
    for (std::int64_t col = 0; col < gate.cols; col += 16) {
      const Vec16 g = Vec16::load(gate.row(row) + col);
      const Vec16 silu = g / (Vec16::all(1.0F) + exp(Vec16::all(0.0F) - g));
      const Vec16 product = silu * Vec16::load(up.row(row) + col);
      with_dtype(activations, [&]<DType dtype>() { round_to<dtype>(product).store(out.row(row) + col); });
    }
  });
}

}  // namespace kvcache::cpu
