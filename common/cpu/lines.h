/// @file
/// What the matrix product and attention multiply: lines of 64 bytes, one register. A line holds sixteen
/// floats. Where the processor multiplies bf16 itself and both factors are in bf16, it holds 32 numbers of
/// bf16; this halves the instructions and the bytes. Chapter: step 1, "The same bits".
///
/// Either way an inner product keeps sixteen partial sums. With floats lane l takes the elements l, l + 16,
/// ...; with bf16 it takes the pairs 2 l and 2 l + 1, 2 l + 32 and 2 l + 33, ... Matrix tiles have an order
/// of their own (matrix_tiles.h). Attention's weights are rounded to bf16, and multiplied with the values of
/// two keys at a time. So a build for such a processor gives other bits in bf16 than other builds do. Within
/// a build the order is one and the same for every number of rows, outputs and threads.
#pragma once

#include <algorithm>
#include <vector>

#include "common/cpu/vec16.h"

// AMD's Zen 4 and later multiply 32 pairs of bf16 in the time of sixteen floats. Sapphire Rapids takes twice
// as long as for floats (record: docs/results/2026-11-30-cpu-products.md), but it has matrix tiles. GCC 12
// calls a Zen 4 znver3, with AVX-512.
#if defined(KVCACHE_AVX512) && (defined(__znver3__) || defined(__znver4__) || defined(__znver5__))
#define KVCACHE_ZEN_AVX512 1
#if defined(__AVX512BF16__)
#define KVCACHE_BF16_DOT 1
#endif
#endif
#if defined(KVCACHE_AVX512) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define KVCACHE_BF16_TILES 1
#endif

namespace kvcache::cpu {

/// 64 bytes that begin on a cache line; a load that straddles two takes twice as long.
struct alignas(64) Line {
  std::byte bytes[64];  ///< numbers, packed
};

/// Bytes from one line to the next.
inline constexpr std::int64_t kLineBytes = sizeof(Line);

/// Room for `lines` lines, with any content. `memory` only grows: to shrink it and grow it again, as for one
/// product after the other, would fill it with zeros each time.
inline Line* room(std::vector<Line>& memory, std::int64_t lines) {
  if (std::ssize(memory) < lines) memory.resize(static_cast<std::size_t>(lines));
  return memory.data();
}

/// What a line holds.
enum class LineKind {
  floats,  ///< 16 float32
  bf16,    ///< 32 bf16; only with KVCACHE_BF16_DOT
};

/// Numbers in a line.
constexpr std::int64_t numbers_in(LineKind kind) {
  return kind == LineKind::floats ? 16 : 32;
}

/// Lines that hold `cols` numbers.
constexpr std::int64_t lines_for(LineKind kind, std::int64_t cols) {
  return (cols + numbers_in(kind) - 1) / numbers_in(kind);
}

/// What the lines of x and W hold when x is rounded to `activations` and W is stored in `weights`.
constexpr LineKind line_kind([[maybe_unused]] DType activations, [[maybe_unused]] DType weights) {
#if defined(KVCACHE_BF16_DOT)
  if (activations == DType::bf16 && weights == DType::bf16) return LineKind::bf16;
#endif
  return LineKind::floats;
}

/// A line in a register.
template <LineKind kind>
struct Lanes;

template <>
struct Lanes<LineKind::floats> {
  Vec16 numbers;  ///< as floats
  /// The line of stored numbers at `from`, widened; it need not be aligned.
  template <DType stored>
  static Lanes load(const std::byte* from) {
    return {Vec16::load<stored>(from)};
  }
  /// Number `at` of a row of floats in every lane.
  static Lanes all(const std::byte* row, std::int64_t at) {
    return {Vec16::all(reinterpret_cast<const float*>(row)[at])};
  }
  /// Stores sixteen numbers; returns them as they read back.
  static Vec16 store_rounded(Vec16 x, std::byte* to) {
    x.store<DType::f32>(to);
    return x;
  }
  /// As a line in memory.
  Line line() const {
    Line line;
    numbers.store<DType::f32>(line.bytes);
    return line;
  }
  friend void hold(Lanes& line) { hold(line.numbers); }
  /// sums + x * w, lane by lane.
  friend Vec16 multiply_add(Lanes x, Lanes w, Vec16 sums) { return fma(x.numbers, w.numbers, sums); }
};

#if defined(KVCACHE_BF16_DOT)
template <>
struct Lanes<LineKind::bf16> {
  __m512i numbers;  ///< in bf16, two a lane
  template <DType stored>
  static Lanes load(const std::byte* from) {
    static_assert(stored == DType::bf16);
    return {_mm512_loadu_si512(from)};
  }
  /// Sixteen numbers of each of two rows: lane l has number l of both.
  static Lanes of_both(const std::byte* first, const std::byte* second) {
    alignas(64) static constexpr std::uint16_t kInTurns[] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                             37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                             11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const auto load = [](const std::byte* from) {
      return _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    };
    return {_mm512_permutex2var_epi16(load(first), _mm512_load_si512(kInTurns), load(second))};
  }
  /// Every other one of 32 numbers of each of two rows, from number `offset`, 0 or 1, on.
  template <int offset>
  static Lanes every_other_of_both(const std::byte* first, const std::byte* second) {
    const __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
    constexpr __mmask32 kOdd = 0xAAAAAAAA;
    if constexpr (offset == 0) return {_mm512_mask_blend_epi16(kOdd, a, _mm512_slli_epi32(b, 16))};
    return {_mm512_mask_blend_epi16(kOdd, _mm512_srli_epi32(a, 16), b)};
  }
  /// Numbers `at` and `at` + 1 of a row of bf16 in every lane.
  static Lanes all(const std::byte* row, std::int64_t at) {
    std::int32_t both;
    std::memcpy(&both, row + at * size_of(DType::bf16), sizeof both);
    return {_mm512_set1_epi32(both)};
  }
  /// Stores sixteen numbers, rounded to bf16; returns them as they read back. Denormals become 0.
  static Vec16 store_rounded(Vec16 x, std::byte* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), __m256i(_mm512_cvtneps_pbh(x.lanes)));
    return Vec16::load<DType::bf16>(to);
  }
  /// As a line in memory.
  Line line() const {
    Line line;
    _mm512_store_si512(line.bytes, numbers);
    return line;
  }
  /// The first number of each lane; 0 in place of the second.
  friend Lanes first_of_each(Lanes line) {
    return {_mm512_and_si512(line.numbers, _mm512_set1_epi32(0xFFFF))};
  }
  friend void hold(Lanes& line) { asm("" : "+v"(line.numbers)); }
  friend Vec16 multiply_add(Lanes x, Lanes w, Vec16 sums) {
    return {_mm512_dpbf16_ps(sums.lanes, __m512bh(x.numbers), __m512bh(w.numbers))};
  }
};
#endif

