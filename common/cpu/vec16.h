/// @file
/// Sixteen floats that are added up in one fixed order, on any processor. Chapter: step 1, "The same bits".
///
/// A sum of floats depends on the order of its terms. Here every inner product keeps sixteen partial sums:
/// lane l takes the elements l, l + 16, l + 32, ... At the end one fixed tree (`sum`) adds the lanes. One
/// 512-bit register, two 256-bit registers and a plain array all do exactly this, so the three versions below
/// give the same bits. So does every way of cutting the work around them into tiles. Multiply-adds are fused
/// explicitly, and the build forbids the compiler to fuse others.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/base/stored_number.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define KVCACHE_AVX512 1
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define KVCACHE_AVX2 1
#include <immintrin.h>
#endif

namespace kvcache {

/// The bits of the odd one of two numbers of bf16 that follow each other.
inline constexpr int kOddBf16 = static_cast<int>(0xFFFF0000);

#if defined(KVCACHE_AVX512)

/// Sixteen floats in one register.
struct Vec16 {
  __m512 lanes;  ///< lane 0 first

  /// x in every lane.
  static Vec16 all(float x) { return {_mm512_set1_ps(x)}; }
  /// Sixteen floats; `from` need not be aligned.
  static Vec16 load(const float* from) { return {_mm512_loadu_ps(from)}; }
  /// Stores sixteen floats; `to` need not be aligned.
  void store(float* to) const { _mm512_storeu_ps(to, lanes); }

  /// Sixteen stored numbers widened to float; `from` need not be aligned.
  template <DType dtype>
  static Vec16 load(const std::byte* from) {
    if constexpr (dtype == DType::f32) return {_mm512_loadu_ps(from)};
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    if constexpr (dtype == DType::f16) return {_mm512_cvtph_ps(bits)};
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  /// Every other one of 32 numbers of bf16 from number `first`, 0 or 1, on. It takes one instruction, where
  /// sixteen neighbours take two. `from` need not be aligned.
  template <int first>
  static Vec16 load_every_other(const std::byte* from) {
    const __m512i pairs = _mm512_loadu_si512(from);
    return {_mm512_castsi512_ps(first == 0 ? _mm512_slli_epi32(pairs, 16)
                                           : _mm512_and_si512(pairs, _mm512_set1_epi32(kOddBf16)))};
  }
  /// Undoes it: the even and the odd ones of 32 numbers become the first and the last sixteen.
  friend void interleave(Vec16& even, Vec16& odd) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const __m512 before = even.lanes;
    even.lanes = _mm512_permutex2var_ps(before, first, odd.lanes);
    odd.lanes = _mm512_permutex2var_ps(before, last, odd.lanes);
  }
  /// Stores sixteen numbers rounded to nearest, ties to even; `to` need not be aligned.
  template <DType dtype>
  void store(std::byte* to) const {
    if constexpr (dtype == DType::f32) {
      _mm512_storeu_ps(to, lanes);
    } else if constexpr (dtype == DType::f16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(lanes, _MM_FROUND_TO_NEAREST_INT));
    } else {
      const __m512i bits = _mm512_castps_si512(lanes);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
      const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
      const __mmask16 nan = _mm512_cmp_ps_mask(lanes, lanes, _CMP_UNORD_Q);
      const __m512i kept = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7FC00000));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
    }
  }
  /// a * b + c per lane, rounded once.
  friend Vec16 fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
  /// a + b in each lane.
  friend Vec16 operator+(Vec16 a, Vec16 b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
  /// a - b in each lane.
  friend Vec16 operator-(Vec16 a, Vec16 b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
  /// a * b in each lane.
  friend Vec16 operator*(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
  /// a / b in each lane.
  friend Vec16 operator/(Vec16 a, Vec16 b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }
  /// The larger per lane; b where either is NaN.
  friend Vec16 max(Vec16 a, Vec16 b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
  /// The smaller per lane; b where either is NaN.
  friend Vec16 min(Vec16 a, Vec16 b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }
  /// value where x >= bound or either is NaN, else 0.
  friend Vec16 zero_below(Vec16 x, float bound, Vec16 value) {
    const __mmask16 keep = _mm512_cmp_ps_mask(x.lanes, _mm512_set1_ps(bound), _CMP_NLT_UQ);
    return {_mm512_maskz_mov_ps(keep, value.lanes)};
  }
  /// x * 2^n, where `biased` is n + 1.5 * 2^23, so that its low bits are n.
  friend Vec16 scale_by_power_of_two(Vec16 x, Vec16 biased) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(biased.lanes), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.lanes), exponent))};
  }
};

