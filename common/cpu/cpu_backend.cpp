/// @file
/// See cpu_backend.h. All operations except matrix products: short loops over a row, sixteen numbers at a
/// time.
#include "common/cpu/cpu_backend.h"

#include <cmath>
#include <new>

#include "common/base/error.h"
#include "common/base/number.h"
#include "common/cpu/dot_tile.h"
#include "common/cpu/matmul.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

/// Numbers in a piece of work. Up to this many, one thread is faster than handing work to others.
constexpr std::int64_t kSerialNumbers = 16 * 1024;

/// Rows begin on a cache line. They are not a multiple of 4 KiB apart: such rows compete for the same lines
/// of the cache.
std::int64_t padded_stride(std::int64_t cols) {
  const std::int64_t stride = (cols + 15) / 16 * 16;
  return stride % 1024 == 0 ? stride + 16 : stride;
}

/// Sum of squares of x [cols] in the order of vec16.h.
float sum_of_squares(const float* x, std::int64_t cols) {
  Vec16 squares = Vec16::all(0.0F);
  std::int64_t at = 0;
  for (; at + 16 <= cols; at += 16) {
    const Vec16 lanes = Vec16::load(x + at);
    squares = fma(lanes, lanes, squares);
  }
  if (at < cols) {
    const Vec16 lanes = load_tail<DType::f32>(reinterpret_cast<const std::byte*>(x + at), cols - at);
    squares = fma(lanes, lanes, squares);
  }
  return sum(squares);
}

/// out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
template <DType stored, DType activation>
void normalise(const float* x, std::int64_t cols, const Weight& weight, float eps, float* out) {
  const float scale = 1.0F / std::sqrt(sum_of_squares(x, cols) / static_cast<float>(cols) + eps);
  std::int64_t at = 0;
  for (; at + 16 <= cols; at += 16) {
    const Vec16 gain = Vec16::load<stored>(weight.data + at * size_of(stored));
    round_to<activation>(Vec16::load(x + at) * Vec16::all(scale) * gain).store(out + at);
  }
  for (; at < cols; ++at) {
    out[at] = round_to(activation, x[at] * scale * read_number(stored, weight.data + at * size_of(stored)));
  }
}

void normalise(const float* x, std::int64_t cols, const Weight& weight, float eps, DType activation,
               float* out) {
  with_dtype(weight.dtype, [&]<DType stored>() {
    with_dtype(activation, [&]<DType rounded>() { normalise<stored, rounded>(x, cols, weight, eps, out); });
  });
}

/// Turns the pairs (d, d + half) of one head by the angles whose cosines and sines are given, [half].
template <DType activation>
void rotate(float* head, std::int64_t half, const float* cosine, const float* sine) {
  for (std::int64_t d = 0; d < half; ++d) {
    const float first = head[d], second = head[d + half];
    const float turned_first = first * cosine[d] - second * sine[d];
    const float turned_second = second * cosine[d] + first * sine[d];
    head[d] = activation == DType::f32 ? turned_first : round_to(activation, turned_first);
    head[d + half] = activation == DType::f32 ? turned_second : round_to(activation, turned_second);
  }
}

}  // namespace

template <typename Function>
void CpuBackend::for_each_row(std::int64_t rows, std::int64_t cols, Function function) const {
  if (rows * cols < kSerialNumbers) {
    for (std::int64_t row = 0; row < rows; ++row) function(row);
    return;
  }
  threads_.run_pieces(rows, std::max<std::int64_t>(1, kSerialNumbers / cols),
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t row = begin; row < end; ++row) function(row);
                      });
}

void CpuBackend::resize(Matrix& matrix, std::int64_t rows, std::int64_t cols) {
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.stride = padded_stride(cols);
  if (rows * matrix.stride <= matrix.capacity) return;
  // Grow by at least half, so that a sequence that grows by one token a pass does not allocate each time.
  const std::int64_t capacity = std::max(rows * matrix.stride, matrix.capacity * 3 / 2);
  const auto bytes = static_cast<std::size_t>(capacity) * sizeof(float);
  matrix.memory.reset();
  matrix.capacity = 0;  // stays 0 if the allocation fails
  matrix.data = ::operator new(bytes, std::align_val_t(64), std::nothrow);
  if (matrix.data == nullptr) {
    throw RunError(
        fmt::format("no memory for the activations of {} tokens x {} numbers ({} bytes); give fewer or "
                    "shorter prompts, or with "
                    "--serve a smaller --max-batch-tokens",
                    rows, cols, bytes));
  }
  matrix.memory =
      std::shared_ptr<void>(matrix.data, [](void* data) { ::operator delete(data, std::align_val_t(64)); });
  matrix.capacity = capacity;
}

