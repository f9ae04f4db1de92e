// The CPU's operations in float16 and bfloat16: each gives the float32 result, rounded once to the type.
#include "common/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <utility>

#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

constexpr std::int64_t kRows = 3, kCols = 40;  // whole vectors of sixteen, and a rest

/// The operations on the same numbers, all of which every type can hold.
class Operations {
 public:
  explicit Operations(DType activations) : backend_(activations, threads_) {}

  std::vector<float> embed() {
    const Weight table = weight(5, kCols, 1);
    const std::int32_t ids[kRows] = {4, 0, 2};
    backend_.embed(table, ids, out_);
    return result();
  }
  std::vector<float> norm() {
    Matrix x = input(2);
    backend_.add_and_norm(x, Matrix{}, weight(1, kCols, 3), 1e-6F, out_);
    return result();
  }
  std::vector<float> project() {
    const Projection projection{weight(kCols, kCols, 4), weight(1, kCols, 5)};
    const Backend::Product product{&projection, &out_};
    backend_.project(input(6), {&product, 1});
    return result();
  }
  std::vector<float> rotate() {
    const std::int32_t positions[kRows] = {1, 70, 9000};
    const std::vector<float> speeds{1.0F, 0.25F, 0.1F, 0.01F, 0.003F};
    backend_.set_positions(positions, speeds);
    out_ = input(7);
    backend_.norm_and_rotate(out_, /*head_dim=*/10, {}, 1e-6F);
    return result();
  }
  std::vector<float> add() {
    out_ = input(8);
    Matrix normed;
    backend_.add_and_norm(out_, input(9), weight(1, kCols, 3), 1e-6F, normed);
    return result();
  }
  std::vector<float> swiglu() {
    backend_.swiglu(input(10), input(11), out_);
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
