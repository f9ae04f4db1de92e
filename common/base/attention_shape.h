/// @file
/// The sizes that attention works with. Chapter: step 1.
#pragma once

#include <cstdint>

namespace kvcache {

/// Query head h reads KV head h / (heads / kv_heads): grouped-query attention.
struct AttentionShape {
  std::int64_t heads = 0;     ///< query heads
  std::int64_t kv_heads = 0;  ///< divides heads
  std::int64_t head_dim = 0;  ///< numbers per head
};

}  // namespace kvcache
