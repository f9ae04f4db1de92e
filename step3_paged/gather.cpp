/// @file
/// See gather.h.
#include "step3_paged/gather.h"

#include <algorithm>
#include <cstring>

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

}  // namespace kvcache::cpu
