/// @file
/// Attention, third rung, decode: tensor cores and copies that run ahead, for f16 and bf16 with a head_dim of
/// 64 or 128. Decode is bound by reading K and V: each warp keeps a ring of tiles on their way and waits for
/// no other warp until the end.
///
/// A decoding row longer than 256 positions comes here in parts, one thread block each: the host has cut it
/// (`split_length` in attention_work.h), and `merge_parts` makes the row of them.
///
/// In a pass of decode rows alone the kernel also makes the heads ready and stores the row's key and value
/// (`Preparation`), which takes three kernels otherwise (rotate_and_store.h). It asks for K and V of earlier
/// passes before it waits for the kernel that computes q, k and v. Chapter: step3_paged/README.md.
#include "common/cuda/attention_merge.cuh"
#include "common/cuda/attention_mma_launch.cuh"
#include "common/cuda/fresh_row.cuh"

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

/// The results of a decoding block's warps, for the merge. They take the place of the ring.
template <int D>
struct WarpParts {
  float sums[kMmaWarps][kTileQueries][D + 8];  // + 8: rows that are written together meet different banks
  float2 softmax[kMmaWarps][kTileQueries];
};

template <typename T, int D>
__device__ void store_warp_part(const WarpQueries<T, D>& queries, int tile_queries, WarpParts<D>& parts) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int query = lane / 4 + row * 8;
    if (query >= tile_queries) continue;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<float2*>(&parts.sums[warp][query][n * 8 + lane % 4 * 2]) = {
          queries.sum[n][2 * row], queries.sum[n][2 * row + 1]};
    }
    if (lane % 4 == 0) parts.softmax[warp][query] = {queries.largest[row], queries.weight[row]};
  }
}

/// Merges the warps of a block in their order and writes the result, or the block's part of it.
template <typename T, int D>
__device__ void merge_warps(const AttentionPass& pass, const AttentionTile& tile, int kv_head,
                            const WarpParts<D>& parts) {
  for (int item = static_cast<int>(threadIdx.x); item < tile.queries * (D / 4); item += 32 * kMmaWarps) {
    const int query = item / (D / 4), dim = item % (D / 4) * 4;
    PartOfFour total;
    for (int warp = 0; warp < kMmaWarps; ++warp) {
      total.add(parts.softmax[warp][query], *reinterpret_cast<const float4*>(&parts.sums[warp][query][dim]));
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

/// The queries of one row and KV head, over one part of the row's positions. Warp w takes the tiles w, w + 4,
/// ... of 16 keys. As soon as a tile's K is scored, the copy of a later K into its place starts; the same for
/// V as soon as it is added.
template <typename T, int D, Ring ring_size>
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
  const auto offset_of = [&](int turn) {
    const int position = first_key(turn) + lane % kTileKeys;
    return position == own ? -1 : kv_offset(pass, tile, kv_head, position);
  };
  const std::uint32_t ring = shared_address(shared_bytes) + warp * kTurns * 2 * kMmaTileBytes<D>;
  const auto k_tile = [&](int turn) { return ring + turn % kTurns * 2 * kMmaTileBytes<D>; };
  const auto v_tile = [&](int turn) { return k_tile(turn) + kMmaTileBytes<D>; };
  const auto copy = [&](std::uint32_t to, const T* from, int turn, std::int64_t offset) {
    if (first_key(turn) < tile.end) copy_tile<T, D>(to, from, offset);
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
  WarpQueries<T, D> queries;
  const T* q[2];
  for (int row = 0; row < 2; ++row) {
    const int query = min(lane / 4 + row * 8, tile.queries - 1);  // rows without a query repeat the last one
    q[row] = prepares
                 ? fresh.q[query]
                 : static_cast<const T*>(pass.q) + query_offset(pass, tile, kv_head, query, pass.q_stride);
  }
  queries.load(q);

  // K and V of kTurns turns are on their way, as 2 * kTurns groups, which complete in order. When all groups
  // but kPending are done, the oldest one is done: first K of this turn, one group later V of this turn.
  constexpr int kPending = 2 * kTurns - 1;
  for (int turn = 0; first_key(turn) < tile.end; ++turn) {
    const std::int64_t ahead = offset_of(turn + kTurns);  // looked up long before its copy starts
    float scores[kTileKeys / 8][4];
    wait_for_copies<kPending>();
    __syncwarp();
    put_own(k_tile(turn), turn, fresh.k);
    queries.template score<kTileKeys>(k_tile(turn), scores);
    __syncwarp();
    copy(k_tile(turn), k_rows, turn + kTurns, ahead);

    const int seen = tile.end - first_key(turn);
    if (seen < kTileKeys) queries.template mask<kTileKeys>(scores, {seen, seen});
    queries.template weigh<kTileKeys>(scores, pass.scale);

    wait_for_copies<kPending>();
    __syncwarp();
    put_own(v_tile(turn), turn, fresh.v);
    queries.template add_values<kTileKeys>(scores, v_tile(turn));
    __syncwarp();
    copy(v_tile(turn), v_rows, turn + kTurns, ahead);
  }
  queries.add_up_weights();

  static_assert(sizeof(WarpParts<D>) <= kRingBytes<D, ring_size>);
  WarpParts<D>& parts = *reinterpret_cast<WarpParts<D>*>(shared_bytes);
  __syncthreads();  // all warps are done with the ring
  store_warp_part(queries, tile.queries, parts);
  __syncthreads();
  merge_warps<T, D>(pass, tile, kv_head, parts);
  if (tile.parts > 1 && last_to_arrive(pass, tile, kv_head)) merge_parts<T>(pass, tile, kv_head);
#endif
}

}  // namespace

bool tensor_core_kernels_are_built() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, attention_mma_decode<__half, 64, Ring::shared>),
        "looking for the tensor-core kernels");
  return attributes.ptxVersion >= 80;
}

void decode_on_tensor_cores(DType dtype, const AttentionPass& pass, std::int64_t tiles, cudaStream_t stream) {
  with_mma_sizes(dtype, pass.head_dim, [&]<typename T, int D>() {
    // Without new heads, the kernel before has just stored keys, and an early start would read old ones.
    const bool overlaps = pass.fresh.k != nullptr && pass.fresh.early;
    const GpuLimits& limits = GpuLimits::get();
    constexpr int kWholeBytes = kRingBytes<D, Ring::whole> + static_cast<int>(sizeof(FreshRow<T, D>));
    if (tiles * pass.kv_heads <= limits.multiprocessors && kWholeBytes <= limits.shared_bytes) {
      launch_tiles("attention_mma_decode", attention_mma_decode<T, D, Ring::whole>,
                   kRingBytes<D, Ring::whole>, pass, tiles, stream, overlaps);
    } else {
      launch_tiles("attention_mma_decode", attention_mma_decode<T, D, Ring::shared>,
                   kRingBytes<D, Ring::shared>, pass, tiles, stream, overlaps);
    }
  });
}

}  // namespace kvcache::cuda
