/// @file
/// What every step's storage can do: keep the keys and values of a pass, and attend over those that are kept.
/// One class per step and device. Chapters: steps 1 to 4.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/matrix.h"
#include "common/kv/pass_plan.h"

namespace kvcache {

/// Holds K and V of all layers, at the slots that plans name. A pass calls `begin`, then `store_and_attend`
/// for each layer, then `end`.
class KvStore {
 public:
  virtual ~KvStore() = default;

  /// A pass starts; the plan outlives it.
  virtual void begin(const PassPlan& plan) = 0;
  /// Two passes with equal keys and equal shapes queue the same kernels with the same arguments, so the
  /// second may replay the first. Empty: never replay. Asked for after `begin`.
  virtual std::vector<std::int64_t> launch_key() const { return {}; }
  /// Normalises and rotates the heads of q and k as `heads` says (common/base/matrix.h has the structs),
  /// keeps k and v of one layer at the plan's slots, and computes the causal attention of q over each
  /// sequence's context, into `out` (as q). Each head is rounded to the activations' type after its norm and
  /// after its rotation, k and v are rounded to the store's type, and `out` is rounded once.
  virtual void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                                Matrix& out) = 0;
  /// The pass is over.
  virtual void end() {}

  /// Bytes of K and V that were gathered for attention so far; each was read once and written once. 0 where
  /// attention reads them in place.
  virtual std::int64_t gathered_bytes() const { return 0; }
};

}  // namespace kvcache
