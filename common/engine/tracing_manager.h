/// @file
/// Writes down what a manager does, for `--trace`. The manager does not know of it: each line is the
/// difference between its state before and after a call. Described in docs/trace.md.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "common/kv/cache_state.h"
#include "common/kv/kv_manager.h"

namespace kvcache {

/// Passes every call on to another manager and writes one JSON object per call, each on a line of its own. A
/// call takes time in proportion to the pool, since the whole state is compared. Ids are written when a pass
/// is planned, so they must be known then: a scheduler that prepares passes (Scheduler::prepare) cannot use
/// this.
class TracingManager final : public KvManager {
 public:
  /// The text of one token on its own.
  using TextOfToken = std::function<std::string(std::int32_t id)>;

  /// Writes the first line.
  /// @param traced  of step 2, 3 or 4, with all blocks free; must outlive this object, as `out` must
  /// @param step, model  for the first line
  /// @param text_of_token  may be empty: then tokens are written as ids alone
  TracingManager(KvManager& traced, std::ostream& out, const std::string& step, const std::string& model,
                 TextOfToken text_of_token);

  [[nodiscard]] std::optional<PassPlan> plan(std::span<const Work> work) override;
  void commit(const PassPlan& plan) override;
  void abort(const PassPlan& plan) override;
  void free(std::int32_t sequence) override;
  void discard(const Work& work, std::int64_t cached_tokens) override;
  void fork(std::int32_t parent, std::int32_t child) override;
  void pin(std::int32_t sequence) override;
  bool can_fork() const override { return traced_.can_fork(); }

  std::int64_t capacity() const override { return traced_.capacity(); }
  std::int64_t capacity_for(std::span<const std::int32_t> token_ids, std::string_view salt) const override {
    return traced_.capacity_for(token_ids, salt);
  }
  KvMemoryReport memory() const override { return traced_.memory(); }
  std::vector<std::int32_t> block_table(std::int32_t sequence) const override {
    return traced_.block_table(sequence);
  }
  std::int64_t cached_tokens(std::int32_t sequence) const override { return traced_.cached_tokens(sequence); }
  BlocksReport blocks() const override { return traced_.blocks(); }
  CountersReport counters() const override { return traced_.counters(); }
  CacheState state() const override { return traced_.state(); }

  /// Sets the reason of the next `free(sequence)`; without one the trace says "preempted".
  void finishing(std::int32_t sequence, const std::string& reason) { reasons_[sequence] = reason; }
  /// Writes the last line, with the blocks and the counters of the run's report.
  void end(const BlocksReport& blocks, const CountersReport& counters);

 private:
  void write_plan(std::span<const Work> work, const PassPlan& plan);
  void write_free(std::int32_t sequence, const std::string& unsaid_reason);
  nlohmann::ordered_json line_of(const Work& work, std::int32_t first_row);
  /// Adds the changes since the line before, and writes the line.
  void write_with_changes(nlohmann::ordered_json line);
  void write(const nlohmann::ordered_json& line);

  KvManager& traced_;
  std::ostream& out_;
  TextOfToken text_of_token_;
  CacheState before_;                            // the state after the last line
  std::map<std::int32_t, std::size_t> told_;     // [sequence] tokens that were written
  std::map<std::int32_t, std::string> reasons_;  // [sequence] of the next `free`
  std::vector<std::int32_t> refused_;            // the sequences last refused, until one of them fits
};

}  // namespace kvcache
