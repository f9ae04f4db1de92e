/// @file
/// The inner loop of both the matrix product and the attention scores: several rows times several rows at
/// once. Chapter: step 1, "The same bits".
#pragma once

#include "common/cpu/vec16.h"

namespace kvcache {

// Tile sizes that keep the partial sums in registers. They change only the speed: every tile sums an inner
// product in the same order.
#if defined(KVCACHE_AVX512)
inline constexpr int kTileRows = 6;           ///< rows of x in a tile
inline constexpr int kTileOutputs = 4;        ///< rows of w in a tile: 24 of 32 registers
inline constexpr int kSingleRowOutputs = 16;  ///< rows of w in a tile with a single row of x
#else
inline constexpr int kTileRows = 2;
inline constexpr int kTileOutputs = 3;  // 12 of 16 registers on AVX2
inline constexpr int kSingleRowOutputs = 6;
#endif

/// out[r][o] = sum over k < n of x[r][k] * w[o][k], for R rows of floats and O rows of stored numbers.
template <DType dtype, int R, int O>
void dot_tile(const float* const (&x)[R], const std::byte* const (&w)[O], std::int64_t n,
              float (&out)[R][O]) {
  Vec16 sums[R * O];
  for (Vec16& partial : sums) partial = Vec16::all(0.0F);
  const std::int64_t whole = n / 16 * 16;
  for (std::int64_t k = 0; k < whole; k += 16) {
    Vec16 x_lanes[R];
    for (int r = 0; r < R; ++r) x_lanes[r] = Vec16::load(x[r] + k);
    for (int o = 0; o < O; ++o) {
      const Vec16 w_lanes = Vec16::load<dtype>(w[o] + k * size_of(dtype));
      for (int r = 0; r < R; ++r) sums[r * O + o] = fma(x_lanes[r], w_lanes, sums[r * O + o]);
    }
  }
  if (whole < n) {
    for (int o = 0; o < O; ++o) {
      const Vec16 w_lanes = load_tail<dtype>(w[o] + whole * size_of(dtype), n - whole);
      for (int r = 0; r < R; ++r) {
        const auto* x_bytes = reinterpret_cast<const std::byte*>(x[r] + whole);
        sums[r * O + o] = fma(load_tail<DType::f32>(x_bytes, n - whole), w_lanes, sums[r * O + o]);
      }
    }
  }
  float totals[(R * O + 15) / 16 * 16];
  for (int first = 0; first < R * O; first += 16) {
    Vec16 some[16];
    for (int n = 0; n < 16; ++n) some[n] = first + n < R * O ? sums[first + n] : Vec16::all(0.0F);
    sum_each(some).store(totals + first);
  }
  std::memcpy(out, totals, sizeof out);
}

/// Covers [begin, end) with tiles of R rows and the rest with smaller tiles: calls `function.template
/// operator()<R>(row)`.
template <int R, typename Function>
void in_tiles(std::int64_t begin, std::int64_t end, const Function& function) {
  for (; begin + R <= end; begin += R) function.template operator()<R>(begin);
  if constexpr (R > 1) in_tiles<R - 1>(begin, end, function);
}

/// Calls `function.template operator()<dtype>()` for the run-time `dtype`.
template <typename Function>
auto with_dtype(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::f16:
      return function.template operator()<DType::f16>();
    case DType::bf16:
      return function.template operator()<DType::bf16>();
    default:
      return function.template operator()<DType::f32>();
  }
}

}  // namespace kvcache
