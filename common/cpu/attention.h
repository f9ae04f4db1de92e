/// @file
/// Causal attention of new tokens over stored keys and values on the CPU, wherever the rows lie. Two rungs:
///
/// 1. `attention_plain` (attention_plain.h): the formula as it is written, one number at a time, in double.
///    The tests hold the second rung against it.
/// 2. `attention` (here), which all steps run: vectors, all threads, K and V read once for the query heads
/// that share them, and a running softmax over chunks of 64 positions, whose memory does not grow with
/// the context.
///
/// `build/bin/bench_kernels --benchmark_filter='cpu/(decode|prefill)'` times the second.
///
/// Chapter: docs/transformer.md (the formula), step 1 (the running softmax), step 3 (reading through a block
/// table).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/attention_shape.h"
#include "common/base/dtype.h"
#include "common/base/thread_pool.h"

namespace kvcache::cpu {

/// Where the K and V rows of one layer lie. A slot holds one token: [kv_heads, head_dim] numbers of K and as
/// many of V.
struct KvRows {
  DType dtype = DType::f32;      ///< of the numbers of K and V
  const std::byte* k = nullptr;  ///< [slots, kv_heads, head_dim]
  const std::byte* v = nullptr;  ///< [slots, kv_heads, head_dim]
};

/// Which slot holds position p of a sequence: first slot + p, or looked up in a block table.
struct SlotMap {
  std::int64_t first = 0;  ///< contiguous: the slot of position 0
  const std::int32_t* blocks =
      nullptr;                  ///< paged: [ceil(context / block_size)] block ids; nullptr: contiguous
  std::int64_t block_size = 1;  ///< tokens per block; contiguous: not used

  /// first + position, or block_id * block_size + offset; in 64 bits.
  std::int64_t slot(std::int64_t position) const {
    if (blocks == nullptr) return first + position;
    return blocks[position / block_size] * block_size + position % block_size;
  }

  /// Calls `function(n, slot(position + n))` for each n in [0, count), with one division for all.
  template <typename Function>
  void each_slot(std::int64_t position, std::int64_t count, const Function& function) const {
    if (blocks == nullptr) {
      for (std::int64_t n = 0; n < count; ++n) function(n, first + position + n);
      return;
    }
    std::int64_t block = position / block_size, offset = position % block_size;
    for (std::int64_t n = 0; n < count; ++n) {
      function(n, blocks[block] * block_size + offset);
      if (++offset == block_size) ++block, offset = 0;
    }
  }
};

/// One sequence of a pass: its new tokens are the rows [row_begin, row_end) of q and the last positions of
/// its context.
struct AttentionSequence {
  std::int64_t row_begin = 0;  ///< its first row of q
  std::int64_t row_end = 0;    ///< one past its last
  std::int64_t context = 0;    ///< tokens stored, the new ones included
  SlotMap slots;               ///< where its positions are kept
};

/// out = softmax(q K^T / sqrt(head_dim)) V for each query head. Each new token sees the positions up to its
/// own.
/// @param q, out  [rows, heads, head_dim], rows `stride` floats apart; out is rounded to `store_as` when not
/// f32
///
/// Positions are taken in chunks of fixed size, counted from position 0, and the softmax parts of the chunks
/// are merged in order. So a row's bits depend only on its q and on the K and V that it sees. The other rows
/// of the pass, the places of the slots and the number of threads change nothing. Slots beyond a sequence's
/// context are never read. Where K and V and the activations are in bf16 and the processor multiplies bf16 in
/// pairs (lines.h), the softmax weights are rounded to bf16. Source: Milakov and Gimelshein, "Online
/// normalizer calculation for softmax" (2018); Dao et al., "FlashAttention" (2022).
void attention(const AttentionShape& shape, const KvRows& rows, std::span<const AttentionSequence> sequences,
               const float* q, float* out, std::int64_t stride, DType store_as, ThreadPool& pool);

}  // namespace kvcache::cpu
