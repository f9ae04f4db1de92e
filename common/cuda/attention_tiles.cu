/// @file
/// Attention, second rung: tiles in shared memory. A thread block takes up to 16 queries that read the same
/// KV head and brings 64 (or 32) keys at a time into shared memory, so K and V are read once for all of them.
/// It computes in float32, for every number type and head_dim.
///
/// A decoding row longer than 256 positions comes here in parts, one thread block each: the host has cut it
/// (`split_length` in attention_work.h), `write` stores a part, and `merge_parts` makes the row of them.
///
/// Decode of 64 sequences after 4,096 positions reads 1,210 GB/s of K and V, the first rung 47 (16 and 8
/// heads of 128, bf16, H100: docs/results/2026-11-28-h100-cuda.md). This times both: build/bin/bench_kernels
/// --benchmark_filter='cuda/(decode|prefill)'. Chapter: step3_paged/README.md.
#include "common/cuda/attention_merge.cuh"

namespace kvcache::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kWarpQueries = kTileQueries / kWarps;

/// The sizes for a head_dim of up to D. The numbers from head_dim to D are 0.
template <int D>
struct Sizes {
  static constexpr int keys = D > 128 ? 32 : 64;  // of a tile: its K or V fits the 64 KiB of the smallest GPU
  static constexpr int lane_keys = keys / 32;
  static constexpr int lane_dims = D / 32;
  static constexpr int warp_keys = keys / kWarps;
  static constexpr int stride =
      D + 4;  // of a key's row: eight lanes that read eight keys meet different banks
};

template <int D>
struct SharedTile {
  alignas(16) float q[kTileQueries][D];
  alignas(16) float rows[Sizes<D>::keys][Sizes<D>::stride];  // first K, then V of the same keys
  alignas(16) float weights[kTileQueries][Sizes<D>::keys];
};

/// Stores the numbers of 16 bytes as float32. @param to  aligned to 16 bytes
template <typename T>
__device__ void store_as_floats(const uint4& bytes, float* to) {
  const T* numbers = reinterpret_cast<const T*>(&bytes);
  for (int n = 0; n < Pack<T>::size; n += 4) {
    *reinterpret_cast<float4*>(to + n) = {to_float(numbers[n]), to_float(numbers[n + 1]),
                                          to_float(numbers[n + 2]), to_float(numbers[n + 3])};
  }
}

/// A warp brings its share of a tile's keys, or of their values, into shared memory.
/// @param from     K or V
/// @param offset   of key lane % warp_keys of the warp; negative: the row becomes 0
/// @param to       [warp_keys, stride]
template <typename T, int D>
__device__ void load_rows(const T* from, std::int64_t offset, int head_dim, float* to) {
  using S = Sizes<D>;
  constexpr int kPacks = D / Pack<T>::size;  // in a row
  constexpr int kLoads = S::warp_keys * kPacks / 32;
  constexpr int kAtOnce = kLoads < 8 ? kLoads : 8;  // loads under way before the first is stored
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = 0; first < kLoads; first += kAtOnce) {
    uint4 packs[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int index = (first + n) * 32 + lane, dim = index % kPacks * Pack<T>::size;
      const std::int64_t row = __shfl_sync(~0U, offset, index / kPacks);
      packs[n] = row >= 0 && dim < head_dim ? *reinterpret_cast<const uint4*>(from + row + dim) : uint4{};
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int index = (first + n) * 32 + lane, dim = index % kPacks * Pack<T>::size;
      store_as_floats<T>(packs[n], to + index / kPacks * S::stride + dim);
    }
  }
}

