/// @file
/// See cpu_backend.h. Products are in matmul.cpp, loops over a row in rows.cpp.
#include "common/cpu/cpu_backend.h"

#include <cmath>
#include <new>

#include "common/base/error.h"
#include "common/base/stored_number.h"
#include "common/cpu/matmul.h"
#include "common/cpu/rows.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

/// Threads that wait ask memory for at most so many bytes of the next product's weights: a part of the
/// second-level cache.
constexpr std::int64_t kMostAhead = 512 << 10;
/// They do not where a thread's share is smaller: it comes faster than the asking takes.
constexpr std::int64_t kLeastAhead = 128 << 10;
/// Nor do they with more rows: such a product is bound by its multiply-adds.
constexpr std::int64_t kMostRowsAhead = 64;

/// Rows begin on a cache line. They are not a multiple of 4 KiB apart: such rows compete for the same lines
/// of the cache.
std::int64_t padded_stride(std::int64_t cols) {
  const std::int64_t stride = (cols + 15) / 16 * 16;
  return stride % 1024 == 0 ? stride + 16 : stride;
}

}  // namespace

void CpuBackend::expect(std::span<const ProductWeights> in_order) {
  next_.clear();
  for (std::size_t n = 0; n < in_order.size(); ++n)
    next_[in_order[n][0].data] = in_order[(n + 1) % in_order.size()];
}

void CpuBackend::read_ahead_after(const Projection& projection, std::int64_t rows) {
  const auto found = next_.find(projection.weight.data);
  if (found == next_.end()) return;
  const ProductWeights& next = found->second;
  std::int64_t outputs = 0, bytes = 0;
  for (const Weight& weight : next) {
    outputs += weight.rows;
    bytes += weight.rows * weight.cols * size_of(weight.dtype);
  }
  const bool worth = rows <= kMostRowsAhead && bytes >= kLeastAhead * threads_.threads();
  for (int thread = 0; thread < threads_.threads(); ++thread) {
    if (!worth) {
      threads_.read_ahead(thread, {});
      continue;
    }
    // All these weights multiply with the same x, so a thread's share of the outputs is its share of them.
    std::int64_t output = threads_.first_of(thread, outputs);
    std::int64_t share = threads_.first_of(thread + 1, outputs) - output;
    auto weight = next.begin();
    while (output >= weight->rows) output -= (weight++)->rows;
    const std::int64_t row_bytes = weight->cols * size_of(weight->dtype);
    share = std::min(kMostAhead, std::min(share, weight->rows - output) * row_bytes);
    threads_.read_ahead(thread, {weight->data + output * row_bytes, static_cast<std::size_t>(share)});
  }
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
  cpu::for_each_row(rows, table.cols, threads_, [&](std::int64_t row) {
    const std::byte* from =
        table.data + ids[static_cast<std::size_t>(row)] * table.cols * size_of(table.dtype);
    for (std::int64_t col = 0; col < table.cols; ++col) {
      out.row(row)[col] = round_to(activations_, read_number(table.dtype, from + col * size_of(table.dtype)));
    }
  });
}

void CpuBackend::norm_and_project(const Matrix& x, const Norm& norm, std::span<const Product> products) {
  std::vector<MatmulOutput> outputs;
  for (const Product& product : products) {
    resize(*product.out, x.rows, product.projection->weight.rows);
    outputs.push_back({product.projection, product.out->row(0), product.out->stride});
  }
  resize(normed_, x.rows, x.cols);
  cpu::norm_rows(x, norm, activations_, threads_, normed_);
  read_ahead_after(*products[0].projection, x.rows);
  matmul(normed_.row(0), normed_.stride, x.rows, outputs, activations_, threads_);
}

void CpuBackend::norm_and_gate(const Matrix& x, const Norm& norm, const Projection& gate,
                               const Projection& up, Matrix& out) {
  const Product products[] = {{&gate, &gate_}, {&up, &up_}};
  norm_and_project(x, norm, products);
  resize(out, x.rows, gate.weight.rows);
  cpu::swiglu(gate_, up_, activations_, threads_, out);
}

void CpuBackend::project_and_add(const Matrix& x, const Projection& projection, Matrix& sum) {
  const MatmulOutput output{&projection, sum.row(0), sum.stride, /*add=*/true};
  read_ahead_after(projection, x.rows);
  matmul(x.row(0), x.stride, x.rows, {&output, 1}, activations_, threads_);
}

Rotation CpuBackend::set_positions(std::span<const std::int32_t> positions,
                                   std::span<const float> inverse_frequencies) {
  cosines_.resize(positions.size() * inverse_frequencies.size());
  sines_.resize(cosines_.size());
  const auto half = static_cast<std::int64_t>(inverse_frequencies.size());
  cpu::for_each_row(static_cast<std::int64_t>(positions.size()), half, threads_, [&](std::int64_t row) {
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
  return {cosines_.data(), sines_.data()};
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
  std::vector<Picked> picked(picks.size());
  std::vector<std::exception_ptr> failed(picks.size());  // a task must not throw
  threads_.run(std::ssize(picks), [&](std::int64_t index) {
    const auto n = static_cast<std::size_t>(index);
    try {
      const std::span row(logits.row(picks[n].row), static_cast<std::size_t>(logits.cols));
      picked[n] = picks[n].sampler->pick(row);
    } catch (...) {
      failed[n] = std::current_exception();
    }
  });
  for (const std::exception_ptr& failure : failed) {
    if (failure) std::rethrow_exception(failure);
  }
  return picked;
}

}  // namespace kvcache
