/// @file
/// Copies activations between the host, where tests make them up as floats, and the GPU, where they have a
/// number type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "common/base/stored_number.h"
#include "common/cuda/device.h"
#include "common/cuda/memory.h"
#include "common/model/backend.h"

namespace kvcache {

/// A copy of `floats` on the GPU, rounded to `dtype`. Its rows do not touch; NaN lies between them.
inline Matrix matrix_on_gpu(const Matrix& floats, DType dtype, const cuda::Device& device) {
  Matrix matrix = floats;
  matrix.stride = floats.cols + 24;
  const std::int64_t row_bytes = matrix.stride * size_of(dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(floats.rows * row_bytes));
  for (std::int64_t row = 0; row < floats.rows; ++row) {
    for (std::int64_t col = 0; col < matrix.stride; ++col) {
      write_number(dtype, col < floats.cols ? floats.row(row)[col] : std::numeric_limits<float>::quiet_NaN(),
                   &bytes[static_cast<std::size_t>(row * row_bytes + col * size_of(dtype))]);
    }
  }
  matrix.memory = cuda::allocate_device(std::ssize(bytes), "a test");
  matrix.data = matrix.memory.get();
  cuda::check(
      cudaMemcpyAsync(matrix.data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, device.stream()),
      "copying to the GPU");
  device.synchronize();
  return matrix;
}

/// The bytes of the first `rows` rows of a matrix on the GPU, without gaps, after the stream is done.
inline std::vector<std::byte> rows_of(const Matrix& matrix, std::int64_t rows, DType dtype,
                                      const cuda::Device& device) {
  const auto row_bytes = static_cast<std::size_t>(matrix.cols * size_of(dtype));
  const auto distance = static_cast<std::size_t>(matrix.stride * size_of(dtype));
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * row_bytes);
  cuda::check(cudaMemcpy2DAsync(bytes.data(), row_bytes, matrix.data, distance, row_bytes,
                                static_cast<std::size_t>(rows), cudaMemcpyDeviceToHost, device.stream()),
              "copying from the GPU");
  device.synchronize();
  return bytes;
}

}  // namespace kvcache
