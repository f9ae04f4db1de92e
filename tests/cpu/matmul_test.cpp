// The matrix product against Eigen in double, and the promise that makes all steps agree: a row's bits depend
// on this row alone.
#include "common/cpu/matmul.h"

#include <gtest/gtest.h>

#include <Eigen/Dense>

#include "common/cpu/matrix_tiles.h"
#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

struct Case {
  std::int64_t rows, in, out;
};

struct Product {
  std::vector<float> x;          // [rows, in]
  std::vector<float> weights;    // [out, in], already rounded to the stored type
  std::vector<std::byte> bytes;  // one byte of padding before the numbers: unaligned on purpose
  std::vector<std::byte> bias;   // [out]
  Projection projection;

  Product(Case size, DType dtype, bool with_bias, DType activations = DType::f32)
      : x(random_numbers(static_cast<std::size_t>(size.rows * size.in), 3)) {
    for (float& number : x) number = round_to(activations, number);
    weights = random_numbers(static_cast<std::size_t>(size.out * size.in), 4);
    for (float& weight : weights) weight = round_to(dtype, weight);
    bytes = stored(weights, dtype);
    bytes.insert(bytes.begin(), std::byte{0xFF});
    projection.weight = {dtype, size.out, size.in, bytes.data() + 1};
    if (with_bias) {
      bias = stored(random_numbers(static_cast<std::size_t>(size.out), 5), DType::f32);
      projection.bias = {DType::f32, 1, size.out, bias.data()};
    }
  }
};

/// @param store_as  the type of the activations; x must hold numbers of it
std::vector<float> multiply(const Product& product, Case size, std::int64_t first, std::int64_t rows,
                            int threads, DType store_as = DType::f32) {
  std::vector<float> y(static_cast<std::size_t>(rows * size.out), -1.0F);
  const MatmulOutput output{&product.projection, y.data(), size.out};
  ThreadPool pool(threads);
  matmul(&product.x[static_cast<std::size_t>(first * size.in)], size.in, rows, {&output, 1}, store_as, pool);
  return y;
}

/// The product in double, before it is rounded.
Eigen::MatrixXd exact_product(const Product& product, Case size) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::MatrixXd x = Eigen::Map<const Matrix>(product.x.data(), size.rows, size.in).cast<double>();
  const Eigen::MatrixXd w =
      Eigen::Map<const Matrix>(product.weights.data(), size.out, size.in).cast<double>();
  Eigen::MatrixXd y = x * w.transpose();
  for (std::int64_t out = 0; out < size.out; ++out) {
    y.col(out).array() +=
        static_cast<double>(read_number(DType::f32, &product.bias[static_cast<std::size_t>(out) * 4]));
  }
  return y;
}

TEST(Matmul, AgreesWithEigenInDoubleForEveryTypeAndShape) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Case size : {Case{1, 64, 48}, Case{3, 100, 43}, Case{9, 172, 64}, Case{33, 256, 101},
                            Case{1, 7, 1}, Case{140, 1600, 50}}) {
      // Bf16 products of bf16 numbers may run on other instructions. Their results are rounded to bf16: by
      // half of 2^-8 of their size, which is below 16 times sqrt(in) here.
      for (const DType activations : {DType::f32, DType::bf16}) {
        const Product product(size, dtype, /*with_bias=*/true, activations);
        const std::vector<float> y = multiply(product, size, 0, size.rows, 2, activations);
        const Eigen::MatrixXd right = exact_product(product, size);
        const double bound = activations == DType::f32 ? (size.in <= 256 ? 2e-5 : 5e-5) : 0;
        for (std::int64_t row = 0; row < size.rows; ++row) {
          for (std::int64_t out = 0; out < size.out; ++out) {
            const double ours = static_cast<double>(y[static_cast<std::size_t>(row * size.out + out)]);
            const double rounding = activations == DType::f32 ? 0 : 1e-4 + std::abs(right(row, out)) / 256;
            ASSERT_NEAR(ours, right(row, out), bound + rounding)
                << name_of(dtype) << " times " << name_of(activations) << ", " << size.rows << "x" << size.in;
          }
        }
      }
    }
  }
}

