/// @file
/// The K and V of a paged cache on the CPU. It follows a plan's slots, tables and copies and decides nothing.
/// Chapter: step3_paged/README.md.
#pragma once

#include <vector>

#include "common/cpu/attention.h"
#include "common/cpu/reserved_memory.h"
#include "common/kv/kv_store.h"
#include "common/kv/store_settings.h"
#include "common/model/config.h"
#include "step3_paged/paged_shape.h"

namespace kvcache {

/// A pool of blocks, layer-major: K and V are each [layers, blocks, block_size, kv_heads, head_dim]. Within a
/// layer, slot s is row s. Block-major, [blocks, layers, ...], was measured beside it (bench_pool_layout.cpp,
/// docs/results): moving a block is faster there and attention slower, and a block is read in every pass and
/// moved seldom.
class PagedKvStore : public KvStore {
 public:
  /// How K and V reach attention, and what fresh blocks are filled with.
  struct Settings {
    AttentionPath attention = AttentionPath::paged;  ///< copied together first, or read where they lie
    DebugFill fill = DebugFill::none;                ///< for tests and doubts
  };

  /// Reserves the address space; memory appears as blocks are written.
  /// @throws RunError when the system does not give it.
  PagedKvStore(const ModelConfig& config, const PagedShape& shape, DType dtype, Settings settings,
               ThreadPool& threads);

  void begin(const PassPlan& plan) override;
  void write(std::int64_t layer, const Matrix& k, const Matrix& v) override;
  void attend(std::int64_t layer, const Matrix& q, Matrix& out) override;
  std::int64_t gathered_bytes() const override { return gathered_bytes_; }

 protected:
  /// Bytes of K, or of V, of one block in one layer.
  std::int64_t block_bytes() const { return block_bytes_; }
  /// Of the model.
  std::int64_t layers() const { return config_.layers; }
  /// K of one block in one layer, `block_bytes()` bytes.
  std::byte* k_block(std::int64_t layer, std::int32_t block) {
    return k_.data() + layer * layer_bytes_ + block * block_bytes_;
  }
  /// V of the same.
  std::byte* v_block(std::int64_t layer, std::int32_t block) {
    return v_.data() + layer * layer_bytes_ + block * block_bytes_;
  }

 private:
  void fill(std::int32_t block);
  void copy(const BlockCopy& copy);
  void attend_gathered(const AttentionShape& heads, const cpu::KvRows& rows, const Matrix& q, Matrix& out);

  const ModelConfig& config_;
  PagedShape shape_;
  DType dtype_;
  Settings settings_;
  ThreadPool& threads_;
  std::int64_t row_bytes_, block_bytes_, layer_bytes_;  // of K, or of V, in one layer
  ReservedMemory k_, v_;                                // [layers, blocks, block_size, kv_heads, head_dim]
  const PassPlan* plan_ = nullptr;
  std::vector<cpu::AttentionSequence> sequences_;   // [sequences] of the pass, through the block table
  std::vector<std::byte> gathered_k_, gathered_v_;  // [context, kv_heads, head_dim] of one sequence and layer
  std::int64_t gathered_bytes_ = 0;
};

}  // namespace kvcache
