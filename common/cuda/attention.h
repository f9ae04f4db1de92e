/// @file
/// Causal attention of new tokens over stored keys and values on the GPU, wherever the rows lie: contiguous
/// (steps 1 and 2, and step 3 after a gather) or in blocks (steps 3 and 4). One kernel body serves both, so
/// all give the same bits. Chapter: step3_paged/README.md.
#pragma once

#include <cstdint>
#include <span>

#include "common/cuda/device.h"
#include "common/cuda/memory.h"
#include "common/model/attention_shape.h"
#include "common/model/dtype.h"

namespace kvcache::cuda {

/// K and V of one layer on the GPU. A slot holds one token.
struct KvRows {
  const void* k = nullptr;  ///< [slots, kv_heads, head_dim]
  const void* v = nullptr;  ///< [slots, kv_heads, head_dim]
};

/// Which slot holds a position of a sequence, on the GPU. Passed to kernels by value.
struct SlotMap {
  const std::int64_t* first_slot = nullptr;   ///< [sequences] contiguous: the slot of position 0
  const std::int32_t* block_table = nullptr;  ///< [sequences, table_width]; nullptr: contiguous
  std::int32_t table_width = 0;
  std::int32_t block_size = 1;

#ifdef __CUDACC__
  /// first_slot + position, or block_id * block_size + offset; in 64 bits.
  __device__ std::int64_t slot(std::int64_t sequence, std::int32_t position) const {
    if (block_table == nullptr) return first_slot[sequence] + position;
    const std::int32_t block = block_table[sequence * table_width + position / block_size];
    return static_cast<std::int64_t>(block) * block_size + position % block_size;
  }
#endif
};

/// Which kernels run. All but `automatic` are for tests and benchmarks: the stages in which the fast kernels
/// came to be.
enum class AttentionKernels : std::uint8_t { automatic, plain, tiles, tensor_cores };

/// The attention of a pass: made ready once per pass, run once per layer.
class Attention {
 public:
  /// @throws InputError for a head_dim that is not a multiple of 8, or beyond 256.
  Attention(const Device& device, const AttentionShape& shape, DType dtype,
            AttentionKernels kernels = AttentionKernels::automatic);

  /// A pass starts: sequence s has the rows row_begin[s] to row_begin[s + 1] of q, which are the last
  /// positions of its context_len[s] tokens (PassPlan).
  void begin(std::span<const std::int32_t> row_begin, std::span<const std::int32_t> context_len);

  /// out = softmax(q K^T / sqrt(head_dim)) V per query head, each row seeing the positions up to its own.
  /// @param q, out  [rows, heads, head_dim], rows `q_stride`, `out_stride` numbers apart
  void run(const KvRows& rows, const SlotMap& slots, const void* q, std::int64_t q_stride, void* out,
           std::int64_t out_stride);
};

}  // namespace kvcache::cuda
