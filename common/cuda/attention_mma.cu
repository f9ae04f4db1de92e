/// @file
/// Attention, third rung: tensor cores and copies that run ahead, for f16 and bf16 with a head_dim of 64 or
/// 128. Decode is bound by reading K and V: each warp keeps a ring of tiles on their way and waits for no
/// other warp until the end. Prefill is bound by arithmetic: four warps share tiles of 64 keys.
///
/// A decoding row longer than 256 positions comes to attention_mma_decode in parts, one thread block each:
/// the host has cut it (`split_length` in attention_work.h), and `merge_parts` makes the row of them.
/// Chapter: step3_paged/README.md.
#include "common/cuda/attention_merge.cuh"
#include "common/cuda/attention_mma.cuh"
#include "common/cuda/heads.cuh"
#include "common/cuda/move_rows.cuh"

namespace kvcache::cuda {
namespace {

constexpr int kWarps = 4;

template <int D>
struct Sizes {
  static constexpr int tile_bytes = kTileKeys * D * 2;  // of K, or of V
  /// Tiles of K and of V that a decoding warp has on their way: 64 KiB in a thread block. So the three thread
  /// blocks of a multiprocessor always have the 64 KiB in flight that hide the memory's latency.
  static constexpr int stages = D == 128 ? 2 : 4;
  static constexpr int decode_bytes = kWarps * stages * 2 * tile_bytes;
  static constexpr int prefill_keys = kWarps * kTileKeys;
  /// Two pairs of K and V tiles: while warps compute with one pair, the next is on its way.
  static constexpr int prefill_bytes = 2 * 2 * prefill_keys * D * 2;
};

/// The results of a decoding block's warps, for the merge. They take the place of the ring.
template <int D>
struct WarpParts {
  float sums[kWarps][kTileQueries][D + 8];  // + 8: rows that are written together meet different banks
  float2 softmax[kWarps][kTileQueries];
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
  for (int item = static_cast<int>(threadIdx.x); item < tile.queries * (D / 4); item += 32 * kWarps) {
    const int query = item / (D / 4), dim = item % (D / 4) * 4;
    PartOfFour total;
    for (int warp = 0; warp < kWarps; ++warp) {
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

/// A row's queries of one KV head, and its own key and value, made ready.
template <typename T, int D>
struct FreshRow {
  alignas(16) T q[kTileQueries][D + 8];  // + 8: rows that are read together lie in different banks
  alignas(16) T k[D], v[D];
};

/// A warp stores the row's key, which is ready in `fresh`, and its value.
template <typename T, int D>
__device__ void store_own(const AttentionPass& pass, std::int64_t row, int kv_head, FreshRow<T, D>& fresh) {
  const NewHeads& heads = pass.fresh;
  const T* value = static_cast<const T*>(heads.v) + row * heads.v_stride + kv_head * D;
  const std::int64_t slot = heads.slots[row], at = (slot * pass.kv_heads + kv_head) * D;
  const KeepToItself<std::uint16_t> keep{std::is_same_v<T, __half> ? 0x7C00 : 0x7F80};
  __syncwarp();
  for (int d = static_cast<int>(threadIdx.x) % 32; d < D; d += 32) {
    fresh.v[d] = value[d];
    keep(reinterpret_cast<std::uint16_t&>(fresh.k[d]), reinterpret_cast<std::uint16_t&>(fresh.v[d]));
    if (slot < 0) continue;
    static_cast<T*>(heads.k_store)[at + d] = fresh.k[d];
    static_cast<T*>(heads.v_store)[at + d] = fresh.v[d];
  }
}

/// Normalises and rotates the tile's queries. The thread block that attends to the row's own position also
/// makes the row's key ready, and stores it and the value.
template <typename T, int D>
__device__ void prepare(const AttentionPass& pass, const AttentionTile& tile, int kv_head,
                        FreshRow<T, D>& fresh) {
  const NewHeads& heads = pass.fresh;
  const auto make_ready = [&](const T* from, const void* norm, float eps, T* to) {
    WarpHead<T, D> head(from, D);
    head.normalise(static_cast<const T*>(norm), eps);
    head.rotate(heads.rotation, tile.row);
    head.store(to);
  };
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == kWarps - 1 && tile.end == tile.visible) {
    make_ready(static_cast<const T*>(heads.k) + tile.row * heads.k_stride + kv_head * D, heads.k_norm,
               heads.k_eps, fresh.k);
    store_own(pass, tile.row, kv_head, fresh);
  }
  for (int n = warp; n < tile.queries; n += kWarps) {
    make_ready(static_cast<const T*>(pass.q) + query_offset(pass, tile, kv_head, n, pass.q_stride),
               heads.q_norm, heads.q_eps, fresh.q[n]);
  }
}

/// The queries of one row and KV head, over one part of the row's positions. Warp w takes the tiles w, w + 4,
/// ... of 16 keys. As soon as a tile's K is scored, the copy of a later K into its place starts; the same for
/// V as soon as it is added.
template <typename T, int D>
__global__ __launch_bounds__(32 * kWarps,
                             3) void attention_mma_decode(const __grid_constant__ AttentionPass pass) {
#if __CUDA_ARCH__ >= 800
  using S = Sizes<D>;
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

  const auto first_key = [&](int turn) { return tile.begin + (turn * kWarps + warp) * kTileKeys; };
  const auto offset_of = [&](int turn) {
    const int position = first_key(turn) + lane % kTileKeys;
    return position == own ? -1 : kv_offset(pass, tile, kv_head, position);
  };
  const std::uint32_t ring = shared_address(shared_bytes) + warp * S::stages * 2 * S::tile_bytes;
  const auto k_tile = [&](int turn) { return ring + turn % S::stages * 2 * S::tile_bytes; };
  const auto v_tile = [&](int turn) { return k_tile(turn) + S::tile_bytes; };
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

  std::int64_t offsets[S::stages];  // all lookups are under way before the first copy starts
#pragma unroll
  for (int turn = 0; turn < S::stages; ++turn) offsets[turn] = offset_of(turn);
#pragma unroll
  for (int turn = 0; turn < S::stages; ++turn) {
    copy(k_tile(turn), k_rows, turn, offsets[turn]);
    copy(v_tile(turn), v_rows, turn, offsets[turn]);
  }
  // Earlier passes stored all that is on its way. The row itself comes from the kernel before.
  wait_for_earlier_kernels();
  if (prepares) prepare<T, D>(pass, tile, kv_head, fresh);
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

  // K and V of `stages` turns are on their way, as 2 * stages groups, which complete in order. So when all
  // but kPending are done, the oldest is: first K of this turn, and after one more group V of this turn.
  constexpr int kPending = 2 * S::stages - 1;
  for (int turn = 0; first_key(turn) < tile.end; ++turn) {
    const std::int64_t ahead = offset_of(turn + S::stages);  // looked up long before its copy starts
    float scores[kTileKeys / 8][4];
    wait_for_copies<kPending>();
    __syncwarp();
    put_own(k_tile(turn), turn, fresh.k);
    queries.template score<kTileKeys>(k_tile(turn), scores);
    __syncwarp();
    copy(k_tile(turn), k_rows, turn + S::stages, ahead);

    const int seen = tile.end - first_key(turn);
    if (seen < kTileKeys) queries.template mask<kTileKeys>(scores, {seen, seen});
    queries.template weigh<kTileKeys>(scores, pass.scale);

    wait_for_copies<kPending>();
    __syncwarp();
    put_own(v_tile(turn), turn, fresh.v);
    queries.template add_values<kTileKeys>(scores, v_tile(turn));
    __syncwarp();
    copy(v_tile(turn), v_rows, turn + S::stages, ahead);
  }
  queries.add_up_weights();

  static_assert(sizeof(WarpParts<D>) <= S::decode_bytes);
  WarpParts<D>& parts = *reinterpret_cast<WarpParts<D>*>(shared_bytes);
  __syncthreads();  // all warps are done with the ring
  store_warp_part(queries, tile.queries, parts);
  __syncthreads();
  merge_warps<T, D>(pass, tile, kv_head, parts);
  if (tile.parts > 1 && last_to_arrive(pass, tile, kv_head)) merge_parts<T>(pass, tile, kv_head);
#endif
}

static_assert(kTensorCorePrefillQueries == kWarps * kTileQueries);

/// 64 queries of one sequence and KV head, over all positions that any of them sees. Each warp has 16 of the
/// queries and copies a quarter of each tile of keys.
template <typename T, int D>
__global__ __launch_bounds__(32 *
                             kWarps) void attention_mma_prefill(const __grid_constant__ AttentionPass pass) {
#if __CUDA_ARCH__ >= 800
  using S = Sizes<D>;
  extern __shared__ __align__(kTileAlignment) unsigned char shared_bytes[];
  const AttentionTile tile = pass.tiles[blockIdx.x / pass.kv_heads];
  if (tile.row < 0) return;
  const int kv_head = static_cast<int>(blockIdx.x) % pass.kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  const auto offset_of = [&](int first_key) {
    return kv_offset(pass, tile, kv_head, first_key + warp * kTileKeys + lane % kTileKeys);
  };
  const std::uint32_t buffers = shared_address(shared_bytes);
  const auto k_tiles = [&](int turn) { return buffers + turn % 2 * 2 * kWarps * S::tile_bytes; };
  const auto v_tiles = [&](int turn) { return k_tiles(turn) + kWarps * S::tile_bytes; };
  const auto copy = [&](int turn, std::int64_t offset) {
    copy_tile<T, D>(k_tiles(turn) + warp * S::tile_bytes, static_cast<const T*>(pass.rows.k), offset);
    copy_tile<T, D>(v_tiles(turn) + warp * S::tile_bytes, static_cast<const T*>(pass.rows.v), offset);
    commit_copies();
  };

  copy(0, offset_of(0));
  std::int64_t ahead = offset_of(S::prefill_keys);
  WarpQueries<T, D> queries;
  int own[2], visible[2];  // the lane's two queries; rows without a query repeat the last one
  const T* q[2];
  for (int row = 0; row < 2; ++row) {
    own[row] = min(warp * 16 + lane / 4 + row * 8, tile.queries - 1);
    visible[row] = visible_to(pass, tile, own[row]);
    q[row] = static_cast<const T*>(pass.q) + query_offset(pass, tile, kv_head, own[row], pass.q_stride);
  }
  queries.load(q);
  const int seen_by_all = visible_to(pass, tile, 0);

  for (int first = 0, turn = 0; first < tile.end; first += S::prefill_keys, ++turn) {
    wait_for_copies<0>();
    __syncthreads();  // the tile has arrived, and no warp still reads the one before
    if (first + S::prefill_keys < tile.end) {
      copy(turn + 1, ahead);
      ahead = offset_of(first + 2 * S::prefill_keys);
    }
    float scores[S::prefill_keys / 8][4];
    queries.template score<S::prefill_keys>(k_tiles(turn), scores);
    if (first + S::prefill_keys > seen_by_all) {
      queries.template mask<S::prefill_keys>(scores, {visible[0] - first, visible[1] - first});
    }
    queries.template weigh<S::prefill_keys>(scores, pass.scale);
    queries.template add_values<S::prefill_keys>(scores, v_tiles(turn));
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

using Kernel = void (*)(AttentionPass);

/// @param name  of the kernel, for the error
/// @param shared_bytes  of a thread block
/// @param overlaps  the kernel starts while the one before it runs
void launch_tiles(const char* name, Kernel kernel, int shared_bytes, const AttentionPass& pass,
                  std::int64_t tiles, cudaStream_t stream, bool overlaps = false) {
  if (tiles == 0) return;
  // Otherwise the first-level cache may keep so much that fewer thread blocks fit.
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        name);
  const LaunchShape shape{dim3(static_cast<unsigned>(tiles * pass.kv_heads)), dim3(32 * kWarps),
                          static_cast<std::size_t>(shared_bytes), overlaps};
  launch(name, kernel, shape, stream, pass);
}

/// Calls `function.operator()<T, D>()` with the number type and head_dim of a pass.
template <typename Function>
void with_sizes(DType dtype, int head_dim, Function function) {
  const auto with_head_dim = [&]<typename T>() {
    head_dim == 64 ? function.template operator()<T, 64>() : function.template operator()<T, 128>();
  };
  dtype == DType::f16 ? with_head_dim.template operator()<__half>()
                      : with_head_dim.template operator()<__nv_bfloat16>();
}

}  // namespace

bool tensor_core_kernels_are_built() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, attention_mma_decode<__half, 64>),
        "looking for the tensor-core kernels");
  return attributes.ptxVersion >= 80;
}

void decode_on_tensor_cores(DType dtype, const AttentionPass& pass, std::int64_t tiles, cudaStream_t stream) {
  with_sizes(dtype, pass.head_dim, [&]<typename T, int D>() {
    // Without new heads, the kernel before has just stored keys that this one would read too early.
    launch_tiles("attention_mma_decode", attention_mma_decode<T, D>, Sizes<D>::decode_bytes, pass, tiles,
                 stream,
                 /*overlaps=*/pass.fresh.k != nullptr);
  });
}

void prefill_on_tensor_cores(DType dtype, const AttentionPass& pass, std::int64_t tiles,
                             cudaStream_t stream) {
  with_sizes(dtype, pass.head_dim, [&]<typename T, int D>() {
    launch_tiles("attention_mma_prefill", attention_mma_prefill<T, D>, Sizes<D>::prefill_bytes, pass, tiles,
                 stream);
  });
}

}  // namespace kvcache::cuda
