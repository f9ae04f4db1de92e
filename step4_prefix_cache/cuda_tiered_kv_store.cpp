/// @file
/// See cuda_tiered_kv_store.h.
#include "step4_prefix_cache/cuda_tiered_kv_store.h"

#include <xxhash.h>

#include <vector>

namespace kvcache {

CudaTieredKvStore::CudaTieredKvStore(const ModelConfig& config, const PagedShape& shape,
                                     std::int64_t host_blocks, DType dtype, Settings settings,
                                     const cuda::Device& device)
    : CudaPagedKvStore(config, shape, dtype, settings, device),
      host_(host_blocks * layers() * 2 * block_bytes(), "the host tier") {}

CudaTieredKvStore::~CudaTieredKvStore() {
  cudaStreamSynchronize(moves_.get());  // they use memory that goes now
}

void CudaTieredKvStore::begin(const PassPlan& plan) {
  if (!plan.swaps_out.empty() || !plan.swaps_in.empty() || prepares_blocks(plan)) {
    cuda::wait_for(moves_.get(), device().stream(), order_.get());
    // Out before in: a block that comes in may take the place of one that goes out.
    for (const BlockCopy& move : plan.swaps_out) move_out(move);
    for (const BlockCopy& move : plan.swaps_in) move_in(move);
    prepare_blocks(plan, moves_.get());
    moves_pending_ = true;
  }
  send(plan);
}

std::vector<std::int64_t> CudaTieredKvStore::launch_key() const {
  if (moves_pending_) return {};  // the first write waits for them
  return CudaPagedKvStore::launch_key();
}

void CudaTieredKvStore::store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                                         Matrix& out) {
  if (moves_pending_) {
    cuda::wait_for(device().stream(), moves_.get(), order_.get());
    blocks_have_moved();
    moves_pending_ = false;
  }
  CudaPagedKvStore::store_and_attend(layer, heads, rows, out);
}

void CudaTieredKvStore::move_out(const BlockCopy& move) {
  std::byte* host_block = host(move.to);
  copy_layers(host_block, 2 * block_bytes(), k_block(0, move.from), layer_bytes(), moves_.get());
  copy_layers(host_block + block_bytes(), 2 * block_bytes(), v_block(0, move.from), layer_bytes(),
              moves_.get());
}

void CudaTieredKvStore::move_in(const BlockCopy& move) {
  const std::byte* host_block = host(move.from);
  copy_layers(k_block(0, move.to), layer_bytes(), host_block, 2 * block_bytes(), moves_.get());
  copy_layers(v_block(0, move.to), layer_bytes(), host_block + block_bytes(), 2 * block_bytes(),
              moves_.get());
}

std::uint64_t CudaTieredKvStore::checksum_of_block(std::int32_t block) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(layers() * 2 * block_bytes()));  // as a host block
  cuda::wait_for(moves_.get(), device().stream(), order_.get());
  copy_layers(bytes.data(), 2 * block_bytes(), k_block(0, block), layer_bytes(), moves_.get());
  copy_layers(bytes.data() + block_bytes(), 2 * block_bytes(), v_block(0, block), layer_bytes(),
              moves_.get());
  cuda::check(cudaStreamSynchronize(moves_.get()), "waiting for the GPU");
  return XXH64(bytes.data(), bytes.size(), 0);
}

std::uint64_t CudaTieredKvStore::checksum_of_host_block(std::int32_t host_block) const {
  cuda::check(cudaStreamSynchronize(moves_.get()), "waiting for the GPU");
  return XXH64(host(host_block), static_cast<std::size_t>(layers() * 2 * block_bytes()), 0);
}

}  // namespace kvcache
