/// @file
/// The serving engine without a model: the real scheduler and a real manager take requests of a trace from
/// their arrival to their end, in virtual time. A pass takes as long as its cost says. All else is
/// Engine::run_pass (common/engine/engine.h), in its order. Described in docs/replay.md.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/engine/scheduler.h"
#include "common/kv/kv_manager.h"
#include "common/replay/pass_cost.h"
#include "common/replay/traffic.h"

namespace kvcache {

/// What became of a request. Times are virtual milliseconds since the start of the trace.
struct RequestOutcome {
  /// How it stands.
  enum class State : std::uint8_t { to_come, waiting, running, done, refused };
  State state = State::to_come;    ///< `done` and `refused` are final
  double arrival_ms = 0;           ///< when it came
  double first_token_ms = 0;       ///< when its first output was there; without outputs, when its prompt was
  double end_ms = 0;               ///< when its last output was there, or it was refused
  std::int64_t cached_tokens = 0;  ///< of its prompt, not computed at the first admission
};

/// What an engine has done so far.
struct VirtualTotals {
  std::int64_t requests = 0;           ///< that came
  std::int64_t passes = 0;             ///< begun
  double busy_ms = 0;                  ///< that they took together
  double sequence_ms = 0;              ///< the same, each pass counted once for each of its sequences
  std::int64_t most_sequences = 0;     ///< of a pass
  std::int64_t computed_tokens = 0;    ///< rows of all passes
  std::int64_t recomputed_tokens = 0;  ///< among them, rows of positions that were computed before
  std::int64_t generated_tokens = 0;   ///< outputs
};

/// Serves requests one pass at a time.
class VirtualEngine {
 public:
  /// @param outcomes  [requests of `traffic`], which this engine and others write, each for its requests
  VirtualEngine(const Traffic& traffic, KvManager& manager, const SchedulerSettings& settings,
                const PassCost& cost, std::vector<RequestOutcome>& outcomes);

  /// Request `index` of the trace has come. It is refused at once if it needs more memory than the manager
  /// could ever give one sequence.
  void add(std::size_t index, double now_ms);
  /// Whether a request waits or runs.
  bool has_work() const { return !coming_.empty() || !open_.empty(); }
  /// Ends the pass that is computed, and begins the next one. Both happen at `ready_ms`. Only with work.
  /// @return false if no work was left, so no pass has begun
  bool run_pass();
  /// The same without the next pass, if a pass ends by `now_ms`.
  void end_pass_by(double now_ms);
  /// When the pass that was planned last has ended, or the first request after idle time came.
  double ready_ms() const { return ready_ms_; }
  /// Sequences of the pass that is computed; 0: none is.
  std::int64_t computing() const { return std::ssize(turns_); }

  const VirtualTotals& totals() const { return totals_; }    ///< since the start
  const Scheduler& scheduler() const { return scheduler_; }  ///< which sequences run and wait
  const KvManager& manager() const { return manager_; }      ///< which blocks they hold
  /// Requests that wait to be admitted, or admitted again.
  std::int64_t waiting() const { return std::ssize(coming_) + std::ssize(scheduler_.waiting()); }
  /// Tokens of all requests that wait or run: prompts and outputs, whether computed yet or not.
  std::int64_t tokens_in_hand() const { return tokens_in_hand_; }

 private:
  /// A request that waits in the scheduler, or runs.
  struct Open : ScheduledSequence {
    std::size_t index = 0;       // in the trace
    std::int64_t projected = 0;  // positions that were computed at least once
    bool admitted = false;       // its first admission is behind it
  };

  void hand_over();
  void end_pass();
  void note_pass(const NextPass& pass);
  void take_token(Open& open);
  void end(Open& open, RequestOutcome::State state);

  const Traffic& traffic_;
  KvManager& manager_;
  SchedulerSettings settings_;
  Scheduler scheduler_;
  PassCost cost_;
  std::vector<RequestOutcome>& outcomes_;
  // Requests that wait behind those in the scheduler. They have no ids yet, for which an hour has no memory.
  std::deque<std::size_t> coming_;
  std::unordered_map<std::int32_t, std::unique_ptr<Open>> open_;  // by the manager's name for it
  std::vector<NextPass::Turn> turns_;                             // of the pass that is computed
  double ready_ms_ = 0;
  std::int64_t tokens_in_hand_ = 0;
  VirtualTotals totals_;
};

}  // namespace kvcache
