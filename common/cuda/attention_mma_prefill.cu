/// @file
/// Attention, third rung, prefill: tensor cores and copies that run ahead, for f16 and bf16 with a head_dim
/// of 64 or 128. Prefill is bound by arithmetic: four warps share tiles of 64 keys. Chapter:
/// step3_paged/README.md.
#include "common/cuda/attention_merge.cuh"
#include "common/cuda/attention_mma_launch.cuh"
#include "common/cuda/warp_queries.cuh"

namespace kvcache::cuda {
namespace {

constexpr int kKeys = kMmaWarps * kTileKeys;
/// Two pairs of K and V tiles: while warps compute with one pair, the next is on its way.
template <int D>
constexpr int kBytes = 2 * 2 * kKeys* D * 2;

static_assert(kTensorCorePrefillQueries == kMmaWarps * kTileQueries);

/// 64 queries of one sequence and KV head, over all positions that any of them sees. Each warp has 16 of the
/// queries and copies a quarter of each tile of keys.
template <typename T, int D>
__global__ __launch_bounds__(32 * kMmaWarps) void attention_mma_prefill(
    const __grid_constant__ AttentionPass pass) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(kTileAlignment) unsigned char shared_bytes[];
  const AttentionTile tile = pass.tiles[blockIdx.x / pass.kv_heads];
  if (tile.row < 0) return;
  const int kv_head = static_cast<int>(blockIdx.x) % pass.kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  const auto offset_of = [&](int first_key) {
    return kv_offset(pass, tile, kv_head, first_key + warp * kTileKeys + lane % kTileKeys);
  };
  const std::uint32_t buffers = shared_address(shared_bytes);
  const auto k_tiles = [&](int turn) { return buffers + turn % 2 * 2 * kMmaWarps * kMmaTileBytes<D>; };
  const auto v_tiles = [&](int turn) { return k_tiles(turn) + kMmaWarps * kMmaTileBytes<D>; };
  const auto copy = [&](int turn, std::int64_t offset) {
    copy_tile<T, D>(k_tiles(turn) + warp * kMmaTileBytes<D>, static_cast<const T*>(pass.rows.k), offset);
    copy_tile<T, D>(v_tiles(turn) + warp * kMmaTileBytes<D>, static_cast<const T*>(pass.rows.v), offset);
    commit_copies();
  };

  copy(0, offset_of(0));
  std::int64_t ahead = offset_of(kKeys);
  WarpQueries<T, D> queries;
  queries.start_over();
  int own[2], visible[2];  // the lane's two queries; rows without a query repeat the last one
  const T* q[2];
  for (int row = 0; row < 2; ++row) {
    own[row] = min(warp * 16 + lane / 4 + row * 8, tile.queries - 1);
    visible[row] = visible_to(pass, tile, own[row]);
    q[row] = static_cast<const T*>(pass.q) + query_offset(pass, tile, kv_head, own[row], pass.q_stride);
  }
  queries.load(q);
  const int seen_by_all = visible_to(pass, tile, 0);

  for (int first = 0, turn = 0; first < tile.end; first += kKeys, ++turn) {
    wait_for_copies<0>();
    __syncthreads();  // the tile has arrived, and no warp still reads the one before
    if (first + kKeys < tile.end) {
      copy(turn + 1, ahead);
      ahead = offset_of(first + 2 * kKeys);
    }
    float scores[kKeys / 8][4];
    queries.template score<kKeys>(k_tiles(turn), scores);
    if (first + kKeys > seen_by_all) {
      queries.template mask<kKeys>(scores, {visible[0] - first, visible[1] - first});
    }
    queries.template weigh<kKeys>(scores, pass.scale);
    queries.template add_values<kKeys>(scores, v_tiles(turn));
  }
  queries.add_up_weights();

#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (warp * 16 + lane / 4 + row * 8 >= tile.queries) continue;
    T* out = static_cast<T*>(pass.out) + query_offset(pass, tile, kv_head, own[row], pass.out_stride);
    const float inverse = 1 / queries.weight[row];
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<std::uint32_t*>(out + n * 8 + lane % 4 * 2) =
          pack_two<T>(queries.sum[n][2 * row] * inverse, queries.sum[n][2 * row + 1] * inverse);
    }
  }
#endif
}

}  // namespace

void prefill_on_tensor_cores(DType dtype, const AttentionPass& pass, std::int64_t tiles,
                             cudaStream_t stream) {
  with_mma_sizes(dtype, pass.head_dim, [&]<typename T, int D>() {
    launch_tiles("attention_mma_prefill", attention_mma_prefill<T, D>, kBytes<D>, pass, tiles, stream,
                 /*overlaps=*/false);
  });
}

}  // namespace kvcache::cuda
