/// @file
/// The forward pass's arithmetic on a GPU: calls the kernels of kernels.h, cublas.h and sampling.h. Chapter:
/// step3_paged/README.md.
#pragma once

#include <memory>

#include "common/cuda/cublas.h"
#include "common/cuda/device.h"
#include "common/cuda/few_rows.h"
#include "common/cuda/kernels.h"
#include "common/cuda/memory.h"
#include "common/cuda/recorded_passes.h"
#include "common/cuda/sampling.h"
#include "common/model/backend.h"

namespace kvcache::cuda {

/// Activations and weights are numbers of one type on the GPU; sums are float32. Work is queued in the
/// device's stream; only `read` and `pick` wait for it. Few rows are multiplied by the kernels of few_rows.h,
/// many by cuBLAS. A row's result depends on that row alone, bit for bit, except in cuBLAS's products.
class CudaBackend final : public Backend {
 public:
  /// @param dtype  of activations and weights (upload_weights)
  CudaBackend(DType dtype, std::shared_ptr<const Device> device);

  void resize(Matrix& matrix, std::int64_t rows, std::int64_t cols) override;
  void embed(const Weight& table, std::span<const std::int32_t> ids, Matrix& out) override;
  /// Products whose weights lie one after the other are computed as one product; their results are then
  /// columns of one matrix.
  void norm_and_project(const Matrix& x, const Norm& norm, std::span<const Product> products) override;
  void norm_and_gate(const Matrix& x, const Norm& norm, const Projection& gate, const Projection& up,
                     Matrix& out) override;
  void project_and_add(const Matrix& x, const Projection& projection, Matrix& sum) override;
  Rotation set_positions(std::span<const std::int32_t> positions,
                         std::span<const float> inverse_frequencies) override;
  /// From the second pass with a key on, its layers are played as a CUDA graph.
  void run_layers(std::span<const std::int64_t> key, const std::function<void()>& layers) override {
    recorded_.run(key, device_->stream(), layers);
  }
  void select_rows(const Matrix& x, std::span<const std::int32_t> rows, Matrix& out) override;
  void read(const Matrix& x, std::span<float> out) override;
  std::vector<Picked> pick(const Matrix& logits, std::span<const Pick> picks) override;

 private:
  /// Numbers from one row of a matrix to the next: each row begins on 16 bytes.
  static std::int64_t padded_stride(std::int64_t cols) { return (cols + 7) / 8 * 8; }
  bool lie_together(std::span<const Product> products) const;
  void multiply(const Matrix& x, const Projection& projection, const Rows& out, bool biased);
  const Matrix& normed(const Matrix& x, const Norm& norm);
  /// Computes the product by the kernels of few_rows.h, if they take it.
  bool try_few_rows(FewRowsKind kind, const Matrix& x, const Norm& norm, const Projection& projection,
                    const Projection& up, const Matrix& out) const;

  DType dtype_;
  std::shared_ptr<const Device> device_;
  Cublas cublas_;
  RecordedPasses recorded_;
  PickIds pick_ids_;
  Upload<std::int32_t> token_ids_, positions_, selected_;  // [rows] of the pass
  Upload<float> inverse_frequencies_;                      // [head_dim / 2]
  DeviceBuffer<float> cosines_, sines_;                    // [rows, head_dim / 2]
  Matrix normed_;                                          // [rows, cols] what a product takes in
  Matrix gate_, up_;                                       // [rows, intermediate]
  Matrix product_;                                         // [rows, out features] with a bias, to be added
  DeviceBuffer<float> wide_;                               // [rows, cols] of the matrix that `read` copies
};

}  // namespace kvcache::cuda
