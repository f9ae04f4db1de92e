/// @file
/// See columns.h.
#include "step4_prefix_cache/replay/columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/error.h"
#include "common/cli/option_values.h"
#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {

EngineParts Column::make_engine(const ReplayOptions& options) const {
  const std::int64_t bytes_per_token = options.bytes_per_token();
  if (step == Step::flat_cache)
    return {std::make_unique<FlatCacheManager>(FlatCacheShape{reservations, max_seq_len, bytes_per_token})};
  const PagedShape shape{blocks, options.block_size, bytes_per_token};
  if (step == Step::paged) return {std::make_unique<PagedManager>(shape)};
  auto manager = std::make_unique<PrefixCachingManager>(shape, SharingSettings{.host_blocks = host_blocks});
  const PrefixCachingManager& cache = *manager;
  return {std::move(manager), [&cache](std::span<const std::int32_t> ids) { return cache.peek(ids); }};
}

std::vector<Column> columns_of(const ReplayOptions& options, const Traffic& traffic,
                               std::int64_t pool_bytes) {
  const std::int64_t block_bytes = options.block_size * options.bytes_per_token();
  const std::int64_t blocks = pool_bytes / block_bytes, host_blocks = options.host_memory / block_bytes;
  if (const std::int64_t most = std::max(blocks, host_blocks); most > largest_count)
    throw InputError(
        fmt::format("a pool of {} blocks is more than ids of 32 bits can name; give less memory or "
                    "a larger --block-size",
                    most));
  std::int64_t longest = 0;
  for (const TrafficRequest& request : traffic.requests)
    longest = std::max(longest, request.tokens_to_store());
  const std::int64_t max_seq_len = options.max_seq_len.value_or(longest);
  // More reservations than sequences can run would only be memory that nobody uses.
  const std::int64_t reservations =
      std::min(pool_bytes / options.bytes_per_token() / max_seq_len, options.max_sequences);
  return {{.step = Step::flat_cache, .reservations = reservations, .max_seq_len = max_seq_len},
          {.step = Step::paged, .blocks = blocks},
          {.step = Step::prefix_cache, .blocks = blocks, .host_blocks = host_blocks}};
}

}  // namespace kvcache
