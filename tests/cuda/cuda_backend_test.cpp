// The GPU's operations against the CPU's, in every type: equal, apart from the order of sums. And which
// inputs a row's result may depend on.
#include "common/cuda/cuda_backend.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "common/base/stored_number.h"
#include "common/cpu/cpu_backend.h"
#include "common/cpu/rows.h"
#include "common/cpu/scatter.h"
#include "common/cuda/device_weights.h"
#include "common/cuda/few_rows.h"
#include "common/cuda/kernels.h"
#include "common/cuda/rotate_and_store.h"
#include "tests/support/gpu.h"
#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

/// Columns that 16-byte packs fill, and some that they do not.
constexpr std::int64_t kWidths[] = {8, 40, 257, 1024, 3001};
constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

/// One bound for a number type: what two roundings may differ by, relative to the largest magnitude.
double bound(DType dtype) {
  return dtype == DType::f32 ? 2e-6 : dtype == DType::f16 ? 2e-3 : 1.6e-2;
}

void expect_close(const std::vector<float>& ours, const std::vector<float>& right, DType dtype,
                  const std::string& what) {
  ASSERT_EQ(ours.size(), right.size());
  double largest = 0, worst = 0;
  for (std::size_t n = 0; n < right.size(); ++n) {
    ASSERT_TRUE(std::isfinite(ours[n])) << what << ", number " << n;
    largest = std::max(largest, static_cast<double>(std::abs(right[n])));
    worst = std::max(worst, static_cast<double>(std::abs(ours[n] - right[n])));
  }
  EXPECT_LE(worst, bound(dtype) * largest) << what << " " << name_of(dtype);
}

class CudaBackend : public OnGpu {
 protected:
  /// Both backends in `dtype`.
  void use(DType dtype) {
    dtype_ = dtype;
    cpu_ = std::make_unique<CpuBackend>(dtype, threads_);
    gpu_ = std::make_unique<cuda::CudaBackend>(dtype, shared_device());
    bytes_.clear();
    buffers_.clear();
  }
  std::vector<DType> types() const {
    std::vector<DType> all;
    for (const DType dtype : kTypes) {
      if (has(dtype)) all.push_back(dtype);
    }
    return all;
  }

  /// Numbers that the type holds.
  std::vector<float> numbers(std::int64_t count, std::uint32_t seed) const {
    std::vector<float> result = random_numbers(static_cast<std::size_t>(count), seed);
    for (float& number : result) number = round_to(dtype_, 2 * number);
    return result;
  }
  struct Both {
    Matrix cpu, gpu;
  };
  Both matrices(std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
    Both both;
    cpu_->resize(both.cpu, rows, cols);
    gpu_->resize(both.gpu, rows, cols);
    const std::vector<float> all = numbers(rows * cols, seed);
    std::vector<float> padded(static_cast<std::size_t>(rows * both.gpu.stride),
                              std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(all.begin() + row * cols, cols, both.cpu.row(row));
      std::copy_n(all.begin() + row * cols, cols, padded.begin() + row * both.gpu.stride);
    }
    const std::vector<std::byte> bytes = stored(padded, dtype_);
    cuda::check(cudaMemcpyAsync(both.gpu.data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream()),
                "a test");
    return both;
  }
  struct BothWeights {
    Weight cpu, gpu;
  };
  BothWeights weights(std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
    bytes_.push_back(stored(numbers(rows * cols, seed), dtype_));
    buffers_.push_back(on_gpu(bytes_.back()));
    return {{dtype_, rows, cols, bytes_.back().data()}, {dtype_, rows, cols, buffers_.back().data()}};
  }
  std::vector<float> read(Backend& backend, const Matrix& matrix) const {
    std::vector<float> result(static_cast<std::size_t>(matrix.rows * matrix.cols),
                              std::numeric_limits<float>::quiet_NaN());
    backend.read(matrix, result);
    return result;
  }
  void expect_same(const Both& both, const std::string& what) {
    expect_close(read(*gpu_, both.gpu), read(*cpu_, both.cpu), dtype_, what);
  }

