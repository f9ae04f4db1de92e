/// @file
/// See make_cache.h.
#include "step4_prefix_cache/make_cache.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "common/base/error.h"
#include "fmt/format.h"
#include "step3_paged/sizing.h"
#include "step4_prefix_cache/pinned_prefix.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "step4_prefix_cache/tiered_kv_store.h"
#ifdef WITH_CUDA
#include "step4_prefix_cache/cuda_tiered_kv_store.h"
#endif

namespace kvcache {
namespace {

/// A pinned prefix never leaves the pool, so every prompt must fit beside it, and in a server a prompt of one
/// token.
/// @throws InputError with the numbers, for one that does not.
void check_beside_prefix(const Program& program, const PagedShape& shape) {
  const std::vector<std::int32_t>& prefix = program.pinned_prefix;
  const std::int64_t pinned = shape.blocks_for(static_cast<std::int64_t>(prefix.size()));
  for (std::size_t n = 0; n < program.requests.size(); ++n) {
    const std::vector<std::int32_t>& ids = program.requests[n].prompt_ids;
    const std::int64_t shared =
        shared_with_prefix(ids, prefix, shape.block_size, program.options.prefix_cache);
    const std::int64_t own = shape.blocks_for(std::ssize(ids)) - shared;
    if (pinned + own <= shape.blocks) continue;
    throw InputError(
        fmt::format("{} needs {} {} beside the {} of the system prompt, and the pool has {}; "
                    "raise --num-blocks or --kv-memory",
                    name_of_request(program, n), own, own == 1 ? "block" : "blocks", pinned, shape.blocks));
  }
}

std::unique_ptr<KvStore> make_store(const Program& program, const PagedShape& shape) {
  const Options& options = program.options;
  const PagedKvStore::Settings settings{options.attention, options.debug_fill};
#ifdef WITH_CUDA
  if (program.gpu)
    return std::make_unique<CudaTieredKvStore>(program.model->config(), shape, options.host_blocks,
                                               program.dtype, settings, *program.gpu);
#endif
  return std::make_unique<TieredKvStore>(program.model->config(), shape, options.host_blocks, program.dtype,
                                         settings, *program.threads);
}

}  // namespace

Cache make_prefix_cache(const Program& program) {
  const Options& options = program.options;
  const PagedShape shape = paged_shape(program);
  check_host_tier(options.host_blocks, shape);
  const SharingSettings sharing{options.prefix_cache, options.salt, options.host_blocks,
                                options.debug_hash_bits};
  auto manager = std::make_unique<PrefixCachingManager>(shape, sharing);
  check_capacity(program, *manager, "raise --num-blocks or --kv-memory");
  check_beside_prefix(program, shape);
  return {std::move(manager), make_store(program, shape)};
}

}  // namespace kvcache