/// The type of the numbers of a line in memory.
constexpr DType dtype_in(LineKind kind) {
  return kind == LineKind::floats ? DType::f32 : DType::bf16;
}

/// Copies a line's stored numbers: a line of bf16 takes them as they are, one of floats widens them.
template <LineKind kind, DType stored>
void copy_line(const std::byte* from, Line& to) {
  if constexpr (kind == LineKind::floats) {
    Vec16::load<stored>(from).store(reinterpret_cast<float*>(to.bytes));
  } else {
    std::memcpy(to.bytes, from, sizeof to.bytes);
  }
}

/// The first `count` stored numbers of a line, then zeros; reads nothing past them.
template <LineKind kind, DType stored>
Line tail_line(const std::byte* from, std::int64_t count) {
  std::byte padded[numbers_in(kind) * size_of(stored)] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(count * size_of(stored)));
  Line line;
  copy_line<kind, stored>(padded, line);
  return line;
}

/// Copies a row of `cols` stored numbers into lines, each `apart` lines after the one before; zeros follow
/// the last number.
template <LineKind kind, DType stored>
void copy_row(const std::byte* from, std::int64_t cols, Line* to, std::int64_t apart) {
  constexpr std::int64_t kNumbers = numbers_in(kind);
  for (; cols >= kNumbers; cols -= kNumbers, from += kNumbers * size_of(stored), to += apart)
    copy_line<kind, stored>(from, *to);
  if (cols > 0) *to = tail_line<kind, stored>(from, cols);
}

/// Writes x [count] into lines of `kind`; behind the last number, zeros.
template <LineKind kind>
void write_lines(const float* x, std::int64_t count, Line* to) {
  constexpr std::int64_t kNumbers = numbers_in(kind);
  const auto write = [](const float* from, Line& line) {
    if constexpr (kind == LineKind::floats) {
      std::memcpy(line.bytes, from, sizeof line.bytes);
    } else {
      Vec16::load(from).store<DType::bf16>(line.bytes);
      Vec16::load(from + 16).store<DType::bf16>(line.bytes + 32);
    }
  };
  for (; count >= kNumbers; count -= kNumbers, x += kNumbers, ++to) write(x, *to);
  if (count == 0) return;
  float padded[kNumbers] = {};
  std::memcpy(padded, x, static_cast<std::size_t>(count) * sizeof(float));
  write(padded, *to);
}

}  // namespace kvcache::cpu
