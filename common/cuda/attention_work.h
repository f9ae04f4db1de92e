/// @file
/// What the host and the attention kernels agree on: how a pass is cut into tiles for thread blocks
/// (`AttentionTile`), long rows into parts (`split_length`), and the arguments of a kernel (`AttentionPass`).
/// Chapter: step3_paged/README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "common/base/attention_shape.h"
#include "common/base/dtype.h"
#include "common/base/matrix.h"

namespace kvcache::cuda {

/// K and V of one layer on the GPU. A slot holds one token.
struct KvRows {
  const void* k = nullptr;  ///< [slots, kv_heads, head_dim], aligned to 16 bytes
  const void* v = nullptr;  ///< [slots, kv_heads, head_dim], aligned to 16 bytes
};

/// Which slot holds a position of a sequence, on the GPU. Passed to kernels by value.
struct SlotMap {
  const std::int64_t* first_slot = nullptr;   ///< [sequences] contiguous: the slot of position 0
  const std::int32_t* block_table = nullptr;  ///< [sequences, table_width]; nullptr: contiguous
  std::int32_t table_width = 0;               ///< blocks per row of the table
  std::int32_t block_size = 1;                ///< tokens per block

#ifdef __CUDACC__
  /// first_slot + position, or block_id * block_size + offset; in 64 bits.
  __device__ std::int64_t slot(std::int64_t sequence, std::int32_t position) const {
    if (block_table == nullptr) return first_slot[sequence] + position;
    const std::int32_t block = block_table[sequence * table_width + position / block_size];
    return static_cast<std::int64_t>(block) * block_size + position % block_size;
  }
#endif
};

/// The work of one thread block for one KV head: some queries of one sequence, over some of its positions.
///
/// A query is one query head of one row. The queries of a sequence that read the same KV head are numbered
/// row by row: query n is head n % group of the group, in the sequence's row n / group. So all queries of a
/// tile read the same K and V rows.
struct AttentionTile {
  std::int32_t sequence = 0;     ///< of the pass
  std::int32_t row = -1;         ///< of q, the first of the sequence; -1: padding, nothing to do
  std::int32_t visible = 0;      ///< positions that this row sees; the next row sees one more
  std::int32_t first_query = 0;  ///< of the tile
  std::int32_t queries = 0;      ///< of the tile, at least 1
  std::int32_t begin = 0;        ///< the tile's positions are [begin, end), never empty
  std::int32_t end = 0;          ///< no query of the tile sees a position from here on
  std::int32_t part = 0;         ///< these positions are part number `part` ...
  std::int32_t parts = 1;        ///< ... of so many, of the same queries
  std::int32_t first_part = 0;   ///< where part 0 is kept, if there are several
};

/// The largest head_dim that the kernels take: a thread holds its share of a head in registers.
constexpr std::int32_t kMostHeadDim = 256;

/// The most queries of a tile: the 16 rows of a tensor-core matrix ...
constexpr std::int32_t kTileQueries = 16;
/// ... and in prefill on tensor cores four times as many.
constexpr std::int32_t kTensorCorePrefillQueries = 4 * kTileQueries;

/// Positions of a span. Spans begin at multiples of it, counted from position 0, and a part is one or
/// several. So few that a few sequences keep the GPU busy: one of 4,096 tokens with 8 KV heads has 16 parts,
/// so 128 thread blocks. On tensor cores each span is computed by itself, and spans are added in order. So
/// rows that share a prefix have equal spans inside it, whatever their lengths.
constexpr std::int32_t kSpan = 256;

/// Positions per part of a decoding row that sees `context` positions: one span, and beyond 16,384 positions
/// so many that there are at most 64 parts, since merging more would cost more than they gain. It depends on
/// the row's own length alone, so the row's bits do not depend on the batch.
constexpr std::int32_t split_length(std::int32_t context) {
  constexpr std::int32_t kMostParts = 64;
  const std::int32_t spans = (context - 1) / kSpan + 1;
  return ((spans - 1) / kMostParts + 1) * kSpan;
}

/// Memory that Attention reserves for the parts of long rows.
struct PartRoom {
  std::int64_t parts = 0;    ///< room for so many parts
  std::int64_t queries = 0;  ///< per part and KV head: as many as the largest decode tile has
  std::int64_t sums = 0;     ///< numbers in AttentionPass::part_sums
  std::int64_t softmax = 0;  ///< pairs in AttentionPass::part_softmax
  std::int64_t arrived = 0;  ///< counters in AttentionPass::arrived

  /// Room for twice the parts of a pass, so that it seldom grows: to grow, Attention waits for the GPU.
  static constexpr PartRoom of(const AttentionShape& shape, std::int64_t parts) {
    PartRoom room;
    room.parts = 2 * parts;
    room.queries = std::min<std::int64_t>(kTileQueries, shape.heads / shape.kv_heads);
    room.arrived = room.parts * shape.kv_heads;
    room.softmax = room.arrived * room.queries;
    room.sums = room.softmax * shape.head_dim;
    return room;
  }

