// Storing K and V: each row goes to its slot and no other, rounded to the nearest number of the store's type.
#include "common/cpu/scatter.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "common/base/stored_number.h"
#include "common/cpu/reserved_memory.h"

namespace kvcache {
namespace {

/// `numbers` [rows, cols] as a matrix with `gap` floats between the rows.
Matrix matrix(std::vector<float>& numbers, std::int64_t rows, std::int64_t cols, std::int64_t gap = 0) {
  Matrix result;
  result.data = numbers.data();
  result.rows = rows;
  result.cols = cols;
  result.stride = cols + gap;
  return result;
}

struct Rounded {
  float value;
  float f16, bf16;  // as they read back
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Between two neighbours the nearest counts, in the middle the even one.
const Rounded kRounded[] = {
    {1.0F, 1.0F, 1.0F},
    {1 + 0x1p-8F, 1 + 0x1p-8F, 1.0F},                    // 1.00390625: the middle, to even below
    {1 + 0x1p-8F + 0x1p-23F, 1 + 0x1p-8F, 1 + 0x1p-7F},  // just above the middle
    {1 + 3 * 0x1p-8F, 1 + 3 * 0x1p-8F, 1 + 0x1p-6F},     // the middle, to even above
    {-1 - 0x1p-11F, -1.0F, -1.0F},                       // float16's middle
    {-1 - 0x1p-11F - 0x1p-23F, -1 - 0x1p-10F, -1.0F},
    {65504.0F, 65504.0F, 65536.0F},
    {65519.0F, 65504.0F, 65536.0F},
    {65520.0F, kInfinity, 65536.0F},
    {-1e30F, -kInfinity, -0x1.94p99F},
    {3.4e38F, kInfinity, kInfinity},  // above the middle of bfloat16's largest and 2^128
    {0x1p-24F, 0x1p-24F, 0x1p-24F},   // float16's smallest subnormal
    {0x1p-25F, 0.0F, 0x1p-25F},       // its middle with zero
    {0x1.8p-25F, 0x1p-24F, 0x1.8p-25F},
    {0x1p-133F, 0.0F, 0x1p-133F},  // bfloat16's smallest subnormal
    {0x1p-134F, 0.0F, 0.0F},
    {0x1.8p-134F, 0.0F, 0x1p-133F},
    {-0.0F, -0.0F, -0.0F},
    {kInfinity, kInfinity, kInfinity},
    {-kInfinity, -kInfinity, -kInfinity},
};

ThreadPool& one_thread() {
  static ThreadPool pool(1);
  return pool;
}

TEST(ScatterRows, RoundsToTheNearestNumberOfTheType) {
  // Each number at every place of a row of 40: in whole vectors of sixteen, and in the rest after them.
  for (const Rounded& number : kRounded) {
    std::vector<float> row(40, number.value);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      std::vector<std::byte> stored(40 * static_cast<std::size_t>(size_of(dtype)));
      const std::int64_t slot = 0;
      cpu::scatter_rows(matrix(row, 1, 40), {&slot, 1}, dtype, stored.data(), one_thread());
      const float expected = dtype == DType::f32   ? number.value
                             : dtype == DType::f16 ? number.f16
                                                   : number.bf16;
      for (std::int64_t col = 0; col < 40; ++col) {
        const float read = read_number(dtype, &stored[static_cast<std::size_t>(col * size_of(dtype))]);
        EXPECT_EQ(std::bit_cast<std::uint32_t>(read), std::bit_cast<std::uint32_t>(expected))
            << number.value << " as " << name_of(dtype) << " in column " << col << " reads " << read;
      }
    }
  }
}

TEST(ScatterRows, NanStaysNan) {
  // The last would become infinite or zero if its upper bits were cut off or rounded like a number's.
  for (const std::uint32_t bits : {0x7FC00000U, 0xFFC00000U, 0x7F800001U, 0xFFFFFFFFU, 0x7FFFFFFFU}) {
    std::vector<float> row(20, std::bit_cast<float>(bits));
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      std::vector<std::byte> stored(20 * static_cast<std::size_t>(size_of(dtype)));
      const std::int64_t slot = 0;
      cpu::scatter_rows(matrix(row, 1, 20), {&slot, 1}, dtype, stored.data(), one_thread());
      for (std::int64_t col = 0; col < 20; ++col) {
        EXPECT_TRUE(std::isnan(read_number(dtype, &stored[static_cast<std::size_t>(col * size_of(dtype))])))
            << std::hex << bits << " as " << name_of(dtype) << " in column " << col;
      }
    }
  }
}

TEST(ScatterRows, WritesEachRowToItsSlotAndNothingElse) {
  constexpr std::int64_t kCols = 19, kSlots = 6;
  std::vector<float> numbers(3 * (kCols + 5));
  for (std::size_t n = 0; n < numbers.size(); ++n) numbers[n] = static_cast<float>(n);
  const Matrix rows = matrix(numbers, 3, kCols, /*gap=*/5);
  std::vector<float> stored(kSlots * kCols, -1.0F);
  const std::int64_t slots[] = {4, -1, 1};
  cpu::scatter_rows(rows, slots, DType::f32, reinterpret_cast<std::byte*>(stored.data()), one_thread());
  for (std::int64_t slot = 0; slot < kSlots; ++slot) {
    for (std::int64_t col = 0; col < kCols; ++col) {
      const float expected = slot == 4 ? rows.row(0)[col] : slot == 1 ? rows.row(2)[col] : -1.0F;
      EXPECT_EQ(stored[static_cast<std::size_t>(slot * kCols + col)], expected) << slot << " " << col;
    }
  }
}

TEST(ScatterRows, ManyRowsOnSeveralThreadsAreStoredAsOnOne) {
  constexpr std::int64_t kRows = 700, kCols = 72;  // more than one thread takes alone
  std::vector<float> numbers(kRows * kCols);
  for (std::size_t n = 0; n < numbers.size(); ++n)
    numbers[n] = n % 7 == 0 ? 0x1p-133F : 1.0F / static_cast<float>(n + 1);
  std::vector<std::int64_t> slots(kRows);
  for (std::int64_t row = 0; row < kRows; ++row)
    slots[static_cast<std::size_t>(row)] =
        row % 10 == 3 ? -1 : (row * 411) % kRows;  // 411 and 700 are coprime
  ThreadPool three_threads(3);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<std::byte> right(static_cast<std::size_t>(kRows * kCols * size_of(dtype)), std::byte{0xAB});
    std::vector<std::byte> stored = right;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const std::int64_t slot = slots[static_cast<std::size_t>(row)];
      for (std::int64_t col = 0; col < kCols && slot >= 0; ++col) {
        write_number(dtype, numbers[static_cast<std::size_t>(row * kCols + col)],
                     &right[static_cast<std::size_t>((slot * kCols + col) * size_of(dtype))]);
      }
    }
    cpu::scatter_rows(matrix(numbers, kRows, kCols), slots, dtype, stored.data(), three_threads);
    EXPECT_EQ(stored, right) << name_of(dtype);
  }
}

TEST(ScatterRows, CountsSlotsInSixtyFourBits) {
  constexpr std::int64_t kCols = 4096;
  constexpr std::int64_t kSlot = (std::int64_t{1} << 32) / kCols + 3;  // its numbers begin beyond 2^32
  const ReservedMemory memory((kSlot + 1) * kCols * size_of(DType::bf16));
  std::vector<float> row(kCols, 1.5F);
  cpu::scatter_rows(matrix(row, 1, kCols), {&kSlot, 1}, DType::bf16, memory.data(), one_thread());
  EXPECT_EQ(read_number(DType::bf16, memory.data() + kSlot * kCols * 2), 1.5F);
  EXPECT_EQ(read_number(DType::bf16, memory.data() + 3 * kCols * 2), 0.0F);
}

}  // namespace
}  // namespace kvcache
