/// @file
/// Attention, third rung, prefill: tensor cores and copies that run ahead, for f16 and bf16 with a head_dim
/// of 64 or 128. Prefill is bound by arithmetic: four warps share tiles of 64 keys.
///
/// Each span of 256 positions is computed by itself, and spans are added in order. So where there are few
/// tiles, the thread blocks of a cluster share the spans of a tile, and the bits stay the same. 32 tokens
/// after 2,048 that the prefix cache has take 1.7 ms instead of 3.2
/// (docs/results/2026-11-29-h200-first-token.md). This shows it: build/bin/bench_step4_prefix_cache
/// --device cuda --random-weights qwen3-0.6b --benchmark_filter=prefix:2048. Chapter: step3_paged/README.md.
#include "common/cuda/attention_mma_launch.cuh"
#include "common/cuda/attention_spans.cuh"

namespace kvcache::cuda {
namespace {

constexpr int kKeys = kMmaWarps * kTileKeys;
/// Two pairs of K and V tiles: while warps compute with one pair, the next is on its way.
template <int D>
constexpr int kRingBytes = 2 * 2 * kKeys* D * 2;

static_assert(kTensorCorePrefillQueries == kMmaWarps * kTileQueries);

/// 64 queries of one sequence and KV head, over all positions that any of them sees. Each warp has 16 of the
/// queries and copies a quarter of each tile of keys.
/// @param Blocks  that share the tile: block b takes the spans b, b + Blocks, ...; 1: no cluster
template <typename T, int D, int Blocks>
__global__ __launch_bounds__(32 * kMmaWarps) void attention_mma_prefill(
    const __grid_constant__ AttentionPass pass) {
#if __CUDA_ARCH__ >= 800
  constexpr int kTurns = kSpan / kKeys;  // of a span
  extern __shared__ __align__(kTileAlignment) unsigned char shared_bytes[];
  start_next_kernel();
  const int number = static_cast<int>(blockIdx.x) / Blocks, block = static_cast<int>(blockIdx.x) % Blocks;
  const AttentionTile tile = pass.tiles[number / pass.kv_heads];
  if (tile.row < 0) return;
  const int kv_head = number % pass.kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  const auto first_key = [&](int turn) {
    return (turn / kTurns * Blocks + block) * kSpan + turn % kTurns * kKeys;
  };
  const auto offset_of = [&](int turn) {
    return kv_offset(pass, tile, kv_head, first_key(turn) + warp * kTileKeys + lane % kTileKeys);
  };
  const std::uint32_t buffers = shared_address(shared_bytes);
  const auto k_tiles = [&](int turn) { return buffers + turn % 2 * 2 * kMmaWarps * kMmaTileBytes<D>; };
  const auto v_tiles = [&](int turn) { return k_tiles(turn) + kMmaWarps * kMmaTileBytes<D>; };
  const auto copy = [&](int turn, std::int64_t offset) {
    copy_tile<T, D>(k_tiles(turn) + warp * kMmaTileBytes<D>, static_cast<const T*>(pass.rows.k), offset);
    copy_tile<T, D>(v_tiles(turn) + warp * kMmaTileBytes<D>, static_cast<const T*>(pass.rows.v), offset);
    commit_copies();
  };

  const std::int64_t offset = offset_of(0);
  std::int64_t ahead = offset_of(1);
  wait_for_earlier_kernels();
  copy(0, offset);
  WarpQueries<T, D> queries;
  int visible[2];  // to the lane's two queries; rows without a query repeat the last one
  const T* q[2];
  for (int row = 0; row < 2; ++row) {
    const int query = min(warp * kTileQueries + lane / 4 + row * 8, tile.queries - 1);
    visible[row] = visible_to(pass, tile, query);
    q[row] = static_cast<const T*>(pass.q) + query_offset(pass, tile, kv_head, query, pass.q_stride);
  }
  queries.load(q);
  const int seen_by_all = visible_to(pass, tile, 0);

  WarpTotal<D> total;
  ClusterTotal<T, D, Blocks> cluster_total;
  for (int span = block, turn = 0; (span - block) * kSpan < tile.end; span += Blocks) {
    queries.start_over();
    for (const int next = turn + kTurns; turn < next && first_key(turn) < tile.end; ++turn) {
      const int first = first_key(turn);
      wait_for_copies<0>();
      __syncthreads();  // the tile has arrived, and no warp still reads the one before
      if (first_key(turn + 1) < tile.end) {
        copy(turn + 1, ahead);
        ahead = offset_of(turn + 2);
      }
      float scores[kKeys / 8][4];
      queries.template score<kKeys>(k_tiles(turn), scores);
      if (first + kKeys > seen_by_all)
        queries.template mask<kKeys>(scores, {visible[0] - first, visible[1] - first});
      queries.template weigh<kKeys>(scores, pass.scale);
      queries.template add_values<kKeys>(scores, v_tiles(turn));
    }
    queries.add_up_weights();
    if constexpr (Blocks == 1) {
      for (int row = 0; row < 2; ++row) {
        if (visible[row] > span * kSpan) total.add(queries, row);
      }
    } else {
      auto& own_span = *reinterpret_cast<SpanOfQueries<D>*>(shared_bytes + kRingBytes<D>);
      cluster_total.add(pass, tile, own_span, queries, span - block);
    }
  }
  if constexpr (Blocks == 1) {
    total.template write<T>(pass, tile, kv_head);
  } else {
    cluster_total.write(pass, tile, kv_head);
  }
#endif
}

}  // namespace

void prefill_on_tensor_cores(DType dtype, const AttentionPass& pass, std::int64_t tiles,
                             cudaStream_t stream) {
  // A cluster gains where most of the GPU would be idle and there are spans to share.
  const GpuLimits& limits = GpuLimits::get();
  const bool is_small =
      has_hopper_kernels() && pass.longest > kSpan && 2 * tiles * pass.kv_heads <= limits.multiprocessors;
  with_mma_sizes(dtype, pass.head_dim, [&]<typename T, int D>() {
    const auto start = [&]<int Blocks>(int bytes) {
      launch_tiles("attention_mma_prefill", attention_mma_prefill<T, D, Blocks>, bytes, pass, tiles, stream,
                   /*overlaps=*/true, Blocks);
    };
    constexpr int kBlocks = 8;  // every GPU that has clusters can run so many
    constexpr int kBytes = kRingBytes<D> + static_cast<int>(sizeof(SpanOfQueries<D>));
    const bool shares = is_small && kBytes <= limits.shared_bytes;
    shares ? start.template operator()<kBlocks>(kBytes) : start.template operator()<1>(kRingBytes<D>);
  });
}

}  // namespace kvcache::cuda
