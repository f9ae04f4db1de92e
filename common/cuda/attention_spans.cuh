/// @file
/// How the spans of a prefill tile are added up in the order of their positions: by one thread block
/// (`WarpTotal`), or by a cluster that shares them (`ClusterTotal`, compute capability 9.0). Both give the
/// same bits. For attention_mma_prefill.cu. Chapter: step3_paged/README.md.
#pragma once

#include <cooperative_groups.h>

#include "common/cuda/attention_merge.cuh"
#include "common/cuda/attention_mma_launch.cuh"
#include "common/cuda/warp_queries.cuh"

namespace kvcache::cuda {

/// A tile's queries over one span, in shared memory: what the thread blocks of a cluster read of each other.
template <int D>
struct SpanOfQueries {
  float sums[kTensorCorePrefillQueries][D + 8];  ///< + 8: rows that are written together meet different banks
  float2 softmax[kTensorCorePrefillQueries];     ///< largest score, sum of weights
};

/// What lies at the place of `own` in the shared memory of another thread block of the cluster. Not moved by
/// the compiler, so that several loads are on their way together.
__device__ inline float4 load_from_block(const float4& own, int block) {
  float4 loaded = {};
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .u32 there; mapa.shared::cluster.u32 there, %4, %5;"
      "  ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
      : "=f"(loaded.x), "=f"(loaded.y), "=f"(loaded.z), "=f"(loaded.w)
      : "r"(shared_address(&own)), "r"(block)
      : "memory");
#endif
  return loaded;
}
/// The same for two numbers.
__device__ inline float2 load_from_block(const float2& own, int block) {
  float2 loaded = {};
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .u32 there; mapa.shared::cluster.u32 there, %2, %3;"
      "  ld.shared::cluster.v2.f32 {%0, %1}, [there]; }"
      : "=f"(loaded.x), "=f"(loaded.y)
      : "r"(shared_address(&own)), "r"(block)
      : "memory");
#endif
  return loaded;
}

/// The sum over the spans before, in the layout of WarpQueries.
template <int D>
struct WarpTotal {
  float largest[2] = {-INFINITY, -INFINITY};  ///< scaled score, of the lane's two queries
  float weight[2] = {};                       ///< sums of the weights of these queries
  float sum[D / 8][4] = {};                   ///< sums of weighted values, 8 columns each

  /// Adds a span, with the arithmetic of PartOfFour::add.
  template <typename T>
  __device__ void add(const WarpQueries<T, D>& span, int row) {
    const float top = fmaxf(largest[row], span.largest[row]);
    const float keep = exp2f(largest[row] - top), take = exp2f(span.largest[row] - top);
    largest[row] = top;
    weight[row] = fmaf(weight[row], keep, span.weight[row] * take);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int m = 2 * row; m < 2 * row + 2; ++m) sum[n][m] = fmaf(sum[n][m], keep, span.sum[n][m] * take);
    }
  }

  /// Writes the results of the warp's queries.
  template <typename T>
  __device__ void write(const AttentionPass& pass, const AttentionTile& tile, int kv_head) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int query = static_cast<int>(threadIdx.x) / 32 * kTileQueries + lane / 4 + row * 8;
      if (query >= tile.queries) continue;
      T* out = static_cast<T*>(pass.out) + query_offset(pass, tile, kv_head, query, pass.out_stride);
      const float inverse = 1 / weight[row];
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<std::uint32_t*>(out + n * 8 + lane % 4 * 2) =
            pack_two<T>(sum[n][2 * row] * inverse, sum[n][2 * row + 1] * inverse);
      }
    }
  }
};

/// The sum over all spans, which a cluster adds up: each of its thread blocks for some of the queries.
template <typename T, int D, int Blocks>
class ClusterTotal {
 public:
  /// Stores what this thread block has computed of its span, and adds the spans that the cluster has computed
  /// side by side, in their order. All threads of the cluster call it.
  /// @param own         in shared memory, at the same address in every thread block
  /// @param first_span  that of thread block 0
  __device__ void add(const AttentionPass& pass, const AttentionTile& tile, SpanOfQueries<D>& own,
                      const WarpQueries<T, D>& queries, int first_span) {
#if __CUDA_ARCH__ >= 900
    store(own, queries);
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
    for_each_item(tile, [&](PartOfFour& total, int query, int dim) {
      const int spans = (visible_to(pass, tile, query) - 1) / kSpan + 1 - first_span;
      float2 softmax[Blocks];
      float4 sums[Blocks];
#pragma unroll
      for (int block = 0; block < Blocks; ++block) {  // all are on their way together
        softmax[block] = load_from_block(own.softmax[query], block);
        sums[block] = load_from_block(*reinterpret_cast<const float4*>(&own.sums[query][dim]), block);
      }
#pragma unroll
      for (int block = 0; block < Blocks; ++block) {
        if (block < spans) total.add(softmax[block], sums[block]);
      }
    });
    __syncwarp();
    cluster.sync();  // `own` may be written again, or end with this thread block
#endif
  }

  /// Writes the results of the queries that this thread block adds up.
  __device__ void write(const AttentionPass& pass, const AttentionTile& tile, int kv_head) {
    for_each_item(tile, [&](const PartOfFour& total, int query, int dim) {
      total.write_result(static_cast<T*>(pass.out) +
                         query_offset(pass, tile, kv_head, query, pass.out_stride) + dim);
    });
  }

 private:
  static constexpr int kThreads = 32 * kMmaWarps, kFours = D / 4;
  static constexpr int kItems = kTensorCorePrefillQueries / Blocks * kFours;  // four numbers of a query each

  template <typename Function>
  __device__ void for_each_item(const AttentionTile& tile, Function function) {
    const int first_query = static_cast<int>(blockIdx.x) % Blocks * (kTensorCorePrefillQueries / Blocks);
#pragma unroll
    for (int n = 0; n * kThreads < kItems; ++n) {
      const int item = n * kThreads + static_cast<int>(threadIdx.x), query = first_query + item / kFours;
      if (item < kItems && query < tile.queries) function(totals_[n], query, item % kFours * 4);
    }
  }

  __device__ static void store(SpanOfQueries<D>& own, const WarpQueries<T, D>& queries) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int query = static_cast<int>(threadIdx.x) / 32 * kTileQueries + lane / 4 + row * 8;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<float2*>(&own.sums[query][n * 8 + lane % 4 * 2]) = {queries.sum[n][2 * row],
                                                                              queries.sum[n][2 * row + 1]};
      }
      if (lane % 4 == 0) own.softmax[query] = {queries.largest[row], queries.weight[row]};
    }
  }

  PartOfFour totals_[(kItems + kThreads - 1) / kThreads];
};

}  // namespace kvcache::cuda
