// The sixteen lanes and their one order of summation. The test is built for AVX-512, for AVX2 and without
// vectors; each build must give the pinned numbers.
#include "common/cpu/vec16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "common/cpu/dot_tile.h"
#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

std::uint32_t bits(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

float sum_in_order(std::vector<float> lanes) {
  for (std::size_t apart = 8; apart > 0; apart /= 2) {
    for (std::size_t lane = 0; lane < apart; ++lane) lanes[lane] += lanes[lane + apart];
  }
  return lanes[0];
}

TEST(Vec16, SumAddsLanesEightThenFourThenTwoThenOneApart) {
  const std::vector<float> x = random_numbers(16, 1);
  EXPECT_EQ(bits(sum(Vec16::load(x.data()))), bits(sum_in_order(x)));
}

TEST(Vec16, SumEachGivesSixteenSumsInOrderWithTheBitsOfSum) {
  const std::vector<float> x = random_numbers(256, 2);
  Vec16 vectors[16];
  for (int n = 0; n < 16; ++n) vectors[n] = Vec16::load(&x[static_cast<std::size_t>(n) * 16]);
  float sums[16];
  sum_each(vectors).store(sums);
  for (int n = 0; n < 16; ++n) EXPECT_EQ(bits(sums[n]), bits(sum(vectors[n]))) << n;
}

TEST(Vec16, EveryOtherNumberOfBf16IsWidenedAndPutBackInOrder) {
  const std::vector<std::byte> stored_numbers = stored(random_numbers(32, 3), DType::bf16);
  Vec16 even = Vec16::load_every_other<0>(stored_numbers.data());
  Vec16 odd = Vec16::load_every_other<1>(stored_numbers.data());
  float evens[16], odds[16], all[32];
  even.store(evens);
  odd.store(odds);
  interleave(even, odd);
  even.store(all);
  odd.store(all + 16);
  for (int n = 0; n < 32; ++n) {
    const float number = read_number(DType::bf16, &stored_numbers[static_cast<std::size_t>(n) * 2]);
    EXPECT_EQ(bits((n % 2 == 0 ? evens : odds)[n / 2]), bits(number)) << n;
    EXPECT_EQ(bits(all[n]), bits(number)) << n;
  }
}

TEST(Vec16, LargestFindsTheLargestInEveryLane) {
  for (int lane = 0; lane < 16; ++lane) {
    float lanes[16];
    for (int n = 0; n < 16; ++n) lanes[n] = static_cast<float>(-1 - n);
    lanes[lane] = 0.5F;
    EXPECT_EQ(largest(Vec16::load(lanes)), 0.5F) << lane;
  }
}

TEST(Vec16, ExpIsAccurateToAboutOneUnitInTheLastPlace) {
  double worst = 0;
  for (int step = 0; step <= 174000; ++step) {
    const float x = -87.0F + static_cast<float>(step) * 0.001F;
    float lanes[16];
    exp(Vec16::all(x)).store(lanes);
    const double right = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(lanes[3]) - right) / right);
  }
  EXPECT_LT(worst, 1.5 * 0x1p-24);
}

TEST(Vec16, ExpOfMinusInfinityIsExactlyZeroAndNanStaysNan) {
  float lanes[16] = {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 0.0F,
                     -88.0F};
  exp(Vec16::load(lanes)).store(lanes);
  EXPECT_EQ(bits(lanes[0]), bits(0.0F));
  EXPECT_TRUE(std::isnan(lanes[1]));
  EXPECT_EQ(lanes[2], 1.0F);
  EXPECT_EQ(lanes[3], 0.0F);
}

template <DType dtype>
void expect_stores_like_write_number() {
  std::vector<float> values = random_numbers(16, 5);
  values[0] = 1.00390625F + 0x1p-20F;  // just above the middle between two bf16 numbers
  values[1] = 1.00390625F;             // exactly the middle: to even
  values[2] = std::numeric_limits<float>::quiet_NaN();
  values[3] = std::numeric_limits<float>::infinity();
  values[4] = -std::numeric_limits<float>::infinity();
  values[5] = 1e-41F;  // subnormal in float32 and bfloat16
  values[6] = 1e-7F;   // subnormal in float16
  values[7] = 70000.0F;
  values[8] = std::bit_cast<float>(0x7F800001U);  // a NaN whose upper half alone would be infinity
  values[9] = -0.0F;
  std::byte stored[16 * 4];
  Vec16::load(values.data()).store<dtype>(stored);
  float back[16];
  Vec16::load<dtype>(stored).store(back);
  for (std::size_t lane = 0; lane < 16; ++lane) {
    const float expected = round_to(dtype, values[lane]);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(back[lane])) << lane;
    } else {
      EXPECT_EQ(bits(back[lane]), bits(expected)) << name_of(dtype) << " lane " << lane;
    }
  }
}