/// All warps bring the tile's queries into shared memory; rows from `tile.queries` on repeat the last one.
template <typename T, int D>
__device__ void load_queries(const AttentionPass& pass, const AttentionTile& tile, int kv_head,
                             float (&to)[kTileQueries][D]) {
  constexpr int kPacks = D / Pack<T>::size;
  for (int index = static_cast<int>(threadIdx.x); index < kTileQueries * kPacks; index += 32 * kWarps) {
    const int row = index / kPacks, dim = index % kPacks * Pack<T>::size;
    const int query = min(row, tile.queries - 1);
    const T* q = static_cast<const T*>(pass.q) + query_offset(pass, tile, kv_head, query, pass.q_stride);
    store_as_floats<T>(dim < pass.head_dim ? *reinterpret_cast<const uint4*>(q + dim) : uint4{},
                       &to[row][dim]);
  }
}

/// The running softmax of a warp's queries. Lane l has the numbers l, l + 32, ... of each sum.
template <int D>
struct Running {
  float largest[kWarpQueries], weight[kWarpQueries];  // the same in all lanes
  float sum[kWarpQueries][Sizes<D>::lane_dims] = {};

  __device__ Running() {
    for (int query = 0; query < kWarpQueries; ++query) {
      largest[query] = -INFINITY;
      weight[query] = 0;
    }
  }
};

/// scores = q . k, one key of 32 per lane.
template <int D>
__device__ void score(const float (*q)[D], const float (*keys)[Sizes<D>::stride],
                      float (&scores)[kWarpQueries][Sizes<D>::lane_keys]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 4
  for (int dim = 0; dim < D; dim += 4) {
    float4 k[Sizes<D>::lane_keys];
    for (int n = 0; n < Sizes<D>::lane_keys; ++n)
      k[n] = *reinterpret_cast<const float4*>(&keys[lane + 32 * n][dim]);
    for (int query = 0; query < kWarpQueries; ++query) {
      const float4 numbers = *reinterpret_cast<const float4*>(&q[query][dim]);
      for (int n = 0; n < Sizes<D>::lane_keys; ++n) {
        float& dot = scores[query][n];
        dot = fmaf(numbers.x, k[n].x, dot);
        dot = fmaf(numbers.y, k[n].y, dot);
        dot = fmaf(numbers.z, k[n].z, dot);
        dot = fmaf(numbers.w, k[n].w, dot);
      }
    }
  }
}

/// Turns the scores of one query into weights in shared memory and scales its sums down to the new largest
/// score. @param seen  keys of the tile that the query sees
template <int D>
__device__ void weigh(Running<D>& running, int query, const float (&scores)[Sizes<D>::lane_keys], float scale,
                      int seen, float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float scaled[Sizes<D>::lane_keys], top = running.largest[query];
  for (int n = 0; n < Sizes<D>::lane_keys; ++n) {
    scaled[n] = lane + 32 * n < seen ? scores[n] * scale : -INFINITY;
    top = fmaxf(top, scaled[n]);
  }
  for (int distance = 16; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, distance));

  float added = 0;
  for (int n = 0; n < Sizes<D>::lane_keys; ++n) {
    const float weight = exp2f(scaled[n] - top);
    weights[lane + 32 * n] = weight;
    added += weight;
  }
  for (int distance = 16; distance > 0; distance /= 2) added += __shfl_xor_sync(~0U, added, distance);

  const float keep = exp2f(running.largest[query] - top);
  running.largest[query] = top;
  running.weight[query] = fmaf(running.weight[query], keep, added);
  for (float& number : running.sum[query]) number *= keep;
}

/// sum += weights V. @param values  [keys, stride], 0 for a key that no query sees
template <int D>
__device__ void add_values(Running<D>& running, const float (*weights)[Sizes<D>::keys],
                           const float (*values)[Sizes<D>::stride]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 4
  for (int key = 0; key < Sizes<D>::keys; ++key) {
    float v[Sizes<D>::lane_dims];
    for (int n = 0; n < Sizes<D>::lane_dims; ++n) v[n] = values[key][lane + 32 * n];
    for (int query = 0; query < kWarpQueries; ++query) {
      const float weight = weights[query][key];
      for (int n = 0; n < Sizes<D>::lane_dims; ++n)
        running.sum[query][n] = fmaf(weight, v[n], running.sum[query][n]);
    }
  }
}

