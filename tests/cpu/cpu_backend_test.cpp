// The CPU's operations in float16 and bfloat16: each gives the float32 result, rounded once to the type.
#include "common/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <utility>

#include "common/cpu/rows.h"
#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

constexpr std::int64_t kRows = 3, kCols = 40;  // whole vectors of sixteen, and a rest

/// The operations on the same numbers, all of which every type can hold.
class Operations {
 public:
  explicit Operations(DType activations) : activations_(activations), backend_(activations, threads_) {}

  std::vector<float> embed() {
    const Weight table = weight(5, kCols, 1);
    const std::int32_t ids[kRows] = {4, 0, 2};
    backend_.embed(table, ids, out_);
    return result();
  }
  std::vector<float> norm() {
    backend_.resize(out_, kRows, kCols);
    cpu::norm_rows(input(2), {weight(1, kCols, 3), 1e-6F}, activations_, threads_, out_);
    return result();
  }
  /// Of rows whose norm gives 0 and 2, so its rounding changes nothing.
  std::vector<float> project() {
    const Projection projection{weight(kCols, kCols, 4), weight(1, kCols, 5)};
    const Backend::Product product{&projection, &out_};
    backend_.norm_and_project(zeros_and_ones(), {ones(), 0}, {&product, 1});
    return result();
  }
  std::vector<float> rotate() {
    const std::int32_t positions[kRows] = {1, 70, 9000};
    const std::vector<float> speeds{1.0F, 0.25F, 0.1F, 0.01F, 0.003F};
    const Rotation rotation = backend_.set_positions(positions, speeds);
    out_ = input(7);
    cpu::norm_and_rotate(out_, /*head_dim=*/10, {}, rotation, activations_, threads_);
    return result();
  }
  std::vector<float> add() {
    const Projection projection{weight(kCols, kCols, 4), {}};
    out_ = input(8);
    backend_.project_and_add(input(9), projection, out_);
    return result();
  }
  std::vector<float> swiglu() {
    backend_.resize(out_, kRows, kCols);
    cpu::swiglu(input(10), input(11), activations_, threads_, out_);
    return result();
  }

 private:
  /// Numbers with so few digits that every type holds them.
  static std::vector<float> short_numbers(std::int64_t count, std::uint32_t seed) {
    std::vector<float> numbers = random_numbers(static_cast<std::size_t>(count), seed);
    for (float& number : numbers) number = round_to(DType::f16, round_to(DType::bf16, 3 * number));
    return numbers;
  }
  Matrix input(std::uint32_t seed) {
    Matrix x;
    backend_.resize(x, kRows, kCols);
    const std::vector<float> numbers = short_numbers(kRows * kCols, seed);
    for (std::int64_t row = 0; row < kRows; ++row)
      std::copy_n(numbers.begin() + row * kCols, kCols, x.row(row));
    return x;
  }
  /// Rows with 10 ones of 40, whose mean square is 1/4; the norm makes 2 of each 1.
  Matrix zeros_and_ones() {
    Matrix x;
    backend_.resize(x, kRows, kCols);
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t col = 0; col < kCols; ++col) x.row(row)[col] = col % 4 == row ? 1.0F : 0.0F;
    }
    return x;
  }
  Weight ones() {
    bytes_.push_back(stored(std::vector<float>(kCols, 1.0F), DType::f32));
    return {DType::f32, 1, kCols, bytes_.back().data()};
  }
  /// Of float32 numbers that no other type holds.
  Weight weight(std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
    bytes_.push_back(stored(random_numbers(static_cast<std::size_t>(rows * cols), seed), DType::f32));
    return {DType::f32, rows, cols, bytes_.back().data()};
  }
  std::vector<float> result() {
    std::vector<float> numbers(kRows * kCols);
    backend_.read(out_, numbers);
    return numbers;
  }

  ThreadPool threads_{1};
  DType activations_;
  CpuBackend backend_;
  Matrix out_;
  std::vector<std::vector<std::byte>> bytes_;
};

TEST(CpuBackend, EveryResultIsTheFloat32ResultRoundedOnceToTheType) {
  const std::pair<const char*, std::vector<float> (Operations::*)()> operations[] = {
      {"embed", &Operations::embed},   {"norm", &Operations::norm}, {"project", &Operations::project},
      {"rotate", &Operations::rotate}, {"add", &Operations::add},   {"swiglu", &Operations::swiglu},
  };
  for (const auto& [name, operation] : operations) {
    const std::vector<float> exact = std::invoke(operation, Operations(DType::f32));
    for (const DType dtype : {DType::f16, DType::bf16}) {
      std::vector<float> rounded = exact;
      for (float& number : rounded) number = round_to(dtype, number);
      EXPECT_NE(rounded, exact) << name;
      EXPECT_EQ(std::invoke(operation, Operations(dtype)), rounded) << name << " " << name_of(dtype);
    }
  }
}

/// 1 + 3 * 2^-9 lies between the bfloat16 numbers 1 and 1 + 2^-7, nearer to the second.
TEST(CpuBackend, AProductThatIsAddedIsRoundedFirstIfItHasABiasAndOnlyThen) {
  ThreadPool threads(1);
  CpuBackend backend(DType::bf16, threads);
  const float one = 1.0F, little = 0x3p-9F, both = one + little;
  const auto number = [](const float& at) {
    return Weight{DType::f32, 1, 1, reinterpret_cast<const std::byte*>(&at)};
  };
  const auto less_one = [&](const Projection& projection) {
    Matrix x, sum;
    for (Matrix* matrix : {&x, &sum}) backend.resize(*matrix, 1, 1);
    x.row(0)[0] = 1.0F;
    sum.row(0)[0] = -1.0F;
    backend.project_and_add(x, projection, sum);
    return sum.row(0)[0];
  };
  EXPECT_EQ(less_one({number(both), {}}), little);
  EXPECT_EQ(less_one({number(one), number(little)}), 0x1p-7F);
}

TEST(CpuBackend, PicksForTheGoodRowsBesideBadOnes) {
  ThreadPool threads(1);
  CpuBackend backend(DType::f32, threads);
  Matrix logits;
  backend.resize(logits, 4, 3);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> numbers[] = {{1, 3, 2},
                                        {0, std::numeric_limits<float>::quiet_NaN(), kInfinity},
                                        {5, 4, 3},
                                        {-kInfinity, -kInfinity, -kInfinity}};
  for (std::int64_t row = 0; row < 4; ++row) std::ranges::copy(numbers[row], logits.row(row));
  Sampler greedy{SamplingParams{}};
  const std::vector<Pick> picks{{1, &greedy}, {0, &greedy}, {3, &greedy}, {2, &greedy}};
  using Problem = Picked::Problem;
  EXPECT_EQ(backend.pick(logits, picks),
            (std::vector<Picked>{{Problem::nan, 0, 1}, {Problem::none, 1}, {Problem::nothing, 0, 3}, {}}));
}

}  // namespace
}  // namespace kvcache
