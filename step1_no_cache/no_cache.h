/// @file
/// Step 1's memory of keys and values: none. Every pass computes the K and V of the whole sequence and
/// forgets them. Chapter: step1_no_cache/README.md.
#pragma once

#include <limits>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/kv/kv_manager.h"
#include "common/kv/kv_store.h"
#include "common/model/config.h"

namespace kvcache {

/// Plans every pass from the first token on.
class NoCacheManager final : public KvManager {
 public:
  [[nodiscard]] std::optional<PassPlan> plan(std::span<const Work> work) override;
  void commit(const PassPlan&) override {}
  void abort(const PassPlan&) override {}
  void free(std::int32_t) override {}
  std::int64_t capacity() const override { return std::numeric_limits<std::int64_t>::max(); }
  KvMemoryReport memory() const override { return {}; }
};

/// Holds K and V of one layer of one pass; after this layer's attention they are not needed again.
class NoCacheStore final : public KvStore {
 public:
  /// @param dtype  K and V are rounded to this type, as in a cache of this type
  NoCacheStore(const ModelConfig& config, DType dtype, ThreadPool& threads)
      : config_(config), dtype_(dtype), threads_(threads) {}

  void begin(const PassPlan& plan) override;
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override;

 private:
  const ModelConfig& config_;
  DType dtype_;
  ThreadPool& threads_;
  const PassPlan* plan_ = nullptr;
  std::vector<std::byte> k_, v_;  // [tokens, kv_heads, head_dim] of one layer
};

}  // namespace kvcache
