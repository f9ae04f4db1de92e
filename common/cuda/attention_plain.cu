/// @file
/// Attention, first rung: the formula. One warp per query takes one position after the other; its lanes share
/// the numbers of a head. It is right for every number type and head_dim, and slow: every query head reads K
/// and V again, each position waits for a sum over the warp, and long rows are not cut. Chapter:
/// step3_paged/README.md.
#include "common/cuda/attention_merge.cuh"

namespace kvcache::cuda {
namespace {

constexpr int kMostDimsPerLane = kMostHeadDim / 32;

/// out = softmax(q K^T / sqrt(head_dim)) V for one query per warp, with the running softmax: when a larger
/// score comes, the sums so far are scaled down to it.
template <typename T>
__global__ void attention_plain(const __grid_constant__ AttentionPass pass) {
  const AttentionTile& tile = pass.tiles[blockIdx.x / pass.kv_heads];
  const int kv_head = static_cast<int>(blockIdx.x) % pass.kv_heads;
  const int query = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (tile.row < 0 || query >= tile.queries) return;
  const T* q = static_cast<const T*>(pass.q) + query_offset(pass, tile, kv_head, query, pass.q_stride);
  T* out = static_cast<T*>(pass.out) + query_offset(pass, tile, kv_head, query, pass.out_stride);

  float query_dims[kMostDimsPerLane] = {}, sums[kMostDimsPerLane] = {};
  for (int n = 0; n < kMostDimsPerLane; ++n) {
    if (lane + 32 * n < pass.head_dim) query_dims[n] = to_float(q[lane + 32 * n]);
  }
  float largest = -INFINITY, weight = 0;
  const int visible = visible_to(pass, tile, query);
  for (int position = 0; position < visible; ++position) {
    const std::int64_t offset = kv_offset(pass, tile, kv_head, position);
    const T* k = static_cast<const T*>(pass.rows.k) + offset;
    const T* v = static_cast<const T*>(pass.rows.v) + offset;
    float dot = 0;
    for (int n = 0; n < kMostDimsPerLane; ++n) {
      if (lane + 32 * n < pass.head_dim) dot = fmaf(query_dims[n], to_float(k[lane + 32 * n]), dot);
    }
    const float score = warp_sum(dot) * pass.scale;

    const float top = fmaxf(largest, score);
    const float keep = exp2f(largest - top), take = exp2f(score - top);
    largest = top;
    weight = fmaf(weight, keep, take);
    for (int n = 0; n < kMostDimsPerLane; ++n) {
      if (lane + 32 * n < pass.head_dim) sums[n] = fmaf(sums[n], keep, take * to_float(v[lane + 32 * n]));
    }
  }
  for (int n = 0; n < kMostDimsPerLane; ++n) {
    if (lane + 32 * n < pass.head_dim) out[lane + 32 * n] = from_float<T>(sums[n] / weight);
  }
}

}  // namespace

void attend_plain(DType dtype, const AttentionPass& pass, std::int64_t tiles, cudaStream_t stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(tiles * pass.kv_heads)), dim3(32 * kTileQueries)};
  with_number_type(dtype,
                   [&]<typename T>() { launch("attention_plain", attention_plain<T>, shape, stream, pass); });
}

}  // namespace kvcache::cuda
