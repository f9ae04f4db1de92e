/// @file
/// The scheduler decides which sequences a pass computes: the policy of continuous batching. It knows
/// integers only: no tensor, no text, no clock. Both ways to run requests use it, the batch run of the four
/// programs (common/engine/run.h) and the serving engine (engine.h). Described in docs/serving.md, with an
/// example.
///
/// A sequence waits, runs, ends. A pass has one row for each running sequence that decodes. Prompts get the
/// rows that are left. A prompt with more tokens than these rows is computed in chunks. The rules:
///
/// 1. *First come, first served.* A waiting sequence is never overtaken. Every waiting sequence is younger
///    than every running one.
/// 2. *Admission.* A sequence is admitted when the whole of it fits beside the whole of all running ones,
///    with the manager's watermark. After a pass at most one running sequence is still in its prompt. While
///    it is, only prompts that fit whole into the same pass are admitted, and together they get at most half
///    of the rows that decode leaves. So a short request need not wait for the end of a long prompt, and the
///    long prompt advances by the other half at least.
/// 3. *Preemption.* When the running sequences cannot all grow, the youngest is preempted. Its memory goes
///    back, and it waits in front of all others, with all its ids. Its K and V depend on the step:
///    - Blocks that can be found (step 4) stay in the pool until other sequences need the memory. Then they
///      are swapped out to the host tier, as far as there is room, and swapped in when the sequence is
///      admitted again. Recomputed are the partly filled block and what the tier had no room for.
///    - Without a tier, blocks that others have taken are recomputed, too.
///    - In steps 2 and 3, and with `--prefix-cache off`, everything is recomputed.
/// 4. *Progress.* While others run, the oldest is not preempted, so every pass brings it on, and everything
///    ends. Rule 6 has the case of a sequence alone.
/// 5. *Protection.* A sequence that was preempted kMaxPreemptions times is admitted again only as the oldest,
///    so it never makes room for others again.
/// 6. *Stuck.* A sequence alone may lack the room to grow because it has copies of a pinned prefix's blocks.
///    Then it is preempted, and shares those blocks when it is admitted again. A sequence that is not
///    admitted although nothing runs never will be. Its owner ends it.
/// 7. *Planning ahead.* The next pass can be planned while a device computes the pass before (`prepare`). The
///    plan assumes that every sequence goes on. If one ends, comes or goes, the plan is dropped and made
///    again.
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

/// Stands for a token that is still being computed.
inline constexpr std::int32_t kUnknownToken = -1;

/// A sequence on its way. Its owner creates it, adds the chosen ids, and must not move it until it is
/// removed.
struct ScheduledSequence {
  std::int32_t id = 0;  ///< its name for the manager
  /// Prompt, then output; not empty. The last id may be kUnknownToken until the next call of `next`.
  TokenIds token_ids;
  std::int64_t forks = 0;  ///< sequences that will fork after its prompt; they count as running
  /// Sequences of equal salt share blocks (Work::salt). The owner keeps the text alive.
  std::string_view salt = {};

  // Written by the scheduler alone:
  std::int64_t stored = 0;       ///< tokens whose K and V exist after the last pass
  bool decodes = false;          ///< its prompt is complete: it gets an id from every pass
  std::int64_t preemptions = 0;  ///< without the forced ones of `preempt_every`
};

/// How much is computed at a time.
struct SchedulerSettings {
  /// The most rows of a pass; at least `max_sequences`, so that every running sequence gets one.
  std::int64_t max_batch_tokens = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_sequences = std::numeric_limits<std::int64_t>::max();  ///< running at a time
  /// Each admitted sequence is computed whole, in a pass of its own, before the others go on. The four
  /// programs run so: their report tells prefill and decode apart, and a prompt can hit blocks of the prompt
  /// before it.
  bool prefill_alone = false;
  /// For tests: preempt the youngest at every n-th pass, unless it is in its prompt; 0: only when memory runs
  /// out.
  std::int64_t preempt_every = 0;
};

/// The next pass, or the sequence that blocks it.
struct NextPass {
  /// One sequence of the plan.
  struct Turn {
    ScheduledSequence* sequence = nullptr;  ///< whose turn it is
    std::int64_t end = 0;                   ///< tokens whose K and V exist after the pass

    /// Whether an id is chosen for it after the pass: false in the middle of a prompt.
    bool complete() const { return end == static_cast<std::int64_t>(sequence->token_ids.size()); }
  };
  PassPlan plan;            ///< what the model computes
  std::vector<Turn> turns;  ///< [plan.sequences], oldest first; empty: nothing to compute
  /// A sequence that can never go on: its owner ends and removes it before the next pass. Then there are no
  /// turns.
  ScheduledSequence* stuck = nullptr;
};

/// Decides which sequences a pass computes, by the rules at the head of this file.
class Scheduler {
 public:
  /// How often one sequence is preempted before rule 5 protects it.
  static constexpr std::int64_t kMaxPreemptions = 4;

  /// @throws InputError for impossible settings, with their values.
  Scheduler(KvManager& manager, const SchedulerSettings& settings);

  /// Adds a sequence behind all others that wait. With its forks it must be at most `max_sequences`.
  void add(ScheduledSequence& sequence);
  /// Forks `children` from `parent`, which runs. They run with all that it has stored, and are the next
  /// younger sequences, in this order.
  void fork(ScheduledSequence& parent, std::span<ScheduledSequence* const> children);
  /// Removes a sequence that has ended, running or waiting; its memory goes back. A sequence that was not
  /// added changes nothing.
  void remove(ScheduledSequence& sequence);
  /// As `remove`, for a sequence whose logits are not finite: nothing that it computed can be found
  /// afterwards. It may have been removed before.
  /// @param cached_tokens  as KvManager::discard
  void discard(ScheduledSequence& sequence, std::int64_t cached_tokens);

  /// Plans the next pass. The next call must be `commit`, once the pass is queued.
  [[nodiscard]] NextPass next();
  /// The pass is queued (KvManager::commit).
  void commit(const NextPass& pass);
  /// Plans the pass after the one that is being computed, unless a sequence must be preempted for it. Before
  /// the call, every sequence that gets a token from the current pass has kUnknownToken as its last id, and
  /// every sequence that ends with that token, whichever it is, is removed. `next` then gives the same pass
  /// as without this call, only sooner.
  void prepare();
  /// Whether `prepare` has left a plan that `next` will give.
  bool prepared() const { return prepared_.has_value(); }

  /// Oldest first.
  const std::vector<ScheduledSequence*>& running() const { return running_; }
  /// The next to be admitted first.
  const std::deque<ScheduledSequence*>& waiting() const { return waiting_; }
  std::int64_t preemptions() const { return preemptions_; }  ///< of all sequences, forced ones too
  /// Must not be called between `next` and `commit`.
  /// @throws std::logic_error if a sequence is in two places or a rule above does not hold.
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
