/// @file
/// The arithmetic that a forward pass needs, on one device. The transformer (transformer.h) is written once
/// against this interface. Chapter: step 1.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/matrix.h"
#include "common/model/sampler.h"
#include "common/model/weights.h"

namespace kvcache {

/// The arithmetic that the transformer is made of, on one device. Attention is the store's: it has K and V.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Gives `matrix` [rows, cols]; what it held is lost. Memory is kept when it is large enough.
  virtual void resize(Matrix& matrix, std::int64_t rows, std::int64_t cols) = 0;

  /// out[row] = table[ids[row]].
  virtual void embed(const Weight& table, std::span<const std::int32_t> ids, Matrix& out) = 0;
  /// x += delta, if that has rows; then out = x / sqrt(mean(x^2) + eps) * weight, per row. One operation
  /// because a GPU then reads x once.
  virtual void add_and_norm(Matrix& x, const Matrix& delta, const Weight& weight, float eps, Matrix& out) = 0;
  /// One product y = x W^T + b.
  struct Product {
    const Projection* projection;  ///< W and b
    Matrix* out;                   ///< y, [rows of x, out features]
  };
  /// All products of one x.
  virtual void project(const Matrix& x, std::span<const Product> products) = 0;
  /// Sets the rotation of each row for the passes' `positions` [rows]: angle = position * inverse_frequency
  /// [head_dim / 2].
  virtual void set_positions(std::span<const std::int32_t> positions,
                             std::span<const float> inverse_frequencies) = 0;
  /// Normalises each head of x [rows, heads * head_dim] with `norm` [head_dim] if it is present, then rotates
  /// it.
  virtual void norm_and_rotate(Matrix& x, std::int64_t head_dim, const Weight& norm, float eps) = 0;
  /// out = silu(gate) * up, where silu(g) = g / (1 + e^-g).
  virtual void swiglu(const Matrix& gate, const Matrix& up, Matrix& out) = 0;
  /// Runs `layers`, which asks for operations on this backend and on a store. A device may do again what an
  /// earlier call with the same key has queued instead of calling `layers`; the host's side of a matrix, its
  /// shape, then stays as it is.
  /// @param key  equal for two calls only if both would queue the same work; empty: equal to none
  virtual void run_layers(std::span<const std::int64_t> key, const std::function<void()>& layers) {
    static_cast<void>(key);
    layers();
  }
  /// out[n] = x[rows[n]].
  virtual void select_rows(const Matrix& x, std::span<const std::int32_t> rows, Matrix& out) = 0;
  /// Copies x to the host as floats [rows, cols].
  virtual void read(const Matrix& x, std::span<float> out) = 0;
  /// Lets each pick's sampler choose an id from its row of `logits` [rows, vocab].
  /// @return [picks] as Sampler::pick: a row that gives no id does not touch the others
  [[nodiscard]] virtual std::vector<Picked> pick(const Matrix& logits, std::span<const Pick> picks) = 0;
};

}  // namespace kvcache
