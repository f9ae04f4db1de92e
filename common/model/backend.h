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

  /// Weights that one product, or several of the same x, multiply with.
  using ProductWeights = std::vector<Weight>;
  /// Tells in which order every pass multiplies, from the first layer to the head, so that a device may read
  /// weights before their product begins.
  virtual void expect(std::span<const ProductWeights> in_order) { static_cast<void>(in_order); }

  /// Gives `matrix` the shape [rows, cols]. Its numbers are lost; its memory is kept where it is large
  /// enough.
  virtual void resize(Matrix& matrix, std::int64_t rows, std::int64_t cols) = 0;

  /// out[row] = table[ids[row]].
  virtual void embed(const Weight& table, std::span<const std::int32_t> ids, Matrix& out) = 0;
  /// One product y = x W^T + b.
  struct Product {
    const Projection* projection;  ///< W and b
    Matrix* out;                   ///< y, [rows of x, out features]
  };
  /// Computes all `products` of the normalised rows of x. A row is rounded after its norm and after its
  /// product.
  virtual void norm_and_project(const Matrix& x, const Norm& norm, std::span<const Product> products) = 0;
  /// out = silu(g) * u, where silu(g) = g / (1 + e^-g), and g and u are the products `gate` and `up` of the
  /// normalised rows of x. Rounded are: a row after its norm, g, u, and out.
  virtual void norm_and_gate(const Matrix& x, const Norm& norm, const Projection& gate, const Projection& up,
                             Matrix& out) = 0;
  /// sum += x W^T + b. Without b, a number is rounded once, after the addition; with b, the product is
  /// rounded too.
  virtual void project_and_add(const Matrix& x, const Projection& projection, Matrix& sum) = 0;
  /// The rotation of each row of a pass: angle = position * inverse_frequency, for `positions` [rows] and
  /// `inverse_frequencies` [head_dim / 2].
  /// @return tables that stay until the next call; in passes of as many rows they have the same addresses
  virtual Rotation set_positions(std::span<const std::int32_t> positions,
                                 std::span<const float> inverse_frequencies) = 0;
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
