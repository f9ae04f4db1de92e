/// @file
/// See tiered_kv_store.h.
#include "step4_prefix_cache/tiered_kv_store.h"

#define XXH_STATIC_LINKING_ONLY  // the streaming state on the stack
#include <xxhash.h>

#include <cstring>

namespace kvcache {

TieredKvStore::TieredKvStore(const ModelConfig& config, const PagedShape& shape, std::int64_t host_blocks,
                             DType dtype, Settings settings, ThreadPool& threads)
    : PagedKvStore(config, shape, dtype, settings, threads),
      host_(host_blocks * layers() * 2 * block_bytes()) {}

void TieredKvStore::begin(const PassPlan& plan) {
  const auto bytes = static_cast<std::size_t>(block_bytes());
  // Out before in: a block that comes in may take the place of one that goes out.
  for (const BlockCopy& move : plan.swaps_out) {
    for (std::int64_t layer = 0; layer < layers(); ++layer) {
      std::memcpy(host(move.to, layer), k_block(layer, move.from), bytes);
      std::memcpy(host(move.to, layer) + bytes, v_block(layer, move.from), bytes);
    }
  }
  for (const BlockCopy& move : plan.swaps_in) {
    for (std::int64_t layer = 0; layer < layers(); ++layer) {
      std::memcpy(k_block(layer, move.to), host(move.from, layer), bytes);
      std::memcpy(v_block(layer, move.to), host(move.from, layer) + bytes, bytes);
    }
  }
  PagedKvStore::begin(plan);
}

std::uint64_t TieredKvStore::checksum_of_block(std::int32_t block) {
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  for (std::int64_t layer = 0; layer < layers(); ++layer) {
    XXH64_update(&state, k_block(layer, block), static_cast<std::size_t>(block_bytes()));
    XXH64_update(&state, v_block(layer, block), static_cast<std::size_t>(block_bytes()));
  }
  return XXH64_digest(&state);
}

std::uint64_t TieredKvStore::checksum_of_host_block(std::int32_t host_block) const {
  return XXH64(host(host_block, 0), static_cast<std::size_t>(layers() * 2 * block_bytes()), 0);
}

}  // namespace kvcache
