/// @file
/// Attention, third rung, decode: tensor cores and copies that run ahead, for f16 and bf16 with a head_dim of
/// 64 or 128. Decode is bound by reading K and V: each warp keeps a ring of tiles on their way and waits for
/// no other warp until the end.
///
/// A decoding row longer than 256 positions comes here in parts, one thread block each: the host has cut it
/// (`split_length` in attention_work.h), and `merge_parts` makes the row of them. A part of a row beyond
/// 16,384 positions has several spans of 256, which are computed one after the other.
///
/// In a pass of decode rows alone the kernel also makes the heads ready and stores the row's key and value
/// (`Preparation`), which takes two kernels otherwise (rotate_and_store.h). It asks for K and V of earlier
/// passes before it waits for the kernel that computes q, k and v.
///
/// Decode of 64 sequences after 4,096 positions reads 2,804 GB/s of K and V, the second rung 1,210 (16 and 8
/// heads of 128, bf16, H100: docs/results/2026-11-28-h100-cuda.md). This times both:
/// build/bin/bench_kernels --benchmark_filter='cuda/decode'. Chapter: step3_paged/README.md.
#include "common/cuda/attention_merge.cuh"
#include "common/cuda/attention_mma_launch.cuh"
#include "common/cuda/fresh_row.cuh"
#include "common/cuda/warp_parts.cuh"
#include "common/cuda/warp_queries.cuh"

namespace kvcache::cuda {
namespace {

/// How much of K and V a thread block has on its way.
enum class Ring : std::uint8_t {
  shared,  ///< 64 KiB: three thread blocks fit on a multiprocessor and hide the memory's latency together
  whole    ///< 128 KiB, a whole part of 256 positions: for passes with at most one thread block for each
           ///< multiprocessor
};
/// Tiles of K and of V that a warp has on their way.
template <int D, Ring ring>
constexpr int kStages = (ring == Ring::whole ? 4 : 2) * 128 / D;
template <int D, Ring ring>
constexpr int kRingBytes = kMmaWarps* kStages<D, ring> * 2 * kMmaTileBytes<D>;

/// The queries of one row and KV head, over one part of the row's positions. Warp w takes the tiles w, w + 4,
/// ... of 16 keys. As soon as a tile's K is scored, the copy of a later K into its place starts; the same for
/// V as soon as it is added.
template <typename T, int D, int Halves, Ring ring_size>
__global__ __launch_bounds__(32 * kMmaWarps, ring_size == Ring::whole ? 1 : 3) void attention_mma_decode(
    const __grid_constant__ AttentionPass pass) {
#if __CUDA_ARCH__ >= 800
  constexpr int kTurns = kStages<D, ring_size>;
  extern __shared__ __align__(kTileAlignment) unsigned char shared_bytes[];
  __shared__ FreshRow<T, D> fresh;
  start_next_kernel();
  const AttentionTile tile = pass.tiles[blockIdx.x / pass.kv_heads];
  if (tile.row < 0) return;
  const int kv_head = static_cast<int>(blockIdx.x) % pass.kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const bool prepares = pass.fresh.k != nullptr;
  const int own = prepares ? tile.visible - 1 : tile.end;  // the position that comes from `fresh`
  const T* k_rows = static_cast<const T*>(pass.rows.k);
  const T* v_rows = static_cast<const T*>(pass.rows.v);

  const auto first_key = [&](int turn) { return tile.begin + (turn * kMmaWarps + warp) * kTileKeys; };
  // Then the 16 keys of a tile lie at equal distances, and one lookup for all saves instructions. With a
  // whole ring nothing has to be saved, and a pass of one sequence is 3% faster with a lookup for each key.
  const bool in_one_block = ring_size == Ring::shared &&
                            (pass.slots.block_table == nullptr || pass.slots.block_size % kTileKeys == 0);
  const auto offset_of = [&](int turn) {
    const int position = first_key(turn) + (in_one_block ? 0 : lane % kTileKeys);
    return position == own ? -1 : kv_offset(pass, tile, kv_head, position);
  };
  const std::uint32_t ring = shared_address(shared_bytes) + warp * kTurns * 2 * kMmaTileBytes<D>;
  const auto k_tile = [&](int turn) { return ring + turn % kTurns * 2 * kMmaTileBytes<D>; };
  const auto v_tile = [&](int turn) { return k_tile(turn) + kMmaTileBytes<D>; };
  const auto copy = [&](std::uint32_t to, const T* from, int turn, std::int64_t offset) {
    const int stored = min(tile.end, own) - first_key(turn);
    if (first_key(turn) < tile.end) {
      in_one_block ? copy_neighbours<T, D>(to, from, offset, std::int64_t{pass.kv_heads} * D, stored)
                   : copy_tile<T, D>(to, from, offset);
    }
    commit_copies();  // an empty group too: the number of groups on their way stays the same
  };

  /// Puts the row's own key or value into its place, once the tile around it has arrived.
  const auto put_own = [&](std::uint32_t tile_address, int turn, const T* numbers) {
    const int key = own - first_key(turn);
    if (!prepares || key < 0 || key >= kTileKeys) return;
    if (lane < D / 8) store_pack(tile_address + place<D>(key, lane), numbers + lane * 8);
    __syncwarp();
  };

  std::int64_t offsets[kTurns];  // all lookups are under way before the first copy starts
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) offsets[turn] = offset_of(turn);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    copy(k_tile(turn), k_rows, turn, offsets[turn]);
    copy(v_tile(turn), v_rows, turn, offsets[turn]);
  }
  // Earlier passes stored the K and V that are on their way. The kernel before computes the row's own.
  if (prepares) {
    const Preparation<T, D> preparation(pass, tile, kv_head);
    wait_for_earlier_kernels();
    preparation.run(fresh);
  } else {
    wait_for_earlier_kernels();
  }
  __syncthreads();
  WarpQueries<T, D, Halves> queries;
  const T* q[Halves];
  for (int row = 0; row < Halves; ++row) {
    const int query = min(lane / 4 + row * 8, tile.queries - 1);  // rows without a query repeat the last one
    q[row] = prepares
                 ? fresh.q[query]
                 : static_cast<const T*>(pass.q) + query_offset(pass, tile, kv_head, query, pass.q_stride);
  }
  queries.load(q);

