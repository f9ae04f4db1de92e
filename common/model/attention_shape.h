/// @file
/// The sizes that attention works with. Chapter: step 1.
#pragma once

#include <cstdint>

namespace kvcache {

/// Query head h reads KV head h / (heads / kv_heads): grouped-query attention.
struct AttentionShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
};

}  // namespace kvcache
