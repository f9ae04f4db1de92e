/// @file
/// The merge inside a thread block of attention_mma_decode.cu: its warps' sums over a span of positions
/// become one, span after span. The merge of what several thread blocks have computed: attention_merge.cuh.
/// Chapter: step3_paged/README.md.
#pragma once

#include "common/cuda/attention_merge.cuh"
#include "common/cuda/attention_mma_launch.cuh"
#include "common/cuda/warp_queries.cuh"

namespace kvcache::cuda {

/// What a thread block has computed, for the merge: of a span by each warp, and of the spans before. In
/// shared memory.
template <int D>
struct WarpParts {
  static constexpr int kStride = D + 8;      ///< + 8: rows that are written together meet different banks
  static constexpr int kBefore = kMmaWarps;  ///< behind the warps' places: that of the spans before
  float* memory;                             ///< aligned to 16 bytes
  int queries;                               ///< room for so many

  /// [D] the sums of a query. @param warp  or kBefore
  __device__ float* sums(int warp, int query) const { return memory + (warp * queries + query) * kStride; }
  /// Largest score and sum of weights of a query. Of the spans before there are two, kBefore and kBefore + 1,
  /// which take turns: one is read while the other is written.
  __device__ float2& softmax(int warp, int query) const {
    return reinterpret_cast<float2*>(sums(kBefore + 1, 0))[warp * queries + query];
  }
  /// Bytes with room for so many queries.
  __host__ __device__ static constexpr int bytes(int queries) {
    constexpr int kSums = kStride * static_cast<int>(sizeof(float)),
                  kSoftmax = static_cast<int>(sizeof(float2));
    return queries * ((kBefore + 1) * kSums + (kBefore + 2) * kSoftmax);
  }
};

/// A warp stores what it has computed of a span.
template <typename T, int D, int Halves>
__device__ void store_warp_part(const WarpQueries<T, D, Halves>& queries, int tile_queries,
                                const WarpParts<D>& parts) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int row = 0; row < Halves; ++row) {
    const int query = lane / 4 + row * 8;
    if (query >= tile_queries) continue;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<float2*>(parts.sums(warp, query) + n * 8 + lane % 4 * 2) = {
          queries.sum[n][2 * row], queries.sum[n][2 * row + 1]};
    }
    if (lane % 4 == 0) parts.softmax(warp, query) = {queries.largest[row], queries.weight[row]};
  }
}

/// Adds up what the warps have computed of a span, in their order, behind the spans before. After the last
/// span it writes the result, or the block's part of it.
/// @param span  of the part
template <typename T, int D>
__device__ void merge_warps(const AttentionPass& pass, const AttentionTile& tile, int kv_head, int span,
                            bool is_last, const WarpParts<D>& parts) {
  constexpr int kBefore = WarpParts<D>::kBefore;
  for (int item = static_cast<int>(threadIdx.x); item < tile.queries * (D / 4); item += 32 * kMmaWarps) {
    const int query = item / (D / 4), dim = item % (D / 4) * 4;
    const auto sums = [&](int warp) -> float4& {
      return *reinterpret_cast<float4*>(parts.sums(warp, query) + dim);
    };
    PartOfFour total;
    for (int warp = 0; warp < kMmaWarps; ++warp) total.add(parts.softmax(warp, query), sums(warp));
    if (span > 0) {
      const PartOfFour own = total;
      const float2 before = parts.softmax(kBefore + span % 2, query);
      total = {before.x, before.y, sums(kBefore)};
      total.add({own.largest, own.weight}, own.sum);
    }
    if (!is_last) {
      sums(kBefore) = total.sum;
      if (dim == 0) parts.softmax(kBefore + (span + 1) % 2, query) = {total.largest, total.weight};
      continue;
    }
    if (tile.parts == 1) {
      total.write_result(static_cast<T*>(pass.out) +
                         query_offset(pass, tile, kv_head, query, pass.out_stride) + dim);
      continue;
    }
    const std::int64_t index = part_index(pass, tile, tile.part, kv_head, query);
    *reinterpret_cast<float4*>(pass.part_sums + index * D + dim) = total.sum;
    if (dim == 0) pass.part_softmax[index] = {total.largest, total.weight};
  }
}

}  // namespace kvcache::cuda
