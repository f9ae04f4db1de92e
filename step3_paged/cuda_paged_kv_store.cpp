/// @file
/// See cuda_paged_kv_store.h.
#include "step3_paged/cuda_paged_kv_store.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "common/base/stored_number.h"
#include "common/cuda/rotate_and_store.h"
#include "step3_paged/decode_slots.h"
#include "step3_paged/fill_block.h"

namespace kvcache {

namespace {

std::int64_t max_pitch() {
  int bytes = 0;
  cuda::check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxPitch, 0), "asking for the GPU's properties");
  return bytes;
}

}  // namespace

CudaPagedKvStore::CudaPagedKvStore(const ModelConfig& config, const PagedShape& shape, DType dtype,
                                   Settings settings, const cuda::Device& device)
    : config_(config),
      shape_(shape),
      dtype_(dtype),
      settings_(settings),
      device_(device),
      max_pitch_(max_pitch()),
      row_bytes_(config.kv_width() * size_of(dtype)),
      block_bytes_(shape.block_size * row_bytes_),
      layer_bytes_(shape.blocks * block_bytes_),
      k_(config.layers * layer_bytes_, "the pool's K"),
      v_(config.layers * layer_bytes_, "the pool's V"),
      attention_(device, {config.heads, config.kv_heads, config.head_dim}, dtype) {}

std::int64_t CudaPagedKvStore::most_bytes_of_attention(const ModelConfig& config, DType dtype,
                                                       AttentionPath path, std::int64_t tokens,
                                                       std::int64_t sequences) {
  const AttentionShape shape{config.heads, config.kv_heads, config.head_dim};
  const std::int64_t parts = cuda::PartRoom::at_most(shape, tokens, sequences).bytes();
  if (path == AttentionPath::paged) return parts;
  const std::int64_t layer_bytes = tokens * config.kv_bytes_per_token(size_of(dtype)) / config.layers;
  return parts + cuda::DeviceBuffer<std::byte>::most_room(layer_bytes);
}

void CudaPagedKvStore::begin(const PassPlan& plan) {
  prepare_blocks(plan, device_.stream());
  send(plan);
}

void CudaPagedKvStore::prepare_blocks(const PassPlan& plan, cudaStream_t stream) {
  if (settings_.fill != DebugFill::none) {
    for (const std::int32_t block : plan.fresh_blocks) fill(block, stream);
  }
  for (const BlockCopy& blocks : plan.copies) copy(blocks, stream);
}

void CudaPagedKvStore::send(const PassPlan& plan) {
  paged_ = {.block_table = block_table_(plan.block_table, device_.stream()),
            .table_width = plan.table_width,
            .block_size = static_cast<std::int32_t>(shape_.block_size)};
  slots_ = slot_mapping(plan);
  if (settings_.attention == AttentionPath::gather) make_room_to_gather(plan);
  attention_.begin(plan.row_begin, plan.context_len);
}

/// A decode pass computes its slots on the GPU, from the block table and the contexts; a prefill's slots are
/// sent. The plan holds both, because the CPU's store reads them there.
const std::int64_t* CudaPagedKvStore::slot_mapping(const PassPlan& plan) {
  const auto sequences = std::ssize(plan.sequences);
  const bool decode = plan.row_begin.back() == sequences;
  if (!decode) return prefill_slots_(plan.slots, device_.stream());
  decode_slots_.reserve(plan.tokens(), "the slots of a pass");
  cuda::decode_slots(paged_, context_len_(plan.context_len, device_.stream()), sequences, plan.tokens(),
                     decode_slots_.data(), device_.stream());
  return decode_slots_.data();
}

void CudaPagedKvStore::make_room_to_gather(const PassPlan& plan) {
  std::vector<std::int64_t> first_slots{0};
  for (const std::int32_t context : plan.context_len) first_slots.push_back(first_slots.back() + context);
  const std::int64_t rows = first_slots.back();
  gathered_k_.reserve(rows * row_bytes_, "gathered K");
  gathered_v_.reserve(rows * row_bytes_, "gathered V");
  gathered_ = {.k = gathered_k_.data(),
               .v = gathered_v_.data(),
               .first_slot = first_slots_(first_slots, device_.stream()),
               .sequences = std::ssize(plan.sequences),
               .rows = rows};
}

std::vector<std::int64_t> CudaPagedKvStore::launch_key() const {
  std::vector<std::int64_t> key = attention_.launch_key();
  if (key.empty() || settings_.attention == AttentionPath::gather) return {};  // the copies grow
  key.push_back(paged_.table_width);
  key.push_back(reinterpret_cast<std::intptr_t>(k_.data()));  // another store has another pool
  return key;
}

void CudaPagedKvStore::store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                                        Matrix& out) {
  std::byte* const k = k_layer(layer);
  std::byte* const v = v_layer(layer);
  if (settings_.attention == AttentionPath::paged) {
    attention_.store_and_run(heads, rows, slots_, k, v, paged_, out);
    return;
  }
  cuda::rotate_and_store(dtype_, heads, config_.head_dim, rows, slots_, k, v, device_.stream());
  cuda::gather_kv(dtype_, {k, v}, paged_, config_.kv_width(), gathered_, device_.stream());
  gathered_bytes_ += 2 * gathered_.rows * row_bytes_;
  attention_.run({gathered_.k, gathered_.v}, {.first_slot = gathered_.first_slot}, rows.q.data, rows.q.stride,
                 out.data, out.stride);
}

void CudaPagedKvStore::copy(const BlockCopy& blocks, cudaStream_t stream) {
  copy_layers(k_block(0, blocks.to), layer_bytes_, k_block(0, blocks.from), layer_bytes_, stream);
  copy_layers(v_block(0, blocks.to), layer_bytes_, v_block(0, blocks.from), layer_bytes_, stream);
}

void CudaPagedKvStore::copy_layers(std::byte* to, std::int64_t to_distance, const std::byte* from,
                                   std::int64_t from_distance, cudaStream_t stream) const {
  const auto bytes = static_cast<std::size_t>(block_bytes_);
  if (std::max(to_distance, from_distance) <= max_pitch_) {
    cuda::check(cudaMemcpy2DAsync(to, static_cast<std::size_t>(to_distance), from,
                                  static_cast<std::size_t>(from_distance), bytes,
                                  static_cast<std::size_t>(layers()), cudaMemcpyDefault, stream),
                "copying a block");
    return;
  }
  // The layers of a large pool lie 2 GiB or more apart, further than one call can step.
  for (std::int64_t layer = 0; layer < layers(); ++layer) {
    cuda::check(cudaMemcpyAsync(to + layer * to_distance, from + layer * from_distance, bytes,
                                cudaMemcpyDefault, stream),
                "copying a block");
  }
}

void CudaPagedKvStore::fill(std::int32_t block, cudaStream_t stream) {
  std::byte number[sizeof(std::uint32_t)] = {};
  write_number(dtype_, number_of(settings_.fill), number);
  std::uint32_t bits = 0;
  std::memcpy(&bits, number, sizeof bits);
  for (std::byte* first : {k_block(0, block), v_block(0, block)}) {
    cuda::fill_block(dtype_, bits, first, block_bytes_ / size_of(dtype_), layers(),
                     layer_bytes_ / size_of(dtype_), stream);
  }
}

}  // namespace kvcache
