/// @file
/// Gathers the scattered K and V rows of a pass's sequences into contiguous buffers, on the GPU, for
/// `--attention gather`. Its counterpart, scatter_kv in common/cuda/scatter.h, writes rows to their slots.
/// Chapter: step3_paged/README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"
#include "common/cuda/attention.h"
#include "common/cuda/scatter.h"

namespace kvcache::cuda {

/// Where gathered rows go: sequence after sequence, each in order of position.
struct GatheredKv {
  void* k = nullptr;  ///< [rows, kv_heads, head_dim] on the GPU
  void* v = nullptr;  ///< as k
  /// [sequences + 1] on the GPU: sequence s has the rows first_slot[s] to first_slot[s + 1], one for each
  /// position of its context.
  const std::int64_t* first_slot = nullptr;
  std::int64_t sequences = 0;  ///< of the pass
  std::int64_t rows = 0;       ///< room in k and in v, at least first_slot[sequences]
};

/// Copies K and V of every position of every sequence, found through the block table of `slots`. Rows and
/// table entries beyond a sequence's context are not read.
/// @param pool   K and V of one layer
/// @param width  numbers of a row: kv_heads * head_dim
void gather_kv(DType dtype, const KvRows& pool, const SlotMap& slots, std::int64_t width,
               const GatheredKv& to, cudaStream_t stream, RowKernels kernels = RowKernels::packs);

}  // namespace kvcache::cuda
