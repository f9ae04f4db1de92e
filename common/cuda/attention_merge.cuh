/// @file
/// The merge of a row's parts, which several thread blocks (or warps) computed: `merge_parts`. The cut:
/// attention.cpp. First what all attention kernels share: where a query and a K or V row lie. Chapter:
/// step3_paged/README.md.
#pragma once

#include <cuda/atomic>

#include "common/cuda/attention_work.h"
#include "common/cuda/launch.cuh"

namespace kvcache::cuda {

/// Where query `query` of a tile starts in q or out, in numbers. @param stride  of a row
__device__ inline std::int64_t query_offset(const AttentionPass& pass, const AttentionTile& tile, int kv_head,
                                            int query, std::int64_t stride) {
  const int number = tile.first_query + query;
  const std::int64_t head = kv_head * pass.group + number % pass.group;
  return (tile.row + number / pass.group) * stride + head * pass.head_dim;
}

/// Positions that query `query` of a tile sees.
__device__ inline int visible_to(const AttentionPass& pass, const AttentionTile& tile, int query) {
  return tile.visible + (tile.first_query + query) / pass.group;
}

/// Where a position's row of one KV head starts in K and V, in numbers; -1 from the tile's `end` on, without
/// a look at the block table.
__device__ inline std::int64_t kv_offset(const AttentionPass& pass, const AttentionTile& tile, int kv_head,
                                         int position) {
  if (position >= tile.end) return -1;
  return (pass.slots.slot(tile.sequence, position) * pass.kv_heads + kv_head) * pass.head_dim;
}

/// Four numbers of one query's result over some of its positions. The result is sum / weight. A part without
/// positions has the largest score -infinity; it must not be the first that is added.
struct PartOfFour {
  float largest = -INFINITY;  ///< scaled score
  float weight = 0;           ///< sum of the weights 2^(score - largest) so far
  float4 sum = {};            ///< sum of the weighted values, four neighbouring numbers

  /// Adds the part of other positions. The first part that is added stays as it is, bit for bit.
  __device__ void add(float2 softmax, float4 other) {
    const float top = fmaxf(largest, softmax.x);
    const float keep = exp2f(largest - top), take = exp2f(softmax.x - top);
    largest = top;
    weight = fmaf(weight, keep, softmax.y * take);
    sum.x = fmaf(sum.x, keep, other.x * take);
    sum.y = fmaf(sum.y, keep, other.y * take);
    sum.z = fmaf(sum.z, keep, other.z * take);
    sum.w = fmaf(sum.w, keep, other.w * take);
  }

  /// @param to  four numbers, aligned as one
  template <typename T>
  __device__ void write_result(T* to) const {
    struct alignas(4 * sizeof(T)) Four {
      T numbers[4];
    };
    const float inverse = 1 / weight;
    *reinterpret_cast<Four*>(to) = {{from_float<T>(sum.x * inverse), from_float<T>(sum.y * inverse),
                                     from_float<T>(sum.z * inverse), from_float<T>(sum.w * inverse)}};
  }
};

/// Index of a query's part in part_softmax, and in part_sums, whose rows have head_dim numbers.
__device__ inline std::int64_t part_index(const AttentionPass& pass, const AttentionTile& tile, int part,
                                          int kv_head, int query) {
  const std::int64_t kept_part = tile.first_part + part;
  return (kept_part * pass.kv_heads + kv_head) * pass.part_queries + query;
}

/// Whether this thread block is the last one of a row's parts to get here; then it sees what the others
/// wrote. All threads of the block call it, after the block has written its part.
__device__ inline bool last_to_arrive(const AttentionPass& pass, const AttentionTile& tile, int kv_head) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    using ::cuda::thread_scope_device;
    const ::cuda::atomic_ref<std::uint32_t, thread_scope_device> arrived(
        pass.arrived[static_cast<std::int64_t>(tile.first_part) * pass.kv_heads + kv_head]);
    // One thread releases what all have written; a fence of every thread would hold up the copies on their
    // way.
    last = arrived.fetch_add(1, ::cuda::memory_order_release) + 1 == static_cast<std::uint32_t>(tile.parts);
    if (last) {
      ::cuda::atomic_thread_fence(::cuda::memory_order_acquire, thread_scope_device);
      arrived.store(0, ::cuda::memory_order_relaxed);  // for the next layer
    }
  }
  __syncthreads();
  return last;
}

/// Merges all parts of a row in the order of their positions and writes the result. The order makes the bits
/// the same whichever thread block merges. So the last to arrive merges, and no second kernel is started.
template <typename T>
__device__ void merge_parts(const AttentionPass& pass, const AttentionTile& tile, int kv_head) {
  const int fours = pass.head_dim / 4;
  for (int item = static_cast<int>(threadIdx.x); item < tile.queries * fours;
       item += static_cast<int>(blockDim.x)) {
    const int query = item / fours, dim = item % fours * 4;
    PartOfFour total;
    constexpr int kAtOnce = 8;  // parts that are on their way together
    for (int first = 0; first < tile.parts; first += kAtOnce) {
      float2 softmax[kAtOnce];
      float4 sums[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const std::int64_t index = part_index(pass, tile, min(first + n, tile.parts - 1), kv_head, query);
        // Not through the first-level cache, which other thread blocks' writes do not reach.
        softmax[n] = __ldcg(&pass.part_softmax[index]);
        sums[n] = __ldcg(reinterpret_cast<const float4*>(pass.part_sums + index * pass.head_dim + dim));
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        if (first + n < tile.parts) total.add(softmax[n], sums[n]);
      }
    }
    total.write_result(static_cast<T*>(pass.out) + query_offset(pass, tile, kv_head, query, pass.out_stride) +
                       dim);
  }
}

}  // namespace kvcache::cuda
