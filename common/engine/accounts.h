/// @file
/// What a run adds up as it goes: rows, milliseconds, memory. The run loop tells it of every pass; it decides
/// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/engine/report.h"
#include "common/kv/kv_manager.h"

namespace kvcache {

/// Keeps a run's report up to date. Sequences are numbered as in the report; a pass may also hold one that is
/// not in it (a pinned prefix).
class Accounts {
 public:
  /// @param sequences  of the report
  explicit Accounts(std::size_t sequences) : projected_(sequences, 0) { report_.sequences.resize(sequences); }

  /// The part of the report about one sequence, to be filled in.
  SequenceReport& sequence(std::size_t index) { return report_.sequences[index]; }
  /// Decode passes so far.
  std::int64_t decode_passes() const {
    return static_cast<std::int64_t>(report_.timing.decode_pass_ms.size());
  }

  /// A pass is queued and committed: counts its K/V rows, and keeps the memory report of the greatest
  /// reservation, and of those the one with the most in it.
  void pass(const PassPlan& plan, const KvManager& manager);
  /// A pass that computed a prompt, or the rest of one, took `ms`.
  void prefill(const PassPlan& plan, double ms);
  /// A decode pass took `ms`.
  void decode(double ms) { report_.timing.decode_pass_ms.push_back(ms); }
  /// `child` has all that `parent` has stored: nothing of it is computed for the first time again.
  void fork(std::size_t parent, std::size_t child) { projected_[child] = projected_[parent]; }

  /// The report with its sums and rates, when all sequences have ended.
  [[nodiscard]] Report finish(const KvManager& manager, std::int64_t preemptions);

 private:
  Report report_;
  std::vector<std::int64_t> projected_;  // [sequences] positions whose K and V were computed at least once
};

}  // namespace kvcache
