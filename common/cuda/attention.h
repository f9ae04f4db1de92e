/// @file
/// Causal attention of new tokens over stored keys and values on the GPU, wherever the rows lie: contiguous
/// (steps 1 and 2, and step 3 after a gather) or in blocks (steps 3 and 4). One kernel body serves both, so
/// all give the same bits. Chapter: step3_paged/README.md.
///
/// The rungs, each named like the file of its kernels, which a profiler shows under that name too:
///
/// 1. attention_plain: the formula. One warp per query head takes one position after the other.
///    Decodes at 47 GB/s, 1.5% of the rate of a read alone; prefills at 1.0 TFLOP/s.
/// 2. attention_tiles: tiles of keys go to shared memory and are read once for all query heads of a KV head;
///    several thread blocks share a long row. 1,210 GB/s, 38%; 22.5 TFLOP/s.
/// 3. attention_mma (attention_mma_decode, attention_mma_prefill), for f16 and bf16 with a head_dim of 64 or
///    128: products on tensor cores, and tiles asked for before they are needed. 2,804 GB/s, 88%; 234
///    TFLOP/s.
///
/// Decode is of 64 sequences of 4,096 tokens and prefill of one, with 16 query heads over 8 KV heads of 128,
/// bf16, blocks of 16 in random order, on an H100 (docs/results/2026-11-28-h100-cuda.md). This times them:
///
///     build/bin/bench_kernels --benchmark_filter='cuda/(decode|prefill)/.*/paged'
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/attention_shape.h"
#include "common/base/dtype.h"
#include "common/cuda/attention_work.h"
#include "common/cuda/device.h"
#include "common/cuda/memory.h"

namespace kvcache::cuda {

/// Which kernels run. All but `automatic` are for tests and benchmarks: the rungs above. Where a rung cannot
/// do what is asked, the one before it does.
enum class AttentionKernels : std::uint8_t {
  automatic,    ///< the fastest that can
  plain,        ///< the formula: one warp per query head
  tiles,        ///< tiles of keys in shared memory, read once for all query heads of a KV head
  tensor_cores  ///< f16 and bf16 with a head_dim of 64 or 128, from compute capability 8.0 on
};

/// The attention of a pass: made ready once per pass, run once per layer.
///
/// A row's bits depend on its q, on the K and V it sees and on whether its sequence has one row in the pass
/// (decode) or several (prefill); not on the other sequences, on where the slots lie, or on the layer. Slots
/// beyond a sequence's context are not read, nor are their entries of the block table. A later token of the
/// same sequence and pass has weight 0, which needs its V to be finite: scatter_kv sees to it.
///
/// Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao,
/// "FlashAttention-2" (2023); Kwon et al., "Efficient Memory Management for Large Language Model Serving with
/// PagedAttention" (2023); Dao et al., "Flash-Decoding for long-context inference" (2023) for the split over
/// positions.
class Attention {
 public:
  /// @throws InputError for a head_dim that is not a multiple of 8, or beyond kMostHeadDim.
  Attention(const Device& device, const AttentionShape& shape, DType dtype,
            AttentionKernels kernels = AttentionKernels::automatic);

  /// A pass starts: sequence s has the rows row_begin[s] to row_begin[s + 1] of q, which are the last
  /// positions of its context_len[s] tokens (PassPlan).
  void begin(std::span<const std::int32_t> row_begin, std::span<const std::int32_t> context_len);

  /// What the kernels of this pass are given beside the arguments of run(): equal numbers, equal work. Empty
  /// where a sequence has several rows: such passes seldom come twice.
  std::vector<std::int64_t> launch_key() const;

  /// out = softmax(q K^T / sqrt(head_dim)) V per query head, each row seeing the positions up to its own.
  /// @param q, out  [rows, heads, head_dim], rows `q_stride`, `out_stride` numbers apart. Unless they are
  /// aligned to 16 bytes and the strides are multiples of 8, the plain kernels run.
  void run(const KvRows& rows, const SlotMap& slots, const void* q, std::int64_t q_stride, void* out,
           std::int64_t out_stride);

 private:
  void list_work(AttentionKernels kernels);
  void reserve_parts(std::int64_t parts);

  AttentionShape shape_;
  DType dtype_;
  AttentionKernels kernels_;  ///< what runs, never `automatic`
  cudaStream_t stream_;

  std::vector<std::int32_t> row_begin_, context_len_;  ///< of the pass
  AttentionKernels listed_for_ = AttentionKernels::automatic;
  Upload<AttentionTile> decode_tiles_, prefill_tiles_;
  std::int64_t decode_count_ = 0, prefill_count_ = 0;

  // Results of rows whose positions several thread blocks share, until the last of them merges the parts.
  PartRoom part_room_;
  DeviceBuffer<float> part_sums_;        ///< [parts, kv_heads, part_queries, head_dim]
  DeviceBuffer<float2> part_softmax_;    ///< [parts, kv_heads, part_queries]
  DeviceBuffer<std::uint32_t> arrived_;  ///< [parts, kv_heads], all 0 between kernels
};

}  // namespace kvcache::cuda
