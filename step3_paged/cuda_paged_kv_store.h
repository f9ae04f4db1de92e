/// @file
/// The K and V of a paged cache on a GPU: PagedKvStore (paged_kv_store.h) with kernels. Chapter:
/// step3_paged/README.md.
///
/// `begin` sends a pass's slots and block tables once; then each layer queues its kernels: it rotates and
/// scatters (common/cuda/rotate_and_store.h) and attends (common/cuda/attention.h), with `--attention gather`
/// after a gather (cuda_gather.h).
#pragma once

#include <cstddef>
#include <vector>

#include "common/cuda/attention.h"
#include "common/cuda/memory.h"
#include "common/kv/kv_store.h"
#include "common/model/config.h"
#include "step3_paged/cuda_gather.h"
#include "step3_paged/paged_kv_store.h"
#include "step3_paged/paged_shape.h"

namespace kvcache {

/// As PagedKvStore: a pool of blocks, layer-major, K and V each [layers, blocks, block_size, kv_heads,
/// head_dim]. Work is queued in the device's stream; the host does not wait for it.
class CudaPagedKvStore : public KvStore {
 public:
  /// Those of the CPU's store.
  using Settings = PagedKvStore::Settings;

  /// Takes the pool's memory at once.
  /// @throws RunError when the GPU has less.
  CudaPagedKvStore(const ModelConfig& config, const PagedShape& shape, DType dtype, Settings settings,
                   const cuda::Device& device);

  /// The most bytes of the GPU's memory that attention takes beside the pool, in passes of `sequences`
  /// sequences with `tokens` tokens in all: for the parts of long rows, and for the gathered K and V of one
  /// layer.
  static std::int64_t most_bytes_of_attention(const ModelConfig& config, DType dtype, AttentionPath path,
                                              std::int64_t tokens, std::int64_t sequences);

  void begin(const PassPlan& plan) override;
  std::vector<std::int64_t> launch_key() const override;
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override;
  std::int64_t gathered_bytes() const override { return gathered_bytes_; }

 protected:
  /// Whether `prepare_blocks` has blocks to copy or to fill.
  bool prepares_blocks(const PassPlan& plan) const {
    return !plan.copies.empty() || (settings_.fill != DebugFill::none && !plan.fresh_blocks.empty());
  }
  /// The first part of `begin`: copies and fills blocks. The second part touches no block, so the first may
  /// run in another stream.
  void prepare_blocks(const PassPlan& plan, cudaStream_t stream);
  /// The second part: slots, tables and tiles of attention go to the GPU.
  void send(const PassPlan& plan);

  /// Copies K (or V) of one block in all layers. The layers lie `to_distance` bytes apart in `to` and
  /// `from_distance` bytes apart in `from`. Either may be the host's memory.
  void copy_layers(std::byte* to, std::int64_t to_distance, const std::byte* from, std::int64_t from_distance,
                   cudaStream_t stream) const;

  /// To be called where the stream has waited for blocks that another stream moved.
  void blocks_have_moved() { attention_.next_waits(); }

  /// The GPU of the pool.
  const cuda::Device& device() const { return device_; }
  /// Bytes of K, or of V, of one block in one layer.
  std::int64_t block_bytes() const { return block_bytes_; }
  /// Bytes of K, or of V, of all blocks in one layer.
  std::int64_t layer_bytes() const { return layer_bytes_; }
  /// Layers of the model.
  std::int64_t layers() const { return config_.layers; }
  /// K of one layer on the GPU, [blocks, block_size, kv_heads, head_dim].
  std::byte* k_layer(std::int64_t layer) const { return k_.data() + layer * layer_bytes_; }
  /// V of one layer, as `k_layer`.
  std::byte* v_layer(std::int64_t layer) const { return v_.data() + layer * layer_bytes_; }
  /// K of one block in one layer, `block_bytes()` bytes on the GPU.
  std::byte* k_block(std::int64_t layer, std::int32_t block) const {
    return k_layer(layer) + block * block_bytes_;
  }
  /// V of one block in one layer, as `k_block`.
  std::byte* v_block(std::int64_t layer, std::int32_t block) const {
    return v_layer(layer) + block * block_bytes_;
  }

 private:
  void fill(std::int32_t block, cudaStream_t stream);
  void copy(const BlockCopy& blocks, cudaStream_t stream);
  const std::int64_t* slot_mapping(const PassPlan& plan);
  void make_room_to_gather(const PassPlan& plan);

  const ModelConfig& config_;
  PagedShape shape_;
  DType dtype_;
  Settings settings_;
  const cuda::Device& device_;
  std::int64_t max_pitch_;                              // bytes between layers that one copy call can step
  std::int64_t row_bytes_, block_bytes_, layer_bytes_;  // of K, or of V, in one layer
  cuda::DeviceBuffer<std::byte> k_, v_;                 // [layers, blocks, block_size, kv_heads, head_dim]
  cuda::Attention attention_;

  // Of the pass.
  cuda::Upload<std::int32_t> block_table_;         // [sequences, table_width]
  cuda::Upload<std::int32_t> context_len_;         // [sequences]
  cuda::Upload<std::int64_t> prefill_slots_;       // [tokens]
  cuda::DeviceBuffer<std::int64_t> decode_slots_;  // [tokens]
  const std::int64_t* slots_ = nullptr;            // [tokens] prefill_slots_ or decode_slots_
  cuda::SlotMap paged_;                            // through the block table

  // With AttentionPath::gather alone.
  cuda::Upload<std::int64_t> first_slots_;                 // [sequences + 1] of the rows gathered
  cuda::DeviceBuffer<std::byte> gathered_k_, gathered_v_;  // [rows, kv_heads, head_dim] of one layer
  cuda::GatheredKv gathered_;
  std::int64_t gathered_bytes_ = 0;
};

}  // namespace kvcache
