/// @file
/// See cuda_backend.h. The kernels themselves are in kernels.cu.
#include "common/cuda/cuda_backend.h"

#include <algorithm>
#include <utility>

namespace kvcache::cuda {
namespace {

/// `cols` columns of `matrix` from `first` on, of numbers of `size` bytes.
Matrix columns(const Matrix& matrix, std::int64_t first, std::int64_t cols, std::int64_t size) {
  Matrix part = matrix;
  part.data = static_cast<std::byte*>(matrix.data) + first * size;
  part.cols = cols;
  part.capacity = 0;  // the memory is that of `matrix`
  return part;
}

}  // namespace

CudaBackend::CudaBackend(DType dtype, std::shared_ptr<const Device> device)
    : dtype_(dtype), device_(std::move(device)), cublas_(device_->stream()) {}

void CudaBackend::resize(Matrix& matrix, std::int64_t rows, std::int64_t cols) {
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.stride = padded_stride(cols);
  if (rows * matrix.stride <= matrix.capacity) return;
  const std::int64_t capacity = std::max(rows * matrix.stride, matrix.capacity * 3 / 2);
  const std::int64_t bytes = capacity * size_of(dtype_);
  matrix.memory.reset();
  matrix.capacity = 0;  // stays so if the allocation throws
  matrix.memory = allocate_device(bytes, "a pass's activations");
  matrix.data = matrix.memory.get();
  matrix.capacity = capacity;
  // For compute-sanitizer's initcheck, which does not see what cuBLAS's kernels write. Every number is
  // written before it is read.
  check(cudaMemsetAsync(matrix.data, 0, static_cast<std::size_t>(bytes), device_->stream()),
        "clearing memory");
}

void CudaBackend::embed(const Weight& table, std::span<const std::int32_t> ids, Matrix& out) {
  resize(out, std::ssize(ids), table.cols);
  cuda::embed(dtype_, table.data, token_ids_(ids, device_->stream()), rows_of(out), device_->stream());
}

bool CudaBackend::lie_together(std::span<const Product> products) const {
  for (std::size_t n = 1; n < products.size(); ++n) {
    const Projection& before = *products[n - 1].projection;
    const Projection& next = *products[n].projection;
    if (next.weight.data != before.weight.data + before.weight.rows * before.weight.cols * size_of(dtype_) ||
        next.bias.present() != before.bias.present() ||
        (next.bias.present() && next.bias.data != before.bias.data + before.bias.cols * size_of(dtype_)) ||
        before.weight.rows % 8 != 0) {  // the next one's columns would not begin on 16 bytes
      return false;
    }
  }
  return true;
}

void CudaBackend::multiply(const Matrix& x, const Projection& projection, const Rows& out, bool biased) {
  // The product is added to the bias in float32, so there is one rounding.
  if (biased) fill_rows(dtype_, projection.bias.data, out, device_->stream());
  cublas_.multiply(dtype_, x.data, x.stride, projection.weight.data, out.data, out.stride, out.rows, x.cols,
                   out.cols, biased);
}

const Matrix& CudaBackend::normed(const Matrix& x, const Norm& norm) {
  resize(normed_, x.rows, x.cols);
  norm_rows(dtype_, rows_of(x), norm.weight.data, norm.eps, rows_of(normed_), device_->stream());
  return normed_;
}

void CudaBackend::norm_and_project(const Matrix& x, const Norm& norm, std::span<const Product> products) {
  if (!lie_together(products)) {
    for (const Product& product : products) norm_and_project(x, norm, {&product, 1});
    return;
  }
  std::int64_t cols = 0;
  for (const Product& product : products) cols += product.projection->weight.rows;
  Matrix& all = *products[0].out;
  const Projection& first = *products[0].projection;
  resize(all, x.rows, cols);
  if (!try_few_rows(FewRowsKind::store, x, norm, first, {}, all))
    multiply(normed(x, norm), first, rows_of(all), first.bias.present());

  std::int64_t begin = first.weight.rows;
  for (const Product& product : products.subspan(1)) {
    const std::int64_t own = product.projection->weight.rows;
    *product.out = columns(all, begin, own, size_of(dtype_));
    begin += own;
  }
  all.cols = first.weight.rows;
}

void CudaBackend::norm_and_gate(const Matrix& x, const Norm& norm, const Projection& gate,
                                const Projection& up, Matrix& out) {
  resize(out, x.rows, gate.weight.rows);
  if (try_few_rows(FewRowsKind::gate, x, norm, gate, up, out)) return;
  const Product products[] = {{&gate, &gate_}, {&up, &up_}};
  norm_and_project(x, norm, products);
  swiglu(dtype_, rows_of(gate_), rows_of(up_), rows_of(out), device_->stream());
}

void CudaBackend::project_and_add(const Matrix& x, const Projection& projection, Matrix& sum) {
  if (try_few_rows(FewRowsKind::add, x, {}, projection, {}, sum)) return;
  if (!projection.bias.present()) {  // cuBLAS can add one thing
    cublas_.multiply(dtype_, x.data, x.stride, projection.weight.data, sum.data, sum.stride, x.rows, x.cols,
                     sum.cols, /*add=*/true);
    return;
  }
  resize(product_, x.rows, sum.cols);
  multiply(x, projection, rows_of(product_), /*biased=*/true);
  add_rows(dtype_, rows_of(product_), rows_of(sum), device_->stream());
}

bool CudaBackend::try_few_rows(FewRowsKind kind, const Matrix& x, const Norm& norm,
                               const Projection& projection, const Projection& up, const Matrix& out) const {
  const FewRowsWork work{.x = x.data,
                         .x_stride = x.stride,
                         .rows = x.rows,
                         .in = x.cols,
                         .norm = norm.weight.data,
                         .eps = norm.eps,
                         .weight = projection.weight.data,
                         .bias = projection.bias.data,
                         .up_weight = up.weight.data,
                         .up_bias = up.bias.data,
                         .out = out.data,
                         .out_stride = out.stride,
                         .outs = out.cols};
  if (!few_rows_fit(dtype_, kind, work)) return false;
  few_rows(dtype_, kind, work, device_->stream());
  return true;
}

Rotation CudaBackend::set_positions(std::span<const std::int32_t> positions,
                                    std::span<const float> inverse_frequencies) {
  const std::int64_t rows = std::ssize(positions), half = std::ssize(inverse_frequencies);
  cosines_.reserve(rows * half, "the rotation of a pass");
  sines_.reserve(rows * half, "the rotation of a pass");
  rotation_table(positions_(positions, device_->stream()),
                 inverse_frequencies_(inverse_frequencies, device_->stream()), rows, half, cosines_.data(),
                 sines_.data(), device_->stream());
  return {cosines_.data(), sines_.data()};
}

void CudaBackend::select_rows(const Matrix& x, std::span<const std::int32_t> rows, Matrix& out) {
  resize(out, std::ssize(rows), x.cols);
  cuda::select_rows(dtype_, rows_of(x), selected_(rows, device_->stream()), rows_of(out), device_->stream());
}

void CudaBackend::read(const Matrix& x, std::span<float> out) {
  wide_.reserve(x.rows * x.cols, "the numbers to be read");
  widen(dtype_, rows_of(x), wide_.data(), device_->stream());
  check(
      cudaMemcpyAsync(out.data(), wide_.data(), out.size_bytes(), cudaMemcpyDeviceToHost, device_->stream()),
      "copying from the GPU");
  device_->synchronize();
}

std::vector<Picked> CudaBackend::pick(const Matrix& logits, std::span<const Pick> picks) {
  if (picks.empty()) {
    device_->synchronize();
    return {};
  }
  return pick_ids_(dtype_, logits.data, logits.stride, logits.cols, picks, device_->stream());
}

}  // namespace kvcache::cuda
