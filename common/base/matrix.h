/// @file
/// Activations in the memory of a device, and views of weights and of rotation tables. Chapter:
/// docs/transformer.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/dtype.h"

namespace kvcache {

/// Activations [rows, cols] in the memory of a device. On the CPU they are floats, rounded to the activation
/// type; on a GPU they are numbers of that type.
struct Matrix {
  std::shared_ptr<void> memory;  ///< owns `data`
  void* data = nullptr;          ///< [rows, cols], row r at r * stride numbers
  std::int64_t rows = 0;         ///< tokens
  std::int64_t cols = 0;         ///< numbers per row
  std::int64_t stride = 0;       ///< numbers between rows, >= cols
  std::int64_t capacity = 0;     ///< numbers that fit into the memory

  float* row(std::int64_t r) { return static_cast<float*>(data) + r * stride; }  ///< on the CPU
  const float* row(std::int64_t r) const {
    return static_cast<const float*>(data) + r * stride;
  }  ///< on the CPU
};

/// A matrix [rows, cols] or, with rows == 1, a vector [cols], in its stored type, row major, packed.
struct Weight {
  DType dtype = DType::f32;  ///< as stored
  std::int64_t rows = 0;     ///< output features
  std::int64_t cols = 0;     ///< input features
  const std::byte* data =
      nullptr;  ///< rows * cols numbers; need not be aligned; nullptr: this weight is absent
  /// Whether the model has this weight.
  bool present() const { return data != nullptr; }
};

/// A linear projection y = x W^T + b.
struct Projection {
  Weight weight;  ///< [out, in]
  Weight bias;    ///< [out], often absent
};

/// RMSNorm of a row x: x / sqrt(mean(x^2) + eps) * weight.
struct Norm {
  Weight weight;  ///< [cols]; of a head, absent where the model has none
  float eps = 0;  ///< keeps a row of zeros from a division by 0
};

/// The rotation of each row of a pass (RoPE): row r turns the pairs (d, d + head_dim / 2) of each head by the
/// angle whose cosine and sine are given.
struct Rotation {
  const float* cosines = nullptr;  ///< [rows, head_dim / 2] in the device's memory; nullptr: no rotation
  const float* sines = nullptr;    ///< as cosines
};

/// What becomes of the heads of q and k before attention.
struct HeadSettings {
  Norm q_norm;        ///< [head_dim] of each head of q, before its rotation; Qwen3 only
  Norm k_norm;        ///< [head_dim] of each head of k
  Rotation rotation;  ///< of the heads of both
};

/// Queries, keys and values of a pass's tokens in one layer, as their projections give them.
struct NewRows {
  Matrix& q;        ///< [tokens, heads * head_dim]; its heads may be normalised and rotated in place
  Matrix& k;        ///< [tokens, kv_heads * head_dim], as q; what attention reads is what the store holds
  const Matrix& v;  ///< [tokens, kv_heads * head_dim]
};

}  // namespace kvcache
