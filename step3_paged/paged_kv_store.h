/// @file
/// The K and V of a paged cache on the CPU. The store does what a plan says: it writes new rows to their
/// slots and attends through the block tables. Chapter: step3_paged/README.md.
#pragma once

#include <vector>

#include "common/cpu/attention.h"
#include "common/cpu/reserved_memory.h"
#include "common/kv/kv_store.h"
#include "common/kv/paged_store_settings.h"
#include "common/model/config.h"
#include "step3_paged/gather.h"
#include "step3_paged/paged_shape.h"

namespace kvcache {

/// A pool of blocks: K and V are each [layers, blocks, block_size, kv_heads, head_dim]. Within a layer, slot
/// s is row s.
class PagedKvStore : public KvStore {
 public:
  /// How attention reads K and V, and what fresh blocks are filled with.
  struct Settings {
    AttentionPath attention = AttentionPath::paged;  ///< gathered first, or read in place
    DebugFill fill = DebugFill::none;                ///< what fresh blocks hold, for tests
  };

  /// Reserves address space; the system adds memory as blocks are written.
  /// @throws RunError when the system refuses.
  PagedKvStore(const ModelConfig& config, const PagedShape& shape, DType dtype, Settings settings,
               ThreadPool& threads);

  void begin(const PassPlan& plan) override;
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override;
  std::int64_t gathered_bytes() const override { return gathered_.copied_bytes(); }

 protected:
  /// Bytes of K, or of V, of one block in one layer.
  std::int64_t block_bytes() const { return block_bytes_; }
  /// Layers of the model.
  std::int64_t layers() const { return config_.layers; }
  /// K of one layer, [blocks, block_size, kv_heads, head_dim].
  std::byte* k_layer(std::int64_t layer) { return k_.data() + layer * layer_bytes_; }
  /// V of one layer, as `k_layer`.
  std::byte* v_layer(std::int64_t layer) { return v_.data() + layer * layer_bytes_; }
  /// K of one block in one layer, `block_bytes()` bytes.
  std::byte* k_block(std::int64_t layer, std::int32_t block) { return k_layer(layer) + block * block_bytes_; }
  /// V of one block in one layer, as `k_block`.
  std::byte* v_block(std::int64_t layer, std::int32_t block) { return v_layer(layer) + block * block_bytes_; }

 private:
  void fill(std::int32_t block);
  void copy(const BlockCopy& blocks);

  const ModelConfig& config_;
  PagedShape shape_;
  DType dtype_;
  Settings settings_;
  ThreadPool& threads_;
  AttentionShape attention_shape_;
  std::int64_t block_bytes_, layer_bytes_;  // of K, or of V, in one layer
  ReservedMemory k_, v_;                    // [layers, blocks, block_size, kv_heads, head_dim]
  const PassPlan* plan_ = nullptr;
  std::vector<cpu::AttentionSequence> sequences_;  // of the pass, with slots through the block table
  cpu::GatheredAttention gathered_;                // with AttentionPath::gather alone
};

}  // namespace kvcache
