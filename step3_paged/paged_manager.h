/// @file
/// Step 3's bookkeeping: block tables that grow one block at a time. Integers only. Chapter:
/// step3_paged/README.md.
#pragma once

#include <unordered_map>
#include <vector>

#include "common/kv/kv_manager.h"
#include "step3_paged/block_pool.h"
#include "step3_paged/paged_shape.h"

namespace kvcache {

/// Keeps a block table for each sequence and takes a block when a token has no slot yet. The slot of a token
/// is block_id * block_size + offset, in 64 bits: PassPlan::add_slots (common/kv/pass_plan.h) works it out.
class PagedManager final : public KvManager {
 public:
  /// All blocks are free. A new sequence leaves `shape.watermark()` of them free, unless it runs alone.
  explicit PagedManager(const PagedShape& shape) : shape_(shape), pool_(shape.blocks) {}

  [[nodiscard]] std::optional<PassPlan> plan(std::span<const Work> work) override;
  void commit(const PassPlan& plan) override;
  void abort(const PassPlan& plan) override;
  void free(std::int32_t sequence) override;
  std::int64_t capacity() const override { return shape_.blocks * shape_.block_size; }
  KvMemoryReport memory() const override;
  std::vector<std::int32_t> block_table(std::int32_t sequence) const override;
  BlocksReport blocks() const override;
  CacheState state() const override;

  /// Tokens whose K and V are kept for `sequence`; 0 for an unknown one.
  std::int64_t length(std::int32_t sequence) const;
  /// Not to be called between `plan` and `commit` or `abort`.
  /// @throws std::logic_error if a block is lost or in two tables, or a table has more or fewer blocks than
  /// its length needs.
  void check_invariants() const;

 private:
  struct BlockTable {
    std::vector<std::int32_t> blocks;  // [blocks_for(length)] in order of position
    std::int64_t length = 0;           // tokens stored
  };

  // Parts of `plan`
  std::int64_t blocks_to_add(std::span<const Work> work) const;
  std::int64_t blocks_to_keep_free(std::span<const Work> work) const;
  void extend(BlockTable& table, const Work& wanted, PassPlan& plan);

  PagedShape shape_;
  BlockPool pool_;
  std::unordered_map<std::int32_t, BlockTable> tables_;
  bool planned_ = false;  // a plan waits for its commit or abort
};

}  // namespace kvcache
