/// @file
/// See gather.h.
#include "step3_paged/gather.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace kvcache::cpu {

void gather_rows(const std::byte* pool, const SlotMap& slots, std::int64_t context, std::int64_t row_bytes,
                 std::byte* to) {
  // One copy moves the rows of a block, which lie together; of the last block it moves the filled rows.
  for (std::int64_t position = 0; position < context; position += slots.block_size) {
    const std::int64_t rows = std::min(slots.block_size, context - position);
    std::memcpy(to + position * row_bytes, pool + slots.slot(position) * row_bytes,
                static_cast<std::size_t>(rows * row_bytes));
  }
}

void GatheredAttention::attend(const AttentionShape& shape, const KvRows& rows,
                               std::span<const AttentionSequence> sequences, const float* q, float* out,
                               std::int64_t stride, DType store_as, ThreadPool& threads) {
  const std::int64_t row_bytes = shape.kv_heads * shape.head_dim * size_of(rows.dtype);
  for (const AttentionSequence& scattered : sequences) {
    const std::int64_t bytes = scattered.context * row_bytes;
    if (std::ssize(k_) < bytes) {
      // Half more, so that buffers of a growing context seldom grow.
      k_.resize(static_cast<std::size_t>(bytes * 3 / 2));
      v_.resize(static_cast<std::size_t>(bytes * 3 / 2));
    }
    gather_rows(rows.k, scattered.slots, scattered.context, row_bytes, k_.data());
    gather_rows(rows.v, scattered.slots, scattered.context, row_bytes, v_.data());
    copied_bytes_ += 2 * bytes;
    AttentionSequence contiguous = scattered;
    contiguous.slots = {};  // from row 0 of the copy
    attention(shape, {rows.dtype, k_.data(), v_.data()}, {&contiguous, 1}, q, out, stride, store_as, threads);
  }
}

}  // namespace kvcache::cpu
