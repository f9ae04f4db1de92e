/// @file
/// How the two tensor-core kernels of attention are started (attention_mma_decode.cu,
/// attention_mma_prefill.cu).
#pragma once

#include "common/cuda/attention_mma.cuh"
#include "common/cuda/attention_work.h"
#include "common/cuda/launch.cuh"

namespace kvcache::cuda {

/// Warps of a thread block.
constexpr int kMmaWarps = 4;
/// Bytes of a warp's tile of K, or of V.
template <int D>
constexpr int kMmaTileBytes = kTileKeys* D * 2;

/// Starts a kernel that takes a pass: a thread block for each tile and KV head.
/// @param name          of the kernel, for the error
/// @param shared_bytes  of a thread block
/// @param overlaps      as LaunchShape::overlaps
/// @param cluster       thread blocks that share a tile, as LaunchShape::cluster
inline void launch_tiles(const char* name, void (*kernel)(AttentionPass), int shared_bytes,
                         const AttentionPass& pass, std::int64_t tiles, cudaStream_t stream, bool overlaps,
                         unsigned cluster = 1) {
  if (tiles == 0) return;
  const LaunchShape shape{dim3(static_cast<unsigned>(tiles * pass.kv_heads) * cluster), dim3(32 * kMmaWarps),
                          static_cast<std::size_t>(shared_bytes), overlaps, cluster};
  launch(name, kernel, shape, stream, pass);
}

/// Calls `function.operator()<T, D>()` with the number type and head_dim of a pass.
template <typename Function>
void with_mma_sizes(DType dtype, int head_dim, Function function) {
  const auto with_head_dim = [&]<typename T>() {
    head_dim == 64 ? function.template operator()<T, 64>() : function.template operator()<T, 128>();
  };
  dtype == DType::f16 ? with_head_dim.template operator()<__half>()
                      : with_head_dim.template operator()<__nv_bfloat16>();
}

}  // namespace kvcache::cuda
