/// @file
/// Products of few rows on the GPU, with what comes before and after them in a layer: the norm, the sum with
/// the hidden row, the activation. Chapter: step3_paged/README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"

namespace kvcache::cuda {

/// What becomes of a product.
enum class FewRowsKind : std::uint8_t {
  store,  ///< out = x W^T + b
  add,    ///< out += x W^T + b
  gate    ///< out = silu(x W^T + b) * (x U^T + c)
};

/// One call. Weights are packed, [outs, in]; all addresses are on the GPU.
struct FewRowsWork {
  const void* x = nullptr;          ///< [rows, in]
  std::int64_t x_stride = 0;        ///< numbers
  std::int64_t rows = 0;            ///< of the pass
  std::int64_t in = 0;              ///< numbers in a row of x
  const void* norm = nullptr;       ///< [in]; nullptr: x is taken as it is
  float eps = 0;                    ///< of the norm
  const void* weight = nullptr;     ///< W
  const void* bias = nullptr;       ///< b [outs]; nullptr: none
  const void* up_weight = nullptr;  ///< U, for `gate` alone
  const void* up_bias = nullptr;    ///< c [outs]; nullptr: none
  void* out = nullptr;              ///< [rows, outs]
  std::int64_t out_stride = 0;      ///< numbers
  std::int64_t outs = 0;            ///< numbers in a row of out
};

/// Whether there is a kernel for this work: f16 or bf16, at most 16 rows, sizes and addresses that suit
/// 16-byte copies, tensor cores, and a multiprocessor whose shared memory holds the weights of a thread
/// block. Where not all thread blocks run at once, each takes at most 75 KiB: for wider rows cuBLAS is
/// faster.
bool few_rows_fit(DType dtype, FewRowsKind kind, const FewRowsWork& work);

/// Computes `work`, which fits. Sums are float32; rounding is that of Backend's operations
/// (common/model/backend.h). A row's bits do not depend on the number of rows.
void few_rows(DType dtype, FewRowsKind kind, const FewRowsWork& work, cudaStream_t stream);

}  // namespace kvcache::cuda
