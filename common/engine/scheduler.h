/// @file
/// Who is computed next: the policy of continuous batching. Integers only; no tensor, no text, no clock. Both
/// ways to run requests are driven by it: the batch run of the four programs (common/engine/run.h) and the
/// serving engine (engine.h).
///
/// A sequence waits, runs, ends. A pass has a row for each running sequence that decodes. The rows that are
/// left are for prompts. A prompt that is longer than they are many is computed in chunks. The rules:
///
/// 1. First come, first served. A sequence that waits is never overtaken, and all that wait are younger than
///    all that run.
/// 2. A sequence is admitted when the whole of it fits beside the whole of all that run, with the manager's
///    watermark. At most one running sequence is still in its prompt after a pass. While it is, only a prompt
///    that can be computed whole in the same pass is admitted, and all such prompts together get at most half
///    of the rows that decode leaves. So short requests need not wait for the end of a long prompt, and the
///    long prompt advances by the other half at least.
/// 3. When those that run cannot all grow, the youngest is preempted: its memory goes back, and it waits, the
///    next to be admitted, with all its ids. Where the manager shares blocks, what it had computed stays
///    findable. Its full blocks lie in the pool until others need the memory; then they are swapped out to
///    the host tier, as far as there is room, and swapped in when it comes back. So a block moves only if it
///    must, and computed again is only what was lost: the block that is not full, and what the tier had no
///    room for. Without a tier, or with blocks that cannot be found (steps 2 and 3, --prefix-cache off), all
///    of it is computed again.
/// 4. The oldest is never preempted, so every pass brings it on, and everything ends.
/// 5. Who was preempted kMaxPreemptions times is admitted again only as the oldest, and so never preempted
///    more often.
/// 6. A sequence that cannot go on although it is alone never will: it is *stuck*, and its owner ends it.
/// 7. The next pass can be planned while a device computes the one before it (`prepare`). The plan assumes
///    that everyone goes on. If someone ends, comes or goes, it is dropped and made anew.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/engine/token_ids.h"
#include "common/kv/kv_manager.h"

namespace kvcache {

/// Stands for a token that is being computed.
inline constexpr std::int32_t kUnknownToken = -1;

/// A sequence on its way. Its owner makes it, adds the ids that are chosen to it, and keeps it where it is
/// until it is removed.
struct ScheduledSequence {
  std::int32_t id = 0;  ///< that the manager knows it by
  /// Prompt, then output; not empty. The last may be kUnknownToken until `next`.
  TokenIds token_ids;
  std::int64_t forks = 0;  ///< sequences that will fork from it after its prompt: they have seats
  /// It shares blocks with those of equal salt (Work::salt). The owner keeps the text.
  std::string_view salt = {};

  // The scheduler's:
  std::int64_t stored = 0;       ///< tokens whose K and V the last pass has left
  bool decodes = false;          ///< it has got an id since it was admitted
  std::int64_t preemptions = 0;  ///< forced ones aside
};

/// How much is computed at a time.
struct SchedulerSettings {
  /// Rows of a pass at most. No fewer than `max_sequences`, so that all that run get one.
  std::int64_t max_batch_tokens = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_sequences = std::numeric_limits<std::int64_t>::max();  ///< running at a time
  /// A sequence that is admitted is computed in a pass of its own, all of it, before others go on. So the
  /// four programs do it: what prefill and decode cost is then told apart, and a prompt hits what the one
  /// before it has filled.
  bool prefill_alone = false;
  /// For tests: the youngest is preempted every so many passes, but not in its prompt; 0: only when needed.
  std::int64_t preempt_every = 0;
};

/// What is to be done next.
struct NextPass {
  /// One sequence of the plan.
  struct Turn {
    ScheduledSequence* sequence = nullptr;  ///< whose turn it is
    std::int64_t end = 0;                   ///< tokens whose K and V exist after the pass

    /// Whether its row of logits says what comes next; not in the middle of a prompt.
    bool complete() const { return end == static_cast<std::int64_t>(sequence->token_ids.size()); }
  };
  PassPlan plan;            ///< what the model computes
  std::vector<Turn> turns;  ///< [plan.sequences], oldest first; empty: nothing to compute
  /// Cannot go on and never will: to be ended (and removed) before the next pass. There are no turns then.
  ScheduledSequence* stuck = nullptr;
};

/// Says who is computed next, in which memory; by the rules at the head of this file.
class Scheduler {
 public:
  /// Of one sequence, before it is left in peace.
  static constexpr std::int64_t kMaxPreemptions = 4;

  /// @throws InputError for settings that cannot be, with their values.
  Scheduler(KvManager& manager, const SchedulerSettings& settings);

  /// The sequence waits, behind all others. With its forks it must be no more than `max_sequences`.
  void add(ScheduledSequence& sequence);
  /// The sequences that fork from `parent`, which runs, run with all that it has stored; they are the next
  /// younger ones, in this order.
  void fork(ScheduledSequence& parent, std::span<ScheduledSequence* const> children);
  /// The sequence has ended, wherever it is, and its memory goes back. Harmless for one that was not added.
  void remove(ScheduledSequence& sequence);
  /// As `remove`, for a sequence whose logits are not finite: nothing that it computed can be found
  /// afterwards. It may have been removed before.
  /// @param cached_tokens  as KvManager::discard
  void discard(ScheduledSequence& sequence, std::int64_t cached_tokens);

  /// Plans the next pass. It is followed by `commit` once the pass is queued, before anything else.
  [[nodiscard]] NextPass next();
  /// The pass is queued (KvManager::commit).
  void commit(const NextPass& pass);
  /// Plans the pass after the one that is being computed, if nobody has to be preempted for it. For this all
  /// that get a token from the pass have kUnknownToken as their last, and those that end with it, whatever it
  /// is, are removed. Changes nothing that `next` would do, but for the time it takes.
  void prepare();
  /// Whether `prepare` has left a plan that `next` will give.
  bool prepared() const { return prepared_.has_value(); }

  /// Oldest first.
  const std::vector<ScheduledSequence*>& running() const { return running_; }
  /// The next to be admitted first.
  const std::deque<ScheduledSequence*>& waiting() const { return waiting_; }
  std::int64_t preemptions() const { return preemptions_; }  ///< of all, forced ones too
  /// @throws std::logic_error if a sequence is in two places or a rule above does not hold. Not between
  /// `next` and `commit`.
  void check_invariants() const;

 private:
  NextPass take_prepared();
  void drop_prepared();
  bool preemption_is_forced() const;
  ScheduledSequence* outgrown() const;
  bool may_admit() const;
  void admit_front();
  bool admit_alone(NextPass& pass);
  std::int64_t admit(NextPass& pass, std::int64_t rows, bool whole);
  void choose_turns(NextPass& pass);
  void preempt_youngest();

  KvManager& manager_;
  SchedulerSettings settings_;
  std::deque<ScheduledSequence*> waiting_;
  std::vector<ScheduledSequence*> running_;
  std::optional<NextPass> prepared_;  // its turns are those of running_
  std::int64_t preemptions_ = 0;
  std::int64_t passes_ = 0;
};

}  // namespace kvcache