  /// The pools after `rotate_and_store` on the GPU: K and V, [pool_slots, k.cols] each. They begin as zeros.
  std::pair<std::vector<float>, std::vector<float>> rotated_and_stored(const HeadSettings& heads,
                                                                       std::int64_t head_dim, Both& q,
                                                                       Both& k, const Both& v,
                                                                       const std::vector<std::int64_t>& slots,
                                                                       std::int64_t pool_slots) {
    const std::vector<std::byte> zeros(static_cast<std::size_t>(pool_slots * k.gpu.cols * size_of(dtype_)));
    const auto k_pool = on_gpu(zeros), v_pool = on_gpu(zeros);
    const auto gpu_slots = on_gpu(slots);
    cuda::rotate_and_store(dtype_, heads, head_dim, {q.gpu, k.gpu, v.gpu}, gpu_slots.data(), k_pool.data(),
                           v_pool.data(), stream());
    const auto pool = [&](std::byte* data) {
      Matrix matrix;
      matrix.data = data;
      matrix.rows = pool_slots;
      matrix.cols = matrix.stride = k.gpu.cols;
      return read(*gpu_, matrix);
    };
    return {pool(k_pool.data()), pool(v_pool.data())};
  }
  /// Rows of three heads of q and two of k and v, a row for each slot.
  void expect_rotated_and_stored(const HeadSettings& on_cpu, const HeadSettings& on_gpu,
                                 std::int64_t head_dim, const std::vector<std::int64_t>& slots) {
    constexpr std::int64_t kPoolSlots = 7;
    const std::int64_t rows = std::ssize(slots);
    Both q = matrices(rows, 3 * head_dim, 10), k = matrices(rows, 2 * head_dim, 11);
    const Both v = matrices(rows, 2 * head_dim, 12);
    const auto [k_stored, v_stored] = rotated_and_stored(on_gpu, head_dim, q, k, v, slots, kPoolSlots);
    std::vector<std::byte> k_pool(static_cast<std::size_t>(kPoolSlots * k.cpu.cols * size_of(dtype_)));
    std::vector<std::byte> v_pool = k_pool;
    cpu::rotate_and_store(on_cpu, head_dim, {q.cpu, k.cpu, v.cpu}, slots, dtype_, k_pool.data(),
                          v_pool.data(), threads_);
    expect_same(q, "q");
    expect_close(k_stored, from_stored(k_pool), dtype_, "k");
    EXPECT_EQ(v_stored, from_stored(v_pool)) << "v";
  }
  std::vector<float> from_stored(const std::vector<std::byte>& bytes) const {
    std::vector<float> result;
    for (std::int64_t at = 0; at < std::ssize(bytes); at += size_of(dtype_))
      result.push_back(read_number(dtype_, bytes.data() + at));
    return result;
  }

  ThreadPool threads_{2};
  DType dtype_ = DType::f32;
  std::unique_ptr<CpuBackend> cpu_;
  std::unique_ptr<cuda::CudaBackend> gpu_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<cuda::DeviceBuffer<std::byte>> buffers_;
};

TEST_F(CudaBackend, EmbedsAsTheCpuDoes) {
  for (const DType dtype : types()) {
    use(dtype);
    for (const std::int64_t width : kWidths) {
      const BothWeights table = weights(11, width, 1);
      const std::vector<std::int32_t> ids{10, 0, 3, 3, 7};
      Both out;
      cpu_->embed(table.cpu, ids, out.cpu);
      gpu_->embed(table.gpu, ids, out.gpu);
      EXPECT_EQ(read(*gpu_, out.gpu), read(*cpu_, out.cpu)) << width;
    }
  }
}

TEST_F(CudaBackend, NormalisesAndAddsAsTheCpuDoes) {
  for (const DType dtype : types()) {
    use(dtype);
    for (const std::int64_t width : kWidths) {
      for (const std::int64_t rows : {1, 7}) {
        const Both x = matrices(rows, width, 2);
        Both sum = matrices(rows, width, 3), out = matrices(rows, width, 3);
        const BothWeights gain = weights(1, width, 4);
        cpu::norm_rows(x.cpu, {gain.cpu, 1e-5F}, dtype, threads_, out.cpu);
        cuda::norm_rows(dtype, cuda::rows_of(x.gpu), gain.gpu.data, 1e-5F, cuda::rows_of(out.gpu), stream());
        expect_same(out, "norm");
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t col = 0; col < width; ++col)
            sum.cpu.row(row)[col] = round_to(dtype, sum.cpu.row(row)[col] + x.cpu.row(row)[col]);
        }
        cuda::add_rows(dtype, cuda::rows_of(x.gpu), cuda::rows_of(sum.gpu), stream());
        EXPECT_EQ(read(*gpu_, sum.gpu), read(*cpu_, sum.cpu)) << "one addition, one rounding";
      }
    }
  }
}

