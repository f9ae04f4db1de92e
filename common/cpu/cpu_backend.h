/// @file
/// The forward pass's arithmetic on the CPU. Chapter: step 1.
#pragma once

#include <unordered_map>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/model/backend.h"

namespace kvcache {

/// Computes in float32 on the threads of a pool, which must outlive the backend. With activations f16 or
/// bf16, every stored result is rounded to that type. Each row's result depends on that row alone, bit for
/// bit (vec16.h).
class CpuBackend final : public Backend {
 public:
  /// @param activations  the type that stored results are rounded to; in memory they stay floats
  CpuBackend(DType activations, ThreadPool& threads) : activations_(activations), threads_(threads) {}

  void expect(std::span<const ProductWeights> in_order) override;
  void resize(Matrix& matrix, std::int64_t rows, std::int64_t cols) override;
  void embed(const Weight& table, std::span<const std::int32_t> ids, Matrix& out) override;
  void norm_and_project(const Matrix& x, const Norm& norm, std::span<const Product> products) override;
  void norm_and_gate(const Matrix& x, const Norm& norm, const Projection& gate, const Projection& up,
                     Matrix& out) override;
  void project_and_add(const Matrix& x, const Projection& projection, Matrix& sum) override;
  Rotation set_positions(std::span<const std::int32_t> positions,
                         std::span<const float> inverse_frequencies) override;
  void select_rows(const Matrix& x, std::span<const std::int32_t> rows, Matrix& out) override;
  void read(const Matrix& x, std::span<float> out) override;
  std::vector<Picked> pick(const Matrix& logits, std::span<const Pick> picks) override;

 private:
  /// Lets threads that wait read the weights of the product after that of `rows` rows with `projection`.
  void read_ahead_after(const Projection& projection, std::int64_t rows);

  DType activations_;
  ThreadPool& threads_;
  std::unordered_map<const std::byte*, ProductWeights> next_;  // by the first weights of the one before
  Matrix normed_;                                              // [rows, cols] what a product takes in
  Matrix gate_, up_;                                           // [rows, intermediate]
  std::vector<float> cosines_, sines_;                         // [rows, head_dim / 2] of the pass
};

}  // namespace kvcache
