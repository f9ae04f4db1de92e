/// @file
/// Causal attention of new tokens over stored keys and values on the GPU. K and V lie in one piece (steps 1
/// and 2, and step 3 after a gather) or in blocks (steps 3 and 4). The same kernels read both, so both give
/// the same bits. Chapter: step3_paged/README.md.
///
/// Three rungs. Each has a file of its name, and a profiler shows its kernels by that name:
///
/// 1. attention_plain: the formula. One warp per query head takes one position after the other. Decode 47
///    GB/s, prefill 1.0 TFLOP/s.
/// 2. attention_tiles: tiles of keys in shared memory, read once for all query heads of a KV head. Decode
///    1,210 GB/s, prefill 22.5 TFLOP/s.
/// 3. attention_mma (attention_mma_decode, attention_mma_prefill), for f16 and bf16 with a head_dim of 64 or
///    128: tensor cores, and tiles copied ahead. Decode 2,804 GB/s, prefill 234 TFLOP/s.
///
/// A read alone reaches 3,183 GB/s. Measured: decode of 64 sequences of 4,096 tokens and prefill of one, 16
/// query heads over 8 KV heads of 128, bf16, blocks of 16 in random order, on an H100
/// (docs/results/2026-11-28-h100-cuda.md). This times them:
///
///     build/bin/bench_kernels --benchmark_filter='cuda/(decode|prefill)/.*/paged'
///
/// Rungs 2 and 3 cut the long row of a decoding sequence, so that several thread blocks share it:
///
/// 1. The host cuts: `split_length` (attention_work.h) says how many positions a part has, and
///    `add_decode_tiles` (attention.cpp) lists the parts.
/// 2. `attention_tiles` or `attention_mma_decode` computes a part: one thread block per part and KV head.
/// 3. The thread block that finishes last merges all parts (`merge_parts` in attention_merge.cuh).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/attention_shape.h"
#include "common/base/dtype.h"
#include "common/base/matrix.h"
#include "common/cuda/attention_work.h"
#include "common/cuda/device.h"
#include "common/cuda/memory.h"

namespace kvcache::cuda {

/// Which rung runs. Programs take `automatic`; tests and benchmarks name a rung. If that rung lacks a kernel
/// for the number type, head_dim or GPU, the rung before it runs.
enum class AttentionKernels : std::uint8_t {
  automatic,    ///< the fastest rung that has a kernel
  plain,        ///< the formula: one warp per query head
  tiles,        ///< tiles of keys in shared memory, read once for all query heads of a KV head
  tensor_cores  ///< f16 and bf16 with a head_dim of 64 or 128, from compute capability 8.0 on
};

/// The attention of a pass: made ready once per pass, run once per layer.
///
/// A row's bits depend on its q, on the K and V it sees, and on whether its sequence has one row in the pass
/// (decode) or several (prefill). Other sequences, the places of the slots and the layer change nothing.
/// Slots beyond a sequence's context are not read, nor are their entries of the block table. In a prefill a
/// later token of the same sequence has weight 0, which needs a finite V: scatter_kv stores none other.
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

  /// A pass starts. The rows row_begin[s] to row_begin[s + 1] of q are the last positions of the
  /// context_len[s] tokens of sequence s, as in PassPlan.
  void begin(std::span<const std::int32_t> row_begin, std::span<const std::int32_t> context_len);

  /// Two passes with equal keys start the same kernels with the same arguments, if run() has equal arguments
  /// too. Empty where a sequence has several rows: such passes seldom come twice.
  std::vector<std::int64_t> launch_key() const;

  /// out = softmax(q K^T / sqrt(head_dim)) V per query head, each row seeing the positions up to its own.
  /// @param q, out  [rows, heads, head_dim], rows `q_stride`, `out_stride` numbers apart. If an address is
  /// not a multiple of 16 bytes, or a stride not of 8 numbers, the plain rung runs.
  void run(const KvRows& rows, const SlotMap& slots, const void* q, std::int64_t q_stride, void* out,
           std::int64_t out_stride);

  /// Makes heads ready and stores k and v as `rotate_and_store` does, then attends as `run` does. In a pass
  /// of decode rows alone, the third rung does both in one kernel; the bits are the same.
  /// @param slots_of_rows  [tokens] on the GPU, where `slots` finds the rows' own positions
  /// @param k, v           of the layer, as KvRows
  void store_and_run(const HeadSettings& heads, const NewRows& rows, const std::int64_t* slots_of_rows,
                     void* k, void* v, const SlotMap& slots, Matrix& out);
  /// The next store_and_run reads no K and V before all work that is in the stream now is done: other work
  /// than an earlier pass's has written them.
  void next_waits() { next_waits_ = true; }

 private:
  void start(AttentionPass& pass, AttentionKernels kernels);
  void list_work(AttentionKernels kernels);
  void reserve_parts(std::int64_t parts);

  AttentionShape shape_;
  DType dtype_;
  AttentionKernels kernels_;  ///< the rung that runs, never `automatic`
  cudaStream_t stream_;
  bool next_waits_ = false;

  std::vector<std::int32_t> row_begin_, context_len_;  ///< of the pass
  AttentionKernels listed_for_ = AttentionKernels::automatic;
  Upload<AttentionTile> decode_tiles_, prefill_tiles_;
  std::int64_t decode_count_ = 0, prefill_count_ = 0;
  std::int32_t longest_prefill_ = 0;  ///< positions of the prefill tile that has the most
  bool has_long_parts_ = false;       ///< a part of a decode tile has several spans

  // What the parts of long rows have computed, until the last thread block merges them.
  PartRoom part_room_;
  DeviceBuffer<float> part_sums_;        ///< [parts, kv_heads, part_queries, head_dim]
  DeviceBuffer<float2> part_softmax_;    ///< [parts, kv_heads, part_queries]
  DeviceBuffer<std::uint32_t> arrived_;  ///< [parts, kv_heads], all 0 between kernels
};

}  // namespace kvcache::cuda