#elif defined(KVCACHE_AVX2)

/// Sixteen floats in two registers: lanes 0-7 and 8-15.
struct Vec16 {
  __m256 low, high;

  static Vec16 all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vec16 load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  void store(float* to) const {
    _mm256_storeu_ps(to, low);
    _mm256_storeu_ps(to + 8, high);
  }
  template <DType dtype>
  static Vec16 load(const std::byte* from) {
    if constexpr (dtype == DType::f32) return load(reinterpret_cast<const float*>(from));
    const __m128i low_bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i high_bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16));
    if constexpr (dtype == DType::f16) return {_mm256_cvtph_ps(low_bits), _mm256_cvtph_ps(high_bits)};
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(low_bits), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high_bits), 16))};
  }
  template <int first>
  static Vec16 load_every_other(const std::byte* from) {
    const auto half = [](const std::byte* pairs) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
      return _mm256_castsi256_ps(first == 0 ? _mm256_slli_epi32(bits, 16)
                                            : _mm256_and_si256(bits, _mm256_set1_epi32(kOddBf16)));
    };
    return {half(from), half(from + 32)};
  }
  friend void interleave(Vec16& even, Vec16& odd) {
    const auto sixteen = [](__m256 evens, __m256 odds) -> Vec16 {
      const __m256 low = _mm256_unpacklo_ps(evens, odds), high = _mm256_unpackhi_ps(evens, odds);
      return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
    };
    const Vec16 last = sixteen(even.high, odd.high);
    even = sixteen(even.low, odd.low);
    odd = last;
  }
  template <DType dtype>
  void store(std::byte* to) const {
    float lanes[16];
    store(lanes);
    for (int lane = 0; lane < 16; ++lane) write_number(dtype, lanes[lane], to + lane * size_of(dtype));
  }
  friend Vec16 fma(Vec16 a, Vec16 b, Vec16 c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  friend Vec16 operator+(Vec16 a, Vec16 b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  friend Vec16 operator-(Vec16 a, Vec16 b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  friend Vec16 operator*(Vec16 a, Vec16 b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  friend Vec16 operator/(Vec16 a, Vec16 b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
  }
  friend Vec16 max(Vec16 a, Vec16 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  friend Vec16 min(Vec16 a, Vec16 b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
  friend Vec16 zero_below(Vec16 x, float bound, Vec16 value) {
    const __m256 limit = _mm256_set1_ps(bound);
    return {_mm256_and_ps(_mm256_cmp_ps(x.low, limit, _CMP_NLT_UQ), value.low),
            _mm256_and_ps(_mm256_cmp_ps(x.high, limit, _CMP_NLT_UQ), value.high)};
  }
  friend Vec16 scale_by_power_of_two(Vec16 x, Vec16 biased) {
    const auto scale = [](__m256 value, __m256 bias) {
      const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(bias), 23);
      return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), exponent));
    };
    return {scale(x.low, biased.low), scale(x.high, biased.high)};
  }
};

#else

/// Sixteen floats in an array; the compiler vectorises the loops with what the processor has.
struct Vec16 {
  float lanes[16];

  template <typename Function>
  static Vec16 each(Function function) {
    Vec16 result;
    for (int lane = 0; lane < 16; ++lane) result.lanes[lane] = function(lane);
    return result;
  }
  static Vec16 all(float x) {
    return each([&](int) { return x; });
  }
  static Vec16 load(const float* from) {
    return each([&](int lane) { return from[lane]; });
  }
  void store(float* to) const { std::memcpy(to, lanes, sizeof lanes); }
  template <DType dtype>
  static Vec16 load(const std::byte* from) {
    return each([&](int lane) { return read_number(dtype, from + lane * size_of(dtype)); });
  }
  template <int first>
  static Vec16 load_every_other(const std::byte* from) {
    return each([&](int lane) { return read_number(DType::bf16, from + 4 * lane + 2 * first); });
  }
  friend void interleave(Vec16& even, Vec16& odd) {
    const Vec16 evens = even, odds = odd;
    const auto number = [&](int n) { return (n % 2 == 0 ? evens : odds).lanes[n / 2]; };
    even = each([&](int lane) { return number(lane); });
    odd = each([&](int lane) { return number(16 + lane); });
  }
  template <DType dtype>
  void store(std::byte* to) const {
    for (int lane = 0; lane < 16; ++lane) write_number(dtype, lanes[lane], to + lane * size_of(dtype));
  }
  friend Vec16 fma(Vec16 a, Vec16 b, Vec16 c) {
    return each([&](int lane) { return std::fma(a.lanes[lane], b.lanes[lane], c.lanes[lane]); });
  }
  friend Vec16 operator+(Vec16 a, Vec16 b) {
    return each([&](int lane) { return a.lanes[lane] + b.lanes[lane]; });
  }
  friend Vec16 operator-(Vec16 a, Vec16 b) {
    return each([&](int lane) { return a.lanes[lane] - b.lanes[lane]; });
  }
  friend Vec16 operator*(Vec16 a, Vec16 b) {
    return each([&](int lane) { return a.lanes[lane] * b.lanes[lane]; });
  }
  friend Vec16 operator/(Vec16 a, Vec16 b) {
    return each([&](int lane) { return a.lanes[lane] / b.lanes[lane]; });
  }
  friend Vec16 max(Vec16 a, Vec16 b) {
    return each([&](int lane) { return a.lanes[lane] > b.lanes[lane] ? a.lanes[lane] : b.lanes[lane]; });
  }
  friend Vec16 min(Vec16 a, Vec16 b) {
    return each([&](int lane) { return a.lanes[lane] < b.lanes[lane] ? a.lanes[lane] : b.lanes[lane]; });
  }
  friend Vec16 zero_below(Vec16 x, float bound, Vec16 value) {
    return each([&](int lane) { return x.lanes[lane] < bound ? 0.0F : value.lanes[lane]; });
  }
  friend Vec16 scale_by_power_of_two(Vec16 x, Vec16 biased) {
    return each([&](int lane) {
      const auto exponent = std::bit_cast<std::uint32_t>(biased.lanes[lane]) << 23;
      return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x.lanes[lane]) + exponent);
    });
  }
};

