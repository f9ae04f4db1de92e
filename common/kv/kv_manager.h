/// @file
/// What every step's bookkeeping can do: turn "these sequences want these tokens" into a pass plan, all or
/// nothing. Integers only; the keys and values themselves are in the store (kv_store.h). Chapters: steps 1
/// to 4.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/kv/cache_state.h"
#include "common/kv/pass_plan.h"
#include "common/kv/report.h"

namespace kvcache {

/// What one sequence wants of a pass: K and V of all its tokens, so that its next token can be predicted. A
/// prompt that is computed in chunks asks for its first tokens, then for more of them.
struct Work {
  std::int32_t sequence = 0;                ///< an id of the caller's, fresh for each sequence
  std::span<const std::int32_t> token_ids;  ///< [length] from the first on: prompt, then output
  /// Only sequences of equal salt share blocks; empty: the manager's default. A sequence keeps the salt of
  /// its first plan.
  std::string_view salt = {};
};

/// Refuses work that no manager plans: a sequence twice, a sequence without a token, or a sequence with fewer
/// tokens than are stored.
/// @param stored  gives the number of tokens that are stored of a sequence
/// @throws std::logic_error that names the sequence.
void check_work(std::span<const Work> work, const std::function<std::int64_t(std::int32_t)>& stored);

/// The bookkeeping of one step. A plan must be followed by `commit` once its pass is queued, or by `abort`.
class KvManager {
 public:
  virtual ~KvManager() = default;

  /// Plans one pass that leaves each sequence of `work` with K and V for all its tokens. A new sequence is
  /// registered. Cached rows are skipped, except the last: its logits are needed.
  /// @return nothing if the work does not fit now; then nothing has changed.
  /// @throws std::logic_error as `check_work`, and if the plan before is neither committed nor aborted; then
  /// nothing has changed either.
  [[nodiscard]] virtual std::optional<PassPlan> plan(std::span<const Work> work) = 0;
  /// The pass is queued: lengths advance. Later passes run after it on the same stream, so a later plan may
  /// count on K and V that a GPU has yet to write. The last id of a sequence may have been a placeholder when
  /// the pass was planned; `plan` has the chosen id now.
  virtual void commit(const PassPlan& plan) = 0;
  /// The pass will not be queued: the exact inverse of `plan`.
  virtual void abort(const PassPlan& plan) = 0;
  /// Forgets a sequence and gives back what it held. An unknown id changes nothing.
  virtual void free(std::int32_t sequence) = 0;
  /// As `free`, for a sequence whose logits are not finite: no block that it computed can be found
  /// afterwards. It may have been freed before.
  /// @param work           the sequence with all its ids; the last may be unknown
  /// @param cached_tokens  that it found when it was first admitted; other sequences have computed these, and
  ///                       their blocks stay
  virtual void discard(const Work& work, std::int64_t cached_tokens) {
    static_cast<void>(cached_tokens);
    free(work.sequence);
  }

  /// Makes `child` a second sequence that shares all blocks of `parent`. Only step 4 can.
  virtual void fork(std::int32_t parent, std::int32_t child);
  /// Whether `fork` and `pin` can be called.
  virtual bool can_fork() const { return false; }
  /// Keeps `sequence` as a prefix that later sequences share; the one kept before is freed. Only step 4 can.
  virtual void pin(std::int32_t sequence);

  /// The most tokens that one sequence can hold when it is alone.
  virtual std::int64_t capacity() const = 0;
  /// The same for a sequence of this `salt` that begins with `token_ids`, beside the pinned prefix. May be
  /// called while another thread uses the manager, but not while a prefix is being pinned.
  virtual std::int64_t capacity_for(std::span<const std::int32_t> /*token_ids*/,
                                    std::string_view /*salt*/) const {
    return capacity();
  }
  /// Memory reserved and used now.
  virtual KvMemoryReport memory() const = 0;
  /// The blocks a sequence holds, in order; none without blocks.
  virtual std::vector<std::int32_t> block_table(std::int32_t) const { return {}; }
  /// Prompt tokens that a sequence found when it was admitted, and did not compute.
  virtual std::int64_t cached_tokens(std::int32_t) const { return 0; }
  /// How many blocks are free, cached and in use now; zeros without blocks.
  virtual BlocksReport blocks() const { return {}; }
  /// What happened so far. Preemptions are 0 here: the scheduler counts them.
  virtual CountersReport counters() const { return {}; }
  /// The whole bookkeeping, for a trace; empty in step 1. Takes time in proportion to the pool.
  virtual CacheState state() const { return {}; }
};

}  // namespace kvcache