  // K and V of kTurns turns are on their way, as 2 * kTurns groups, which complete in order. When all groups
  // but kPending are done, the oldest one is done: first K of this turn, one group later V of this turn.
  constexpr int kPending = 2 * kTurns - 1;
  static_assert(WarpParts<D>::bytes(kTileQueries) <= kRingBytes<D, ring_size>);
  const WarpParts<D> parts{reinterpret_cast<float*>(shared_bytes + pass.warp_parts), pass.part_queries};
  int turn = 0;
  for (int span = 0, begin = tile.begin; begin < tile.end; ++span, begin += kSpan) {
    const int end = min(begin + kSpan, tile.end);
    queries.start_over();
    for (; first_key(turn) < end; ++turn) {
      const std::int64_t ahead = offset_of(turn + kTurns);  // looked up long before its copy starts
      float scores[kTileKeys / 8][4];
      wait_for_copies<kPending>();
      __syncwarp();
      put_own(k_tile(turn), turn, fresh.k);
      queries.template score<kTileKeys>(k_tile(turn), scores);
      __syncwarp();
      copy(k_tile(turn), k_rows, turn + kTurns, ahead);

      const int seen = end - first_key(turn);
      if (seen < kTileKeys) {
        int all_seen[Halves];
        for (int& of_row : all_seen) of_row = seen;
        queries.template mask<kTileKeys>(scores, all_seen);
      }
      queries.template weigh<kTileKeys>(scores, pass.scale);

      wait_for_copies<kPending>();
      __syncwarp();
      put_own(v_tile(turn), turn, fresh.v);
      queries.template add_values<kTileKeys>(scores, v_tile(turn));
      __syncwarp();
      copy(v_tile(turn), v_rows, turn + kTurns, ahead);
    }
    queries.add_up_weights();
    __syncthreads();  // all warps are done with the span before, or with the ring
    store_warp_part(queries, tile.queries, parts);
    __syncthreads();
    merge_warps<T, D>(pass, tile, kv_head, span, end == tile.end, parts);
  }
  if (tile.parts > 1 && last_to_arrive(pass, tile, kv_head)) merge_parts<T>(pass, tile, kv_head);
#endif
}

}  // namespace

bool tensor_core_kernels_are_built() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, attention_mma_decode<__half, 64, 1, Ring::shared>),
        "looking for the tensor-core kernels");
  return attributes.ptxVersion >= 80;
}

void decode_on_tensor_cores(DType dtype, const AttentionPass& work, std::int64_t tiles, cudaStream_t stream) {
  AttentionPass pass = work;
  with_mma_sizes(dtype, pass.head_dim, [&]<typename T, int D>() {
    const auto start = [&]<int Halves, Ring ring>() {
      // Without new heads, the kernel before has just stored keys, and an early start would read old ones.
      const bool overlaps = pass.fresh.k != nullptr && pass.fresh.early;
      // With several spans in a part, the ring is in use when the first one is merged.
      pass.warp_parts = pass.has_long_parts ? kRingBytes<D, ring> : 0;
      const int more = pass.has_long_parts ? WarpParts<D>::bytes(pass.part_queries) : 0;
      launch_tiles("attention_mma_decode", attention_mma_decode<T, D, Halves, ring>,
                   kRingBytes<D, ring> + more, pass, tiles, stream, overlaps);
    };
    const auto with_ring = [&]<Ring ring>() {
      pass.part_queries <= 8 ? start.template operator()<1, ring>() : start.template operator()<2, ring>();
    };
    const GpuLimits& limits = GpuLimits::get();
    const int whole_bytes = kRingBytes<D, Ring::whole> + WarpParts<D>::bytes(pass.part_queries) +
                            static_cast<int>(sizeof(FreshRow<T, D>));
    const bool is_small =
        tiles * pass.kv_heads <= limits.multiprocessors && whole_bytes <= limits.shared_bytes;
    is_small ? with_ring.template operator()<Ring::whole>() : with_ring.template operator()<Ring::shared>();
  });
}

}  // namespace kvcache::cuda
