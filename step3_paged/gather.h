/// @file
/// Attention with `--attention gather` on the CPU: the K and V rows of a sequence are gathered into one
/// contiguous buffer first. The counterpart, scatter_rows in common/cpu/scatter.h, writes rows to their
/// slots. Chapter: step3_paged/README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/cpu/attention.h"

namespace kvcache::cpu {

/// Copies the rows of the positions 0 to context - 1 from their slots to `to`, in order of position.
/// @param pool       [slots, row_bytes]
/// @param to         [context, row_bytes]
/// @param row_bytes  bytes of kv_heads * head_dim numbers
void gather_rows(const std::byte* pool, const SlotMap& slots, std::int64_t context, std::int64_t row_bytes,
                 std::byte* to);

/// Attends to contiguous copies of K and V, and counts the bytes that it copies.
class GatheredAttention {
 public:
  /// As `attention` (common/cpu/attention.h), one sequence after the other, with the same bits.
  void attend(const AttentionShape& shape, const KvRows& rows, std::span<const AttentionSequence> sequences,
              const float* q, float* out, std::int64_t stride, DType store_as, ThreadPool& threads);

  /// Bytes of K and V copied so far.
  std::int64_t copied_bytes() const { return copied_bytes_; }

 private:
  std::vector<std::byte> k_, v_;  // [context, kv_heads, head_dim] of one sequence and layer
  std::int64_t copied_bytes_ = 0;
};

}  // namespace kvcache::cpu