TEST_F(CudaBackend, ProjectsAsTheCpuDoesWithAndWithoutBias) {
  for (const DType dtype : types()) {
    use(dtype);
    for (const std::int64_t in : {8, 64, 200, 256, 1280}) {  // the last two fit the kernels for few rows
      for (const std::int64_t rows : {1, 5, 16, 70}) {
        const Both x = matrices(rows, in, 5);
        const BothWeights gain = weights(1, in, 4);
        for (const bool biased : {false, true}) {
          const BothWeights weight = weights(48, in, 6), bias = weights(1, 48, 7);
          Both out, sum = matrices(rows, 48, 8), activated;
          const Projection cpu{weight.cpu, biased ? bias.cpu : Weight{}};
          const Projection gpu{weight.gpu, biased ? bias.gpu : Weight{}};
          const Backend::Product cpu_product{&cpu, &out.cpu}, gpu_product{&gpu, &out.gpu};
          cpu_->norm_and_project(x.cpu, {gain.cpu, 1e-5F}, {&cpu_product, 1});
          gpu_->norm_and_project(x.gpu, {gain.gpu, 1e-5F}, {&gpu_product, 1});
          expect_same(out, "norm and project");
          cpu_->project_and_add(x.cpu, cpu, sum.cpu);
          gpu_->project_and_add(x.gpu, gpu, sum.gpu);
          expect_same(sum, "project and add");
          const BothWeights up = weights(48, in, 9);
          cpu_->norm_and_gate(x.cpu, {gain.cpu, 1e-5F}, cpu, {up.cpu, cpu.bias}, activated.cpu);
          gpu_->norm_and_gate(x.gpu, {gain.gpu, 1e-5F}, gpu, {up.gpu, gpu.bias}, activated.gpu);
          expect_same(activated, "norm and gate");
        }
      }
    }
  }
}

TEST_F(CudaBackend, ProjectsThreeAtOnceWhenTheirWeightsLieTogether) {
  for (const DType dtype : types()) {
    use(dtype);
    // Sizes after which the next matrix does, and does not, begin on 16 bytes; all biased, none, or some.
    for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{64, 16, 16}, {60, 12, 12}}) {
      for (const std::string biased : {"all", "none", "some"}) {
        ModelConfig config;
        Weights model;
        model.layers.resize(1);
        Projection* projections[] = {&model.layers[0].q, &model.layers[0].k, &model.layers[0].v};
        for (std::size_t n = 0; n < 3; ++n) {
          projections[n]->weight = weights(sizes[n], 64, static_cast<std::uint32_t>(20 + n)).cpu;
          if (biased == "all" || (biased == "some" && n == 1))
            projections[n]->bias = weights(1, sizes[n], static_cast<std::uint32_t>(30 + n)).cpu;
        }
        model.embedding = model.lm_head = weights(4, 64, 40).cpu;
        const Weights uploaded = cuda::upload_weights(model, dtype, device());
        const LayerWeights& layer = uploaded.layers[0];
        for (const std::int64_t rows : {1, 9, 3, 37, 300}) {  // grows and shrinks
          const Both x = matrices(rows, 64, 8);
          const BothWeights gain = weights(1, 64, 9);
          Both q, k, v;
          const Backend::Product cpu[] = {
              {projections[0], &q.cpu}, {projections[1], &k.cpu}, {projections[2], &v.cpu}};
          const Backend::Product gpu[] = {{&layer.q, &q.gpu}, {&layer.k, &k.gpu}, {&layer.v, &v.gpu}};
          cpu_->norm_and_project(x.cpu, {gain.cpu, 1e-5F}, cpu);
          gpu_->norm_and_project(x.gpu, {gain.gpu, 1e-5F}, gpu);
          expect_same(q, "q");
          expect_same(k, "k");
          expect_same(v, "v");
        }
      }
    }
  }
}

