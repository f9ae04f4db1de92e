/// @file
/// Step 2's memory of keys and values: one flat buffer, in which each sequence has room for max_seq_len
/// tokens. It cannot fork: each sample of a prompt is computed alone. Chapter: step2_flat_cache/README.md.
#pragma once

#include <vector>

#include "common/base/thread_pool.h"
#include "common/cpu/reserved_memory.h"
#include "common/kv/kv_manager.h"
#include "common/kv/kv_store.h"
#include "common/model/config.h"

namespace kvcache {

/// The sizes of a flat cache: K and V are each [layers, sequences, max_seq_len, kv_heads, head_dim].
struct FlatCacheShape {
  std::int64_t sequences = 0;        ///< reservations
  std::int64_t max_seq_len = 0;      ///< positions in each
  std::int64_t bytes_per_token = 0;  ///< K and V over all layers
};

/// Gives each sequence one reservation and counts how much of it is filled.
/// slot = reservation * max_seq_len + position.
class FlatCacheManager final : public KvManager {
 public:
  /// All reservations are free.
  explicit FlatCacheManager(FlatCacheShape shape)
      : shape_(shape), reservations_(static_cast<std::size_t>(shape.sequences)) {}

  [[nodiscard]] std::optional<PassPlan> plan(std::span<const Work> work) override;
  void commit(const PassPlan& plan) override;
  void abort(const PassPlan& plan) override;
  void free(std::int32_t sequence) override;
  std::int64_t capacity() const override { return shape_.sequences > 0 ? shape_.max_seq_len : 0; }
  KvMemoryReport memory() const override;
  CacheState state() const override;

  /// Tokens whose K and V are kept for `sequence`; 0 for an unknown one.
  std::int64_t length(std::int32_t sequence) const;
  /// For tests; call it between passes, not between `plan` and `commit` or `abort`.
  /// @throws std::logic_error if a sequence has two reservations, or if a reservation is held but empty,
  /// filled but free, or filled beyond its end.
  void check_invariants() const;

 private:
  static constexpr std::int32_t kNobody = -1;

  struct Reservation {
    std::int32_t sequence = kNobody;
    std::int64_t length = 0;  // positions filled, the same in every layer
  };
  /// The reservation of `sequence` (kNobody: a free one); nullptr if there is none.
  Reservation* find(std::int32_t sequence);
  const Reservation* find(std::int32_t sequence) const;

  FlatCacheShape shape_;
  std::vector<Reservation> reservations_;  // [sequences]
  bool planned_ = false;                   // a plan is neither committed nor aborted yet
};

/// The flat buffer itself.
class FlatCacheStore final : public KvStore {
 public:
  /// Reserves the address space; the system gives memory as tokens are stored.
  /// @throws RunError when the system does not give the address space.
  FlatCacheStore(const ModelConfig& config, const FlatCacheShape& shape, DType dtype, ThreadPool& threads);

  void begin(const PassPlan& plan) override { plan_ = &plan; }
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override;

 private:
  const ModelConfig& config_;
  DType dtype_;
  ThreadPool& threads_;
  std::int64_t layer_bytes_;  // of K, or of V
  ReservedMemory k_, v_;      // [layers, sequences, max_seq_len, kv_heads, head_dim]
  const PassPlan* plan_ = nullptr;
};

}  // namespace kvcache
