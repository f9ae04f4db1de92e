/// @file
/// The inner loop of both the matrix product and the attention scores: several rows times several rows at
/// once. Each number that is loaded is used several times, so the multiply-adds set the pace and not the
/// loads. Chapter: step 1, "The same bits".
#pragma once

#include <algorithm>

#include "common/cpu/lines.h"

namespace kvcache {

// Tile sizes that keep the partial sums in registers. They change only the speed: every tile sums an inner
// product in the same order.
#if defined(KVCACHE_AVX512)
inline constexpr int kTileRows = 6;     ///< rows of x in a tile
inline constexpr int kTileOutputs = 4;  ///< rows of w in a tile: 24 of 32 registers
#else
inline constexpr int kTileRows = 3;
inline constexpr int kTileOutputs = 2;  // 12 of 16 registers on AVX2
#endif

/// Partial sums of R rows of x times kTileOutputs rows of w.
template <int R>
using TileSums = Vec16[R * kTileOutputs];

/// Adds to the sums the products of `lines` lines of R rows of x and kTileOutputs rows of w, and calls
/// `meanwhile(line)` for each line.
/// @param x  for each row its first line
/// @param w  [lines, kTileOutputs]: the rows' first lines, then their second ones, and so on
///
/// Always part of its caller: only there the sums are known to lie apart from x, and stay in registers.
template <cpu::LineKind kind, int R, typename Meanwhile>
[[gnu::always_inline]] inline void multiply_tile(const std::byte* const (&x)[R], const cpu::Line* w,
                                                 std::int64_t lines, TileSums<R>& sums,
                                                 const Meanwhile& meanwhile) {
  using cpu::Lanes;
  constexpr DType in_line = cpu::dtype_in(kind);
  for (std::int64_t line = 0; line < lines; ++line, w += kTileOutputs) {
    meanwhile(line);
    Lanes<kind> weights[kTileOutputs];
    for (int o = 0; o < kTileOutputs; ++o) weights[o] = Lanes<kind>::template load<in_line>(w[o].bytes);
    for (int r = 0; r < R; ++r) {
      auto numbers = Lanes<kind>::template load<in_line>(x[r] + line * cpu::kLineBytes);
      hold(numbers);
      for (int o = 0; o < kTileOutputs; ++o) {
        Vec16& sum = sums[r * kTileOutputs + o];
        sum = multiply_add(numbers, weights[o], sum);
      }
    }
  }
}

/// The same with nothing to do meanwhile.
template <cpu::LineKind kind, int R>
[[gnu::always_inline]] inline void multiply_tile(const std::byte* const (&x)[R], const cpu::Line* w,
                                                 std::int64_t lines, TileSums<R>& sums) {
  multiply_tile<kind, R>(x, w, lines, sums, [](std::int64_t) {});
}

/// products[r][o] = sum of the lanes of sums[r * kTileOutputs + o].
template <int R>
[[gnu::always_inline]] inline void sum_tile(const TileSums<R>& sums, float* const (&products)[R]) {
  float totals[(R * kTileOutputs + 15) / 16 * 16];
  for (int first = 0; first < R * kTileOutputs; first += 16) {
    Vec16 some[16];
    for (int n = 0; n < 16; ++n) some[n] = first + n < R * kTileOutputs ? sums[first + n] : Vec16::all(0.0F);
    sum_each(some).store(totals + first);
  }
  for (int r = 0; r < R; ++r) std::copy_n(totals + r * kTileOutputs, kTileOutputs, products[r]);
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