TEST_F(CudaBackend, RotatesAndStoresAsTheCpuDoes) {
  for (const DType dtype : types()) {
    use(dtype);
    for (const std::int64_t head_dim : {8, 16, 64, 80, 128, 256}) {
      std::vector<float> speeds;
      for (std::int64_t d = 0; d < head_dim / 2; ++d)
        speeds.push_back(
            static_cast<float>(std::pow(1e6, -2.0 * static_cast<double>(d) / static_cast<double>(head_dim))));
      const std::vector<std::int32_t> positions{0, 1, 77, 9000, 131071};
      const Rotation on_cpu = cpu_->set_positions(positions, speeds);
      const Rotation on_gpu = gpu_->set_positions(positions, speeds);
      const BothWeights gain = weights(1, head_dim, 9);
      for (const bool normed : {false, true}) {
        for (const bool rotated : {false, true}) {
          const Norm cpu_norm{normed ? gain.cpu : Weight{}, 1e-6F},
              gpu_norm{normed ? gain.gpu : Weight{}, 1e-6F};
          const Norm cpu_other{cpu_norm.weight, 1e-2F}, gpu_other{gpu_norm.weight, 1e-2F};
          expect_rotated_and_stored({cpu_norm, cpu_other, rotated ? on_cpu : Rotation{}},
                                    {gpu_norm, gpu_other, rotated ? on_gpu : Rotation{}}, head_dim,
                                    {4, -1, 0, 6, 3});
        }
      }
    }
  }
}

// What scatter_kv does with numbers of V that are not finite, where rows are rotated on their way.
TEST_F(CudaBackend, RotatesAndStoresNoVThatIsNotFinite) {
  constexpr std::int64_t kHeadDim = 80;
  for (const DType dtype : types()) {
    use(dtype);
    const std::vector<std::int32_t> positions{5, 6, 7};
    const Rotation rotation = gpu_->set_positions(positions, std::vector<float>(kHeadDim / 2, 0.5F));
    Both q = matrices(3, kHeadDim, 10), k = matrices(3, 2 * kHeadDim, 11);
    Both v = matrices(3, 2 * kHeadDim, 12);
    const std::pair<std::int64_t, std::int64_t> damaged[] = {{0, 3}, {1, 79}, {1, 80}, {2, 121}};
    const float not_finite[] = {INFINITY, -INFINITY, NAN, INFINITY};
    for (std::size_t n = 0; n < std::size(damaged); ++n) {
      const std::vector<std::byte> number = stored({not_finite[n]}, dtype);
      const auto [row, col] = damaged[n];
      cuda::check(
          cudaMemcpyAsync(static_cast<std::byte*>(v.gpu.data) + (row * v.gpu.stride + col) * size_of(dtype),
                          number.data(), number.size(), cudaMemcpyHostToDevice, stream()),
          "a test");
      cuda::check(cudaStreamSynchronize(stream()), "a test");
    }
    const auto [k_stored, v_stored] = rotated_and_stored({{}, {}, rotation}, kHeadDim, q, k, v, {2, 0, 1}, 3);
    const std::int64_t slots[] = {2, 0, 1};
    for (std::size_t at = 0; at < k_stored.size(); ++at) {
      const bool is_damaged = std::ranges::any_of(damaged, [&](auto place) {
        return slots[place.first] * 2 * kHeadDim + place.second == static_cast<std::int64_t>(at);
      });
      EXPECT_EQ(std::isnan(k_stored[at]), is_damaged) << at;
      if (is_damaged) {
        EXPECT_EQ(v_stored[at], 0) << at;
      } else {
        EXPECT_TRUE(std::isfinite(v_stored[at])) << at;
      }
    }
  }
}

TEST_F(CudaBackend, GatesAsTheCpuDoes) {
  for (const DType dtype : types()) {
    use(dtype);
    for (const std::int64_t width : kWidths) {
      const Both gate = matrices(5, width, 11), up = matrices(5, width, 12);
      Both out = matrices(5, width, 13);
      cpu::swiglu(gate.cpu, up.cpu, dtype, threads_, out.cpu);
      cuda::swiglu(dtype, cuda::rows_of(gate.gpu), cuda::rows_of(up.gpu), cuda::rows_of(out.gpu), stream());
      expect_same(out, "swiglu");
    }
  }
}

