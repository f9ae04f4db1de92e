/// @file
/// What a run adds up: rows, milliseconds, memory. run.cpp reads the clock and reports every pass to
/// `Accounts`, which decides nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/engine/report.h"
#include "common/kv/kv_manager.h"

namespace kvcache {

/// Keeps a run's report up to date. Sequences are numbered as in the report; a pass may also compute a pinned
/// prefix, which is not in the report.
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

  /// Counts the K/V rows of a pass that is queued and committed. Keeps the memory report of the moment with
  /// the most reserved bytes; of equal moments, the one with the most used bytes.
  void pass(const PassPlan& plan, const KvManager& manager);
  /// Adds a pass that computed a prompt, or the rest of a prompt, in `ms` milliseconds.
  void prefill(const PassPlan& plan, double ms);
  /// Adds a decode pass of `ms` milliseconds.
  void decode(double ms) { report_.timing.decode_pass_ms.push_back(ms); }
  /// `child` starts with all positions that `parent` has stored. Rows of `child` at these positions count as
  /// recomputed.
  void fork(std::size_t parent, std::size_t child) { projected_[child] = projected_[parent]; }

  /// The report with its sums and rates, when all sequences have ended.
  /// @param preemptions  counted by the scheduler; `manager` counts hits, evictions, copies and swaps
  [[nodiscard]] Report finish(const KvManager& manager, std::int64_t preemptions);

 private:
  Report report_;
  std::vector<std::int64_t> projected_;  // [sequences] positions that were computed at least once
};

}  // namespace kvcache