TEST(Matmul, ARowHasTheSameBitsAloneAndInEveryBatchAndOnAnyThreads) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t in : {100, 256, 3072}) {
      for (const DType activations : {DType::f32, DType::bf16}) {
        const Case size{150, in, 101};
        const Product product(size, dtype, /*with_bias=*/false, activations);
        std::vector<float> alone;
        for (std::int64_t row = 0; row < size.rows; ++row) {
          const std::vector<float> y = multiply(product, size, row, 1, 1, activations);
          alone.insert(alone.end(), y.begin(), y.end());
        }
        for (const std::int64_t rows : {2, 3, 4, 5, 7, 8, 64, 150}) {
          for (const int threads : {1, 2, 5}) {
            const std::vector<float> y = multiply(product, size, 0, rows, threads, activations);
            EXPECT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0)
                << name_of(dtype) << " times " << name_of(activations) << " in " << in << " rows " << rows
                << " threads " << threads;
          }
        }
      }
    }
  }
}

TEST(Matmul, SeveralProductsOfOneCallEqualSeparateCalls) {
  const Case wide{5, 64, 130}, narrow{5, 64, 3};
  const Product first(wide, DType::bf16, true), second(narrow, DType::f32, false);
  std::vector<float> a(5 * 130), b(5 * 3);
  ThreadPool pool(2);
  const MatmulOutput outputs[] = {{&first.projection, a.data(), 130}, {&second.projection, b.data(), 3}};
  matmul(first.x.data(), 64, 5, outputs, DType::f32, pool);
  EXPECT_EQ(a, multiply(first, wide, 0, 5, 1));
  std::vector<float> alone(5 * 3);
  const MatmulOutput output{&second.projection, alone.data(), 3};
  matmul(first.x.data(), 64, 5, {&output, 1}, DType::f32, pool);
  EXPECT_EQ(b, alone);
}

#if defined(KVCACHE_BF16_TILES)

/// Row `row` of x times row `out` of w in the order that matrix_tiles.h states.
float product_in_tiles(const Product& product, Case size, std::int64_t row, std::int64_t out) {
  const float* x = &product.x[static_cast<std::size_t>(row * size.in)];
  const float* w = &product.weights[static_cast<std::size_t>(out * size.in)];
  float total = 0;
  for (std::int64_t first = 0; first < size.in; first += 32) {
    float even = 0, odd = 0;
    for (std::int64_t n = first; n < std::min(first + 32, size.in); n += 2) {
      even = std::fma(w[n], x[n], even);
      if (n + 1 < size.in) odd = std::fma(w[n + 1], x[n + 1], odd);
    }
    total += even + odd;
  }
  return total;
}

#endif

TEST(Matmul, MatrixTilesAddInTheStatedOrder) {
#if defined(KVCACHE_BF16_TILES)
  if (!cpu::tiles_allowed()) GTEST_SKIP() << "this system does not let a process use matrix tiles (AMX)";
  for (const Case size : {Case{1, 64, 5}, Case{17, 100, 33}, Case{70, 1024, 50}}) {
    const Product product(size, DType::bf16, /*with_bias=*/false, DType::bf16);
    const std::vector<float> y = multiply(product, size, 0, size.rows, 2, DType::bf16);
    for (std::int64_t row = 0; row < size.rows; ++row) {
      for (std::int64_t out = 0; out < size.out; ++out) {
        ASSERT_EQ(y[static_cast<std::size_t>(row * size.out + out)],
                  round_to(DType::bf16, product_in_tiles(product, size, row, out)))
            << "row " << row << " of " << size.rows << ", output " << out;
      }
    }
  }
#else
  GTEST_SKIP() << "this build has no matrix tiles (AMX)";
#endif
}

TEST(Matmul, RoundsItsResultsToTheActivationType) {
  const Case size{6, 64, 20};
  const Product product(size, DType::f16, true, DType::bf16);
  const std::vector<float> exact = multiply(product, size, 0, 6, 1);
  const std::vector<float> rounded = multiply(product, size, 0, 6, 1, DType::bf16);
  for (std::size_t n = 0; n < exact.size(); ++n) EXPECT_EQ(rounded[n], round_to(DType::bf16, exact[n]));
}

}  // namespace
}  // namespace kvcache
