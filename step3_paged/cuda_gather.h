/// @file
/// Collecting the scattered K and V rows of a pass's sequences into contiguous buffers, on the GPU. Chapter:
/// step3_paged/README.md. Its counterpart, writing rows to their slots, is scatter_kv in
/// common/cuda/scatter.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/dtype.h"
#include "common/cuda/attention.h"
#include "common/cuda/scatter.h"

namespace kvcache::cuda {

/// Where gathered rows go: the sequences lie one after the other, each from its position 0 on.
struct GatheredKv {
  void* k = nullptr;  ///< [rows, kv_heads, head_dim] on the GPU
  void* v = nullptr;  ///< as k
  /// [sequences + 1] on the GPU: sequence s has the rows first_slot[s] to first_slot[s + 1], one for each
  /// position of its context.
  const std::int64_t* first_slot = nullptr;
  std::int64_t sequences = 0;  ///< of the pass
  std::int64_t rows = 0;       ///< that there is room for; first_slot[sequences] or more
};

/// Copies K and V of all positions from where the block table of `slots` says. Neither rows nor table entries
/// beyond a sequence's context are read.
/// @param pool   K and V of one layer
/// @param width  numbers of a row: kv_heads * head_dim
void gather_kv(DType dtype, const KvRows& pool, const SlotMap& slots, std::int64_t width,
               const GatheredKv& to, cudaStream_t stream, RowKernels kernels = RowKernels::packs);

}  // namespace kvcache::cuda
