// The matrix product against Eigen in double, and the promise that makes all steps agree: a row's bits depend
// on this row alone.
#include "common/cpu/matmul.h"

#include <gtest/gtest.h>

#include <Eigen/Dense>

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

  Product(Case size, DType dtype, bool with_bias)
      : x(random_numbers(static_cast<std::size_t>(size.rows * size.in), 3)) {
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

std::vector<float> multiply(const Product& product, Case size, std::int64_t first, std::int64_t rows,
                            int threads, DType store_as = DType::f32) {
  std::vector<float> y(static_cast<std::size_t>(rows * size.out), -1.0F);
  const MatmulOutput output{&product.projection, y.data(), size.out};
  ThreadPool pool(threads);
  matmul(&product.x[static_cast<std::size_t>(first * size.in)], size.in, rows, {&output, 1}, store_as, pool);
  return y;
}

TEST(Matmul, AgreesWithEigenInDoubleForEveryTypeAndShape) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Case size :
         {Case{1, 64, 48}, Case{3, 100, 43}, Case{9, 172, 64}, Case{33, 256, 101}, Case{1, 7, 1}}) {
      const Product product(size, dtype, /*with_bias=*/true);
      const std::vector<float> y = multiply(product, size, 0, size.rows, 2);
      using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
      const Eigen::MatrixXd x = Eigen::Map<const Matrix>(product.x.data(), size.rows, size.in).cast<double>();
      const Eigen::MatrixXd w =
          Eigen::Map<const Matrix>(product.weights.data(), size.out, size.in).cast<double>();
      Eigen::MatrixXd right = x * w.transpose();
      for (std::int64_t out = 0; out < size.out; ++out) {
        right.col(out).array() +=
            static_cast<double>(read_number(DType::f32, &product.bias[static_cast<std::size_t>(out) * 4]));
      }
      const Eigen::MatrixXd ours = Eigen::Map<const Matrix>(y.data(), size.rows, size.out).cast<double>();
      EXPECT_LT((ours - right).cwiseAbs().maxCoeff(), 2e-5)
          << name_of(dtype) << " " << size.rows << "x" << size.in;
    }
  }
}

TEST(Matmul, ARowHasTheSameBitsAloneAndInEveryBatchAndOnAnyThreads) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t in : {100, 256, 3072}) {
      const Case size{70, in, 101};
      const Product product(size, dtype, /*with_bias=*/false);
      const std::vector<float> alone = [&] {
        std::vector<float> all;
        for (std::int64_t row = 0; row < size.rows; ++row) {
          const std::vector<float> y = multiply(product, size, row, 1, 1);
          all.insert(all.end(), y.begin(), y.end());
        }
        return all;
      }();
      for (const std::int64_t rows : {2, 3, 4, 5, 7, 8, 64, 70}) {
        for (const int threads : {1, 2, 5}) {
          const std::vector<float> y = multiply(product, size, 0, rows, threads);
          EXPECT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0)
              << name_of(dtype) << " in " << in << " rows " << rows << " threads " << threads;
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

TEST(Matmul, RoundsItsResultsToTheActivationType) {
  const Case size{6, 64, 20};
  const Product product(size, DType::bf16, true);
  const std::vector<float> exact = multiply(product, size, 0, 6, 1);
  const std::vector<float> rounded = multiply(product, size, 0, 6, 1, DType::bf16);
  for (std::size_t n = 0; n < exact.size(); ++n) EXPECT_EQ(rounded[n], round_to(DType::bf16, exact[n]));
}

}  // namespace
}  // namespace kvcache