void CpuBackend::embed(const Weight& table, std::span<const std::int32_t> ids, Matrix& out) {
  const auto rows = static_cast<std::int64_t>(ids.size());
  resize(out, rows, table.cols);
  for_each_row(rows, table.cols, [&](std::int64_t row) {
    const std::byte* from =
        table.data + ids[static_cast<std::size_t>(row)] * table.cols * size_of(table.dtype);
    for (std::int64_t col = 0; col < table.cols; ++col) {
      out.row(row)[col] = round_to(activations_, read_number(table.dtype, from + col * size_of(table.dtype)));
    }
  });
}

void CpuBackend::add_and_norm(Matrix& x, const Matrix& delta, const Weight& weight, float eps, Matrix& out) {
  resize(out, x.rows, x.cols);
  for_each_row(x.rows, x.cols, [&](std::int64_t row) {
    if (delta.rows > 0) {
      Eigen::Map<Eigen::ArrayXf> sum(x.row(row), x.cols);
      sum += Eigen::Map<const Eigen::ArrayXf>(delta.row(row), x.cols);
      if (activations_ != DType::f32)
        sum = sum.unaryExpr([this](float value) { return round_to(activations_, value); });
    }
    normalise(x.row(row), x.cols, weight, eps, activations_, out.row(row));
  });
}

void CpuBackend::project(const Matrix& x, std::span<const Product> products) {
  std::vector<MatmulOutput> outputs;
  for (const Product& product : products) {
    resize(*product.out, x.rows, product.projection->weight.rows);
    outputs.push_back({product.projection, product.out->row(0), product.out->stride});
  }
  matmul(x.row(0), x.stride, x.rows, outputs, activations_, threads_);
}

void CpuBackend::set_positions(std::span<const std::int32_t> positions,
                               std::span<const float> inverse_frequencies) {
  cosines_.resize(positions.size() * inverse_frequencies.size());
  sines_.resize(cosines_.size());
  const auto half = static_cast<std::int64_t>(inverse_frequencies.size());
  for_each_row(static_cast<std::int64_t>(positions.size()), half, [&](std::int64_t row) {
    for (std::int64_t d = 0; d < half; ++d) {
      // The angle is rounded to float32 before its sine is taken, as in the implementations that trained the
      // models.
      const float angle = static_cast<float>(positions[static_cast<std::size_t>(row)]) *
                          inverse_frequencies[static_cast<std::size_t>(d)];
      cosines_[static_cast<std::size_t>(row * half + d)] =
          static_cast<float>(std::cos(static_cast<double>(angle)));
      sines_[static_cast<std::size_t>(row * half + d)] =
          static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  });
}

void CpuBackend::norm_and_rotate(Matrix& x, std::int64_t head_dim, const Weight& norm, float eps) {
  const std::int64_t half = head_dim / 2;
  for_each_row(x.rows, x.cols, [&](std::int64_t row) {
    const float* cosine = &cosines_[static_cast<std::size_t>(row * half)];
    const float* sine = &sines_[static_cast<std::size_t>(row * half)];
    for (float* head = x.row(row); head < x.row(row) + x.cols; head += head_dim) {
      if (norm.present()) normalise(head, head_dim, norm, eps, activations_, head);
      with_dtype(activations_, [&]<DType dtype>() { rotate<dtype>(head, half, cosine, sine); });
    }
  });
}

void CpuBackend::swiglu(const Matrix& gate, const Matrix& up, Matrix& out) {
  resize(out, gate.rows, gate.cols);
  for_each_row(gate.rows, gate.cols, [&](std::int64_t row) {
    // Rows are padded to whole vectors, so the last vector may be computed in full.
    for (std::int64_t col = 0; col < gate.cols; col += 16) {
      const Vec16 g = Vec16::load(gate.row(row) + col);
      const Vec16 silu = g / (Vec16::all(1.0F) + exp(Vec16::all(0.0F) - g));
      const Vec16 product = silu * Vec16::load(up.row(row) + col);
      with_dtype(activations_, [&]<DType dtype>() { round_to<dtype>(product).store(out.row(row) + col); });
    }
  });
}

void CpuBackend::select_rows(const Matrix& x, std::span<const std::int32_t> rows, Matrix& out) {
  resize(out, static_cast<std::int64_t>(rows.size()), x.cols);
  for (std::size_t n = 0; n < rows.size(); ++n) {
    std::copy_n(x.row(rows[n]), x.cols, out.row(static_cast<std::int64_t>(n)));
  }
}

void CpuBackend::read(const Matrix& x, std::span<float> out) {
  for (std::int64_t row = 0; row < x.rows; ++row)
    std::copy_n(x.row(row), x.cols, &out[static_cast<std::size_t>(row * x.cols)]);
}

std::vector<Picked> CpuBackend::pick(const Matrix& logits, std::span<const Pick> picks) {
  std::vector<Picked> picked;
  for (const Pick& wanted : picks)
    picked.push_back(wanted.sampler->pick({logits.row(wanted.row), static_cast<std::size_t>(logits.cols)}));
  return picked;
}

}  // namespace kvcache