TEST_F(CudaBackend, SelectsRowsAsTheCpuDoes) {
  for (const DType dtype : types()) {
    use(dtype);
    for (const std::int64_t width : kWidths) {
      const Both x = matrices(6, width, 13);
      const std::vector<std::int32_t> rows{5, 0, 0, 3};
      Both out;
      cpu_->select_rows(x.cpu, rows, out.cpu);
      gpu_->select_rows(x.gpu, rows, out.gpu);
      EXPECT_EQ(read(*gpu_, out.gpu), read(*cpu_, out.cpu));
    }
  }
}

TEST_F(CudaBackend, ConvertsWeightsAsTheCpuRoundsThem) {
  for (const DType from : kTypes) {
    for (const DType to : types()) {
      dtype_ = from;
      std::vector<float> odd = numbers(1000, 14);
      odd[3] = round_to(from, 1.00390625F + 1e-6F);  // NU5: between two bfloat16 numbers
      odd[4] = round_to(from, 1e-7F);                // not normal in float16
      odd[5] = -0.0F;
      const std::vector<std::byte> bytes = stored(odd, from);
      Weights model;
      model.embedding = model.lm_head = {from, 10, 100, bytes.data()};
      const Weights uploaded = cuda::upload_weights(model, to, device());
      EXPECT_EQ(uploaded.lm_head.data, uploaded.embedding.data) << "a tied head is there once";
      EXPECT_EQ(from_gpu(uploaded.embedding.data, 1000 * size_of(to)), stored(odd, to));
    }
  }
}

TEST_F(CudaBackend, ARowsResultIsTheSameAloneAndAmongOthers) {
  use(has(DType::bf16) ? DType::bf16 : DType::f16);
  constexpr std::int64_t kWidth = 1024;
  const BothWeights gain = weights(1, kWidth, 15);
  const Both x = matrices(33, kWidth, 16);
  Matrix out;
  gpu_->resize(out, 33, kWidth);
  cuda::norm_rows(dtype_, cuda::rows_of(x.gpu), gain.gpu.data, 1e-5F, cuda::rows_of(out), stream());
  const std::vector<float> together = read(*gpu_, out);
  for (const std::int64_t row : {0, 17, 32}) {
    Matrix one = x.gpu;
    one.data = static_cast<std::byte*>(one.data) + row * one.stride * size_of(dtype_);
    one.rows = out.rows = 1;
    cuda::norm_rows(dtype_, cuda::rows_of(one), gain.gpu.data, 1e-5F, cuda::rows_of(out), stream());
    EXPECT_EQ(read(*gpu_, out),
              std::vector<float>(together.begin() + row * kWidth, together.begin() + (row + 1) * kWidth));
  }
}

/// Up to 16 rows are multiplied by kernels of our own, more by cuBLAS.
TEST_F(CudaBackend, FewRowsHaveTheSameBitsAtEveryNumberOfRowsAndNearThemBeyond) {
  constexpr std::int64_t kIn = 768, kOuts = 48, kFew = 16;
  for (const DType dtype : types()) {
    if (dtype == DType::f32) continue;
    use(dtype);
    const Matrix x = matrices(kFew + 1, kIn, 31).gpu, before = matrices(kFew + 1, kOuts, 32).gpu;
    const Norm norm{weights(1, kIn, 33).gpu, 1e-6F};
    for (const bool biased : {false, true}) {
      const Weight bias = biased ? weights(1, kOuts, 34).gpu : Weight{};
      const Projection first{weights(kOuts, kIn, 35).gpu, bias}, second{weights(kOuts, kIn, 36).gpu, bias};
      /// The results of all three operations with some rows from `begin` on.
      const auto results = [&](std::int64_t begin, std::int64_t rows) {
        const auto part = [&](const Matrix& of) {
          Matrix some = of;
          some.data = static_cast<std::byte*>(of.data) + begin * of.stride * size_of(dtype);
          some.rows = rows;
          return some;
        };
        std::vector<Matrix> all(3);
        const Backend::Product product{&first, &all[0]};
        gpu_->norm_and_project(part(x), norm, {&product, 1});
        gpu_->norm_and_gate(part(x), norm, first, second, all[1]);
        std::vector<std::int32_t> own(static_cast<std::size_t>(rows));
        std::iota(own.begin(), own.end(), static_cast<std::int32_t>(begin));
        gpu_->select_rows(before, own, all[2]);
        gpu_->project_and_add(part(x), first, all[2]);
        std::vector<std::vector<float>> numbers;
        for (const Matrix& matrix : all) numbers.push_back(read(*gpu_, matrix));
        return numbers;
      };
      const auto together = results(0, kFew), more = results(0, kFew + 1);
      for (std::size_t n = 0; n < 3; ++n) {
        const auto rows_of = [&](const std::vector<float>& numbers, std::int64_t begin, std::int64_t rows) {
          return std::vector<float>(numbers.begin() + begin * kOuts,
                                    numbers.begin() + (begin + rows) * kOuts);
        };
        for (std::int64_t rows = 1; rows <= kFew; ++rows) {
          EXPECT_EQ(results(0, rows)[n], rows_of(together[n], 0, rows))
              << "operation " << n << ", rows " << rows;
          EXPECT_EQ(results(rows - 1, 1)[n], rows_of(together[n], rows - 1, 1)) << "operation " << n;
        }
        expect_close(rows_of(more[n], 0, kFew), together[n], dtype, "the same by cuBLAS");
      }
    }
  }
}