#endif

/// Keeps x in its register. Otherwise a compiler may load x from memory again for each use, which is slower
/// where a processor loads one register a cycle.
inline void hold([[maybe_unused]] Vec16& x) {
#if defined(KVCACHE_AVX512)
  asm("" : "+v"(x.lanes));
#endif
}

/// The first `count` < 16 stored numbers, then zeros; reads nothing past them.
template <DType dtype>
Vec16 load_tail(const std::byte* from, std::int64_t count) {
  std::byte padded[16 * 4] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(count * size_of(dtype)));
  return Vec16::load<dtype>(padded);
}

/// Stores the first `count` < 16 lanes.
template <DType dtype>
void store_head(Vec16 x, std::byte* to, std::int64_t count) {
  std::byte all[16 * 4];
  x.store<dtype>(all);
  std::memcpy(to, all, static_cast<std::size_t>(count * size_of(dtype)));
}

/// Each lane as it reads back after being stored in `dtype`.
template <DType dtype>
Vec16 round_to(Vec16 x) {
  if constexpr (dtype == DType::f32) return x;
  std::byte stored[16 * 2];
  x.store<dtype>(stored);
  return Vec16::load<dtype>(stored);
}

/// The sum of the sixteen lanes in the project's one order: lanes 8 apart first, then 4, 2 and 1 apart.
inline float sum(Vec16 x) {
#if defined(KVCACHE_AVX512) || defined(KVCACHE_AVX2)
#if defined(KVCACHE_AVX512)
  const __m256 low = _mm512_castps512_ps256(x.lanes);
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x.lanes), 1));
#else
  const __m256 low = x.low, high = x.high;