  /// The most room that passes of `sequences` sequences with `tokens` tokens in all ever need.
  static constexpr PartRoom at_most(const AttentionShape& shape, std::int64_t tokens,
                                    std::int64_t sequences) {
    const std::int64_t tiles = (shape.heads / shape.kv_heads + kTileQueries - 1) / kTileQueries;  // of a row
    return of(shape, tiles * (tokens / kSpan + sequences));
  }

  /// Bytes of the GPU's memory.
  constexpr std::int64_t bytes() const {
    return sums * static_cast<std::int64_t>(sizeof(float)) +
           softmax * static_cast<std::int64_t>(sizeof(float2)) +
           arrived * static_cast<std::int64_t>(sizeof(std::uint32_t));
  }
};

/// The pass's own rows of k and v, as their projections give them, for a kernel that makes them and q ready
/// itself: it normalises and rotates the heads, and stores k and v.
struct NewHeads {
  const void* k = nullptr;              ///< [rows, kv_heads, head_dim]; nullptr: k and v are stored already
  std::int64_t k_stride = 0;            ///< numbers
  const void* v = nullptr;              ///< as k
  std::int64_t v_stride = 0;            ///< numbers
  const void* q_norm = nullptr;         ///< [head_dim]; nullptr: none
  const void* k_norm = nullptr;         ///< as q_norm
  float q_eps = 0;                      ///< of the norm
  float k_eps = 0;                      ///< of the norm
  Rotation rotation;                    ///< of the rows of q and k
  const std::int64_t* slots = nullptr;  ///< [rows] where k and v go; -1: nowhere
  void* k_store = nullptr;              ///< AttentionPass::rows.k, to be written
  void* v_store = nullptr;              ///< AttentionPass::rows.v, to be written
  bool early = true;                    ///< the kernel may start while the one that computes q, k and v runs
};

/// The arguments of every attention kernel, passed by value.
struct AttentionPass {
  const AttentionTile* tiles = nullptr;  ///< [tiles]; block b takes tile b / kv_heads, KV head b % kv_heads
  KvRows rows;                           ///< K and V of the layer
  NewHeads fresh;                        ///< what is not in `rows` yet, for decode on tensor cores
  SlotMap slots;                         ///< which slot holds a position
  const void* q = nullptr;               ///< [rows, heads, head_dim]
  std::int64_t q_stride = 0;             ///< numbers
  void* out = nullptr;                   ///< [rows, heads, head_dim]
  std::int64_t out_stride = 0;           ///< numbers
  std::int32_t kv_heads = 0;             ///< of the layer
  std::int32_t group = 0;                ///< query heads per KV head
  std::int32_t head_dim = 0;             ///< numbers per head
  std::int32_t part_queries = 0;         ///< room per part: as many as the largest decode tile has
  bool has_long_parts = false;           ///< a part of a decode tile has several spans
  std::int32_t longest = 0;              ///< positions of the prefill tile that has the most
  std::int32_t warp_parts = 0;           ///< where WarpParts begins in shared memory, in bytes
  float scale = 0;                       ///< log2(e) / sqrt(head_dim): the softmax is taken in powers of two
  float* part_sums = nullptr;            ///< [parts, kv_heads, part_queries, head_dim]
  float2* part_softmax = nullptr;        ///< [parts, kv_heads, part_queries] largest score, sum of weights
  std::uint32_t* arrived = nullptr;      ///< [parts, kv_heads] at a row's first part: parts that are done
};

/// Runs `tiles` tiles of `pass` for all KV heads in `stream`, in numbers of type `dtype`.
using AttentionLaunch = void (*)(DType dtype, const AttentionPass& pass, std::int64_t tiles,
                                 cudaStream_t stream);
/// First rung (attention_plain.cu): the formula, for every dtype and head_dim.
void attend_plain(DType dtype, const AttentionPass& pass, std::int64_t tiles, cudaStream_t stream);
/// Second rung (attention_tiles.cu): K and V in shared memory, for every dtype and head_dim.
void attend_in_tiles(DType dtype, const AttentionPass& pass, std::int64_t tiles, cudaStream_t stream);
/// Third rung (attention_mma_decode.cu) for decode, sequences with one row: f16 and bf16, head_dim 64 and
/// 128.
void decode_on_tensor_cores(DType dtype, const AttentionPass& pass, std::int64_t tiles, cudaStream_t stream);
/// Third rung (attention_mma_prefill.cu) for prefill, sequences with several rows: the same types and sizes.
void prefill_on_tensor_cores(DType dtype, const AttentionPass& pass, std::int64_t tiles, cudaStream_t stream);
/// Whether this build has tensor-core kernels for this GPU. A build for compute capability 7.5 alone runs on
/// newer GPUs, without them.
bool tensor_core_kernels_are_built();

}  // namespace kvcache::cuda
