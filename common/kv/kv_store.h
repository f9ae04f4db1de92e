/// @file
/// What every step's storage can do: keep the keys and values of a pass, and attend over what is kept. One
/// per step and device. Chapter: step 1 to step 4.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/matrix.h"
#include "common/kv/pass_plan.h"

namespace kvcache {

/// Holds K and V for all layers where a plan's slots say. Calls come in the order begin, (write, attend) per
/// layer, end.
class KvStore {
 public:
  virtual ~KvStore() = default;

  /// A pass starts; the plan outlives it.
  virtual void begin(const PassPlan& plan) = 0;
  /// What `write` and `attend` queue on a GPU depends on these numbers, on the shapes of the matrices, and
  /// otherwise on the contents of memory alone. Empty: that is not so. Asked for after `begin`.
  virtual std::vector<std::int64_t> launch_key() const { return {}; }
  /// Keeps this pass's `k` and `v` [tokens, kv_heads * head_dim] of one layer at the plan's slots.
  virtual void write(std::int64_t layer, const Matrix& k, const Matrix& v) = 0;
  /// Causal attention of `q` [tokens, heads * head_dim] over each sequence's context into `out` (same shape).
  virtual void attend(std::int64_t layer, const Matrix& q, Matrix& out) = 0;
  /// The pass is over.
  virtual void end() {}

  /// Bytes of K and V that were copied together for attention so far; each was read and written once. 0 where
  /// attention reads them where they lie.
  virtual std::int64_t gathered_bytes() const { return 0; }
};

}  // namespace kvcache