// Thread blocks that fill a multiprocessor's memory and wait for others to end are slower than cuBLAS.
TEST_F(CudaBackend, FewWideRowsOfManyOutputsAreLeftToCublas) {
  const auto fits = [](cuda::FewRowsKind kind, std::int64_t rows, std::int64_t in, std::int64_t outs) {
    alignas(16) static const std::byte gain[16] = {};
    return cuda::few_rows_fit(DType::bf16, kind,
                              {.x_stride = in,
                               .rows = rows,
                               .in = in,
                               .norm = kind == cuda::FewRowsKind::add ? nullptr : gain,
                               .outs = outs});
  };
  using enum cuda::FewRowsKind;
  for (const std::int64_t rows : {1, 8, 16}) {
    EXPECT_FALSE(fits(gate, rows, 4096, 14'336)) << rows << " rows of Llama 3.1 8B";
    EXPECT_FALSE(fits(store, rows, 4096, 6144)) << rows << " rows of Llama 3.1 8B";
    EXPECT_FALSE(fits(add, rows, 14'336, 4096)) << rows << " rows of Llama 3.1 8B";
  }
  if (!fits(add, 1, 768, 16)) GTEST_SKIP() << "this GPU, or this build, has no kernels for few rows";
  for (const std::int64_t rows : {1, 8, 16}) EXPECT_TRUE(fits(gate, rows, 1024, 48)) << "all at once";
  EXPECT_TRUE(fits(gate, 1, 2048, 8192)) << "73 KiB each, in turn: Llama 3.2 1B";
  EXPECT_FALSE(fits(store, 1, 3072, 8192)) << "109 KiB each, in turn";
  EXPECT_TRUE(fits(gate, 1, 1024, 3072)) << "Qwen3-0.6B";
  EXPECT_TRUE(fits(add, 1, 3072, 1024)) << "Qwen3-0.6B";
}

// A grid counts at most 65,535 thread blocks in y and z; rows must not be laid out there.
TEST_F(CudaBackend, LargePassesMayHaveMoreThan65535Rows) {
  constexpr std::int64_t kRows = 65'600, kWidth = 8;
  use(DType::f32);
  std::vector<std::int32_t> numbers_of_rows(kRows);
  std::iota(numbers_of_rows.rbegin(), numbers_of_rows.rend(), 0);
  const BothWeights table = weights(kRows, kWidth, 17), gain = weights(1, kWidth, 18);
  Both x, y, z;
  cpu_->embed(table.cpu, numbers_of_rows, x.cpu);
  gpu_->embed(table.gpu, numbers_of_rows, x.gpu);
  EXPECT_EQ(read(*gpu_, x.gpu), read(*cpu_, x.cpu));

  const BothWeights weight = weights(kWidth, kWidth, 19), bias = weights(1, kWidth, 20);
  const Projection cpu{weight.cpu, bias.cpu}, gpu{weight.gpu, bias.gpu};
  const Backend::Product cpu_product{&cpu, &y.cpu}, gpu_product{&gpu, &y.gpu};
  const Norm cpu_norm{gain.cpu, 1e-5F}, gpu_norm{gain.gpu, 1e-5F};
  cpu_->norm_and_project(x.cpu, cpu_norm, {&cpu_product, 1});
  gpu_->norm_and_project(x.gpu, gpu_norm, {&gpu_product, 1});
  expect_same(y, "norm and project");
  cpu_->norm_and_gate(x.cpu, cpu_norm, cpu, cpu, z.cpu);
  gpu_->norm_and_gate(x.gpu, gpu_norm, gpu, gpu, z.gpu);
  expect_same(z, "norm and gate");
  cpu_->project_and_add(x.cpu, cpu, y.cpu);
  gpu_->project_and_add(x.gpu, gpu, y.gpu);
  expect_same(y, "project and add");
  cpu_->select_rows(x.cpu, numbers_of_rows, z.cpu);
  gpu_->select_rows(x.gpu, numbers_of_rows, z.gpu);
  EXPECT_EQ(read(*gpu_, z.gpu), read(*cpu_, z.cpu));

  const std::vector<float> speeds{1, 0.1F, 0.01F, 0.001F};
  const Rotation on_cpu = cpu_->set_positions(numbers_of_rows, speeds);
  const Rotation on_gpu = gpu_->set_positions(numbers_of_rows, speeds);
  std::vector<std::int64_t> slots(numbers_of_rows.begin(), numbers_of_rows.end());
  std::vector<std::byte> k_pool(kRows * kWidth * sizeof(float)), v_pool = k_pool;
  cpu::rotate_and_store({cpu_norm, {}, on_cpu}, kWidth, {x.cpu, y.cpu, z.cpu}, slots, DType::f32,
                        k_pool.data(), v_pool.data(), threads_);
  const auto [k_stored, v_stored] = rotated_and_stored({gpu_norm, {}, on_gpu}, kWidth, x, y, z, slots, kRows);
  expect_same(x, "q");
  expect_close(k_stored, from_stored(k_pool), DType::f32, "k");
  EXPECT_EQ(v_stored, from_stored(v_pool)) << "v";
}

// KN11: a row's offset in 32 bits wraps beyond 2^31 numbers.
TEST_F(CudaBackend, LargeMatricesOfMoreThanTwoToThe31NumbersKeepTheirLastRowsRight) {
  constexpr std::int64_t kRows = 70000, kWidth = 32768;
  if (device().free_memory() < 3 * kRows * kWidth * 2 + (std::int64_t{1} << 30))
    GTEST_SKIP() << "needs 14 GB of the GPU's memory";
  use(DType::f16);
  Matrix gate, up, out;
  for (Matrix* matrix : {&gate, &up, &out}) {
    gpu_->resize(*matrix, kRows, kWidth);
    cuda::check(cudaMemsetAsync(matrix->data, 0, static_cast<std::size_t>(kRows * kWidth * 2), stream()),
                "a test");
  }
  const std::int64_t last = (kRows - 1) * kWidth;
  const std::vector<std::byte> ones = stored(std::vector<float>(kWidth, 1.0F), DType::f16);
  for (const Matrix* matrix : {&gate, &up}) {
    cuda::check(cudaMemcpyAsync(static_cast<std::byte*>(matrix->data) + last * 2, ones.data(), ones.size(),
                                cudaMemcpyHostToDevice, stream()),
                "a test");
  }
  const auto last_row = [&] {
    std::vector<float> numbers;
    const std::vector<std::byte> bytes = from_gpu(static_cast<std::byte*>(out.data) + last * 2, kWidth * 2);
    for (std::int64_t col = 0; col < kWidth; ++col)
      numbers.push_back(read_number(DType::f16, &bytes[static_cast<std::size_t>(2 * col)]));
    return numbers;
  };
  const cuda::Rows rows = cuda::rows_of(gate), more = cuda::rows_of(up), to = cuda::rows_of(out);
  cuda::swiglu(DType::f16, rows, more, to, stream());
  EXPECT_EQ(last_row(), std::vector<float>(kWidth, round_to(DType::f16, 1 / (1 + std::exp(-1.0F)))));
  const cuda::DeviceBuffer<std::byte> gain = on_gpu(ones);
  cuda::add_rows(DType::f16, more, rows, stream());
  cuda::norm_rows(DType::f16, rows, gain.data(), 0.0F, to, stream());
  EXPECT_EQ(last_row(), std::vector<float>(kWidth, 1.0F));
  gpu_->select_rows(gate, std::vector<std::int32_t>{kRows - 1}, up);
  out = up;
  EXPECT_EQ(read_number(DType::f16, from_gpu(static_cast<std::byte*>(up.data), 2).data()), 2.0F);
}

}  // namespace
}  // namespace kvcache
