/// @file
/// Activations in the memory of a device, and views of weights. Chapter: docs/transformer.md.
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

}  // namespace kvcache
