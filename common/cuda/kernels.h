/// @file
/// The small operations of a forward pass on the GPU. Matrix products are in cublas.h, attention in
/// attention.h, the choice of ids in sampling.h. Sums are float32; every stored result is rounded once to the
/// type. Chapter: step3_paged/README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"
#include "common/base/matrix.h"

namespace kvcache::cuda {

/// Activations [rows, cols] on the GPU, rows `stride` numbers apart.
struct Rows {
  void* data = nullptr;     ///< row r at r * stride
  std::int64_t rows = 0;    ///< of the pass
  std::int64_t cols = 0;    ///< numbers per row
  std::int64_t stride = 0;  ///< numbers between rows, >= cols
};

/// The rows of a matrix on the GPU.
inline Rows rows_of(const Matrix& matrix) {
  return {matrix.data, matrix.rows, matrix.cols, matrix.stride};
}

/// Whether this build has kernels for this GPU.
bool kernels_are_built();

/// out[row] = table[ids[row]].
/// @param table  [vocab, cols], packed
/// @param ids    [rows] on the GPU
void embed(DType dtype, const void* table, const std::int32_t* ids, const Rows& out, cudaStream_t stream);

/// out = x / sqrt(mean(x^2) + eps) * weight, per row (RMSNorm).
void norm_rows(DType dtype, const Rows& x, const void* weight, float eps, const Rows& out,
               cudaStream_t stream);

/// x += delta.
void add_rows(DType dtype, const Rows& delta, const Rows& x, cudaStream_t stream);

/// cosines and sines of positions[row] * inverse_frequencies[d], [rows, half] each.
void rotation_table(const std::int32_t* positions, const float* inverse_frequencies, std::int64_t rows,
                    std::int64_t half, float* cosines, float* sines, cudaStream_t stream);

/// out = gate / (1 + e^-gate) * up. Few rows in f16 or bf16 go through FewRowsKind::gate (few_rows.h)
/// instead, where that fits.
void swiglu(DType dtype, const Rows& gate, const Rows& up, const Rows& out, cudaStream_t stream);

/// Every row of out becomes `bias` [cols].
void fill_rows(DType dtype, const void* bias, const Rows& out, cudaStream_t stream);

/// out[n] = x[rows[n]]; `rows` [out.rows] on the GPU.
void select_rows(DType dtype, const Rows& x, const std::int32_t* rows, const Rows& out, cudaStream_t stream);

/// `to` [rows, cols] packed floats.
void widen(DType dtype, const Rows& x, float* to, cudaStream_t stream);

/// to[n] = from[n], `count` numbers, rounded to `to_dtype`.
void convert(DType from_dtype, const void* from, DType to_dtype, void* to, std::int64_t count,
             cudaStream_t stream);

}  // namespace kvcache::cuda