TEST(Vec16, StoringRoundsToNearestEvenAndKeepsNanAndInfinity) {
  expect_stores_like_write_number<DType::f32>();
  expect_stores_like_write_number<DType::f16>();
  expect_stores_like_write_number<DType::bf16>();
  EXPECT_EQ(round_to(DType::bf16, 1.00390625F), 1.0F);
  EXPECT_EQ(round_to(DType::bf16, 1.00390625F + 0x1p-20F), 1.0078125F);
  EXPECT_EQ(round_to(DType::f16, 65504.0F), 65504.0F);
  EXPECT_TRUE(std::isinf(round_to(DType::f16, 65520.0F)));
}

/// The inner products of R rows of x with kTileOutputs rows of w, n numbers each, in a tile.
template <int R>
std::vector<float> tile(const float* x, const float* w, std::int64_t n) {
  constexpr cpu::LineKind kKind = cpu::LineKind::floats;
  const std::int64_t lines = cpu::lines_for(kKind, n);
  std::vector<cpu::Line> x_lines(static_cast<std::size_t>(R * lines));
  std::vector<cpu::Line> w_lines(static_cast<std::size_t>(lines * kTileOutputs));
  const std::byte* rows[R];
  for (int r = 0; r < R; ++r) {
    cpu::write_lines<kKind>(x + r * n, n, x_lines.data() + r * lines);
    rows[r] = x_lines[static_cast<std::size_t>(r * lines)].bytes;
  }
  for (int o = 0; o < kTileOutputs; ++o)
    cpu::copy_row<kKind, DType::f32>(reinterpret_cast<const std::byte*>(w + o * n), n, w_lines.data() + o,
                                     kTileOutputs);
  TileSums<R> sums;
  std::fill(std::begin(sums), std::end(sums), Vec16::all(0.0F));
  multiply_tile<kKind, R>(rows, w_lines.data(), lines, sums);
  std::vector<float> out(std::size_t{R} * kTileOutputs);
  float* to[R];
  for (int r = 0; r < R; ++r) to[r] = out.data() + r * kTileOutputs;
  sum_tile<R>(sums, to);
  return out;
}

template <int R>
void expect_tile_equals_single_products(std::int64_t n) {
  const std::vector<float> x = random_numbers(static_cast<std::size_t>(R * n), 7),
                           w = random_numbers(static_cast<std::size_t>(kTileOutputs * n), 8);
  const std::vector<float> out = tile<R>(x.data(), w.data(), n);
  for (std::int64_t r = 0; r < R; ++r) {
    for (std::int64_t o = 0; o < kTileOutputs; ++o) {
      std::vector<float> lanes(16, 0.0F);
      for (std::int64_t k = 0; k < n; ++k) {
        float& lane = lanes[static_cast<std::size_t>(k % 16)];
        lane = std::fma(x[static_cast<std::size_t>(r * n + k)], w[static_cast<std::size_t>(o * n + k)], lane);
      }
      EXPECT_EQ(bits(out[static_cast<std::size_t>(r * kTileOutputs + o)]), bits(sum_in_order(lanes)))
          << R << " rows, n " << n;
    }
  }
}

TEST(DotTile, EveryTileShapeAndLengthGivesTheBitsOfTheDefinition) {
  for (const std::int64_t n : {1, 8, 15, 16, 17, 100, 172, 256}) {
    expect_tile_equals_single_products<1>(n);
    expect_tile_equals_single_products<2>(n);
    expect_tile_equals_single_products<3>(n);
    expect_tile_equals_single_products<6>(n);
  }
}

TEST(Vec16, ThePinnedBitsComeOutOnEveryProcessor) {
  const std::vector<float> x = random_numbers(1000, 11);
  const std::vector<float> w = random_numbers(std::size_t{1000} * kTileOutputs, 12);
  EXPECT_EQ(bits(tile<1>(x.data(), w.data(), 1000)[0]), 1079810284U);
  float lanes[16];
  exp(Vec16::load(x.data())).store(lanes);
  EXPECT_EQ(bits(sum(Vec16::load(lanes))), 1100838813U);
}

}  // namespace
}  // namespace kvcache