/// Writes the result of a warp's queries, or their part of it if the row was cut.
template <typename T, int D>
__device__ void write(const AttentionPass& pass, const AttentionTile& tile, int kv_head, int first_query,
                      const Running<D>& running) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int n = 0; n < kWarpQueries; ++n) {
    const int query = first_query + n;
    if (query >= tile.queries) return;
    const std::int64_t index = part_index(pass, tile, tile.part, kv_head, query);
    T* out = static_cast<T*>(pass.out) + query_offset(pass, tile, kv_head, query, pass.out_stride);
    const float inverse = 1 / running.weight[n];
    for (int m = 0; m < Sizes<D>::lane_dims; ++m) {
      const int dim = lane + 32 * m;
      if (dim >= pass.head_dim) break;
      if (tile.parts == 1) {
        out[dim] = from_float<T>(running.sum[n][m] * inverse);
      } else {
        pass.part_sums[index * pass.head_dim + dim] = running.sum[n][m];
      }
    }
    if (tile.parts > 1 && lane == 0) pass.part_softmax[index] = {running.largest[n], running.weight[n]};
  }
}

template <typename T, int D>
__global__ __launch_bounds__(32 * kWarps) void attention_tiles(const __grid_constant__ AttentionPass pass) {
  using S = Sizes<D>;
  extern __shared__ uint4 shared_bytes[];
  SharedTile<D>& shared = *reinterpret_cast<SharedTile<D>*>(shared_bytes);
  const AttentionTile& tile = pass.tiles[blockIdx.x / pass.kv_heads];
  if (tile.row < 0) return;
  const int kv_head = static_cast<int>(blockIdx.x) % pass.kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_query = warp * kWarpQueries, first_key = warp * S::warp_keys;

  load_queries<T, D>(pass, tile, kv_head, shared.q);
  Running<D> running;
  for (int first = tile.begin; first < tile.end; first += S::keys) {
    const std::int64_t offset = kv_offset(pass, tile, kv_head, first + first_key + lane % S::warp_keys);
    __syncthreads();  // no warp still reads the values before
    load_rows<T, D>(static_cast<const T*>(pass.rows.k), offset, pass.head_dim, shared.rows[first_key]);
    __syncthreads();
    float scores[kWarpQueries][S::lane_keys] = {};
    score<D>(&shared.q[first_query], shared.rows, scores);
    for (int n = 0; n < kWarpQueries; ++n) {
      const int seen = min(visible_to(pass, tile, min(first_query + n, tile.queries - 1)), tile.end) - first;
      weigh<D>(running, n, scores[n], pass.scale, seen, shared.weights[first_query + n]);
    }
    __syncthreads();  // no warp still reads the keys
    load_rows<T, D>(static_cast<const T*>(pass.rows.v), offset, pass.head_dim, shared.rows[first_key]);
    __syncthreads();
    add_values<D>(running, &shared.weights[first_query], shared.rows);
  }
  write<T, D>(pass, tile, kv_head, first_query, running);
  if (tile.parts > 1 && last_to_arrive(pass, tile, kv_head)) merge_parts<T>(pass, tile, kv_head);
}

template <typename T, int D>
void launch_tiles(const AttentionPass& pass, std::int64_t tiles, cudaStream_t stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(tiles * pass.kv_heads)), dim3(32 * kWarps),
                          sizeof(SharedTile<D>)};
  launch("attention_tiles", attention_tiles<T, D>, shape, stream, pass);
}

}  // namespace

void attend_in_tiles(DType dtype, const AttentionPass& pass, std::int64_t tiles, cudaStream_t stream) {
  with_number_type(dtype, [&]<typename T>() {
    if (pass.head_dim <= 64) return launch_tiles<T, 64>(pass, tiles, stream);
    if (pass.head_dim <= 128) return launch_tiles<T, 128>(pass, tiles, stream);
    return launch_tiles<T, kMostHeadDim>(pass, tiles, stream);
  });
}

}  // namespace kvcache::cuda
