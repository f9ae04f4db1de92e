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

  /// Gives `matrix` the shape [rows, cols]. Its numbers are lost; its memory is kept where it is large
  /// enough.
  virtual void resize(Matrix& matrix, std::int64_t rows, std::int64_t cols) = 0;

  /// out[row] = table[ids[row]].
  virtual void embed(const Weight& table, std::span<const std::int32_t> ids, Matrix& out) = 0;
  /// For each row: x += delta, if `delta` has rows; then out = x / sqrt(mean(x^2) + eps) * weight. It is one
  /// operation, so that a GPU reads x once.
  virtual void add_and_norm(Matrix& x, const Matrix& delta, const Weight& weight, float eps, Matrix& out) = 0;
  /// One product y = x W^T + b.
  struct Product {
    const Projection* projection;  ///< W and b
    Matrix* out;                   ///< y, [rows of x, out features]
  };
  /// Computes all `products` of one x.
  virtual void project(const Matrix& x, std::span<const Product> products) = 0;
  /// Sets the rotation of each row of the pass: angle = position * inverse_frequency, for `positions` [rows]
  /// and `inverse_frequencies` [head_dim / 2].
  virtual void set_positions(std::span<const std::int32_t> positions,
                             std::span<const float> inverse_frequencies) = 0;
  /// Normalises each head of x [rows, heads * head_dim] with `norm` [head_dim], if the model has it, then
  /// rotates the head.
  virtual void norm_and_rotate(Matrix& x, std::int64_t head_dim, const Weight& norm, float eps) = 0;
  /// out = silu(gate) * up, where silu(g) = g / (1 + e^-g).
  virtual void swiglu(const Matrix& gate, const Matrix& up, Matrix& out) = 0;
  /// Runs `layers`, which calls this backend and a store. A device may instead replay the work that an
  /// earlier call with the same key queued. Then `layers` is not called, so the host does not change the
  /// shape of any matrix.
  /// @param key  two calls with equal keys queue the same work; empty: never replay
  virtual void run_layers(std::span<const std::int64_t> key, const std::function<void()>& layers) {
    static_cast<void>(key);
    layers();
  }
  /// out[n] = x[rows[n]].
  virtual void select_rows(const Matrix& x, std::span<const std::int32_t> rows, Matrix& out) = 0;
  /// Copies x to the host as floats [rows, cols].
  virtual void read(const Matrix& x, std::span<float> out) = 0;
  /// Lets the sampler of each pick choose an id from its row of `logits` [rows, vocab].
  /// @return [picks] as Sampler::pick; a row without an id does not affect the other rows
  [[nodiscard]] virtual std::vector<Picked> pick(const Matrix& logits, std::span<const Pick> picks) = 0;
};

}  // namespace kvcache