#endif
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  float lanes[16];
  x.store(lanes);
  for (int apart = 8; apart > 0; apart /= 2) {
    for (int lane = 0; lane < apart; ++lane) lanes[lane] += lanes[lane + apart];
  }
  return lanes[0];
#endif
}

/// Lane n of the result is sum(x[n]): sixteen sums for little more than the price of two.
inline Vec16 sum_each(const Vec16 (&x)[16]) {
#if defined(KVCACHE_AVX512)
  // Each round adds the halves of two vectors and puts both results into one vector, so sixteen vectors
  // become one in 8 + 4 + 2 + 1 additions. The order within each sum is that of `sum`.
  __m512 eight[8], four[4], two[2];
  for (int n = 0; n < 8; ++n) {
    const __m512 a = x[n].lanes, b = x[n + 8].lanes;
    eight[n] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  }
  for (int n = 0; n < 4; ++n) {
    const __m512 a = eight[n], b = eight[n + 4];
    four[n] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  }
  for (int n = 0; n < 2; ++n) {
    const __m512 a = four[n], b = four[n + 2];
    two[n] = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
  }
  const __m512 one =
      _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xDD));
  // `one` holds the sums of x[m] in an order that follows from the shuffles; put them in the order of n.
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return {_mm512_permutexvar_ps(order, one)};
#else
  float sums[16];
  for (int n = 0; n < 16; ++n) sums[n] = sum(x[n]);
  return Vec16::load(sums);
#endif
}

/// The largest lane; any lane where one is NaN.
inline float largest(Vec16 x) {
#if defined(KVCACHE_AVX512)
  return _mm512_reduce_max_ps(x.lanes);
#else
  float lanes[16];
  x.store(lanes);
  for (int apart = 8; apart > 0; apart /= 2) {
    for (int lane = 0; lane < apart; ++lane)
      lanes[lane] = lanes[lane] > lanes[lane + apart] ? lanes[lane] : lanes[lane + apart];
  }
  return lanes[0];
#endif
}

/// e^x per lane, to about one unit in the last place; the same bits on every processor. Below -87 the result
/// is 0 (so -infinity gives exactly 0), above 88 it is that of 88; NaN stays NaN.
inline Vec16 exp(Vec16 x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2; e^r is its Taylor polynomial, whose next term r^8 / 8! is below
  // 2^-27.
  const Vec16 round =
      Vec16::all(12582912.0F);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Vec16 clamped = min(Vec16::all(88.0F), max(Vec16::all(-87.0F), x));
  const Vec16 biased = fma(clamped, Vec16::all(1.44269504F), round);
  const Vec16 n = biased - round;
  Vec16 r = fma(n, Vec16::all(-0.693359375F), clamped);  // ln 2 in two parts: the first product is exact
  r = fma(n, Vec16::all(2.12194440e-4F), r);
  Vec16 polynomial = Vec16::all(1.0F / 5040);
  for (const float coefficient : {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F, 1.0F}) {
    polynomial = fma(polynomial, r, Vec16::all(coefficient));
  }
  return zero_below(x, -87.0F, scale_by_power_of_two(polynomial, biased));
}

}  // namespace kvcache
