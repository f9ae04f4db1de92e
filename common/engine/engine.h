/// @file
/// Many requests at once: the engine takes them from their arrival to their end, one pass at a time, and
/// tells each of its tokens as they come. Who is computed next is the scheduler's to say (scheduler.h); what
/// is remembered is the step's, so that steps 2, 3 and 4 serve with the same code. The engine belongs to one
/// thread; engine_thread.h is the door for others.
///
/// On a GPU `forward` only queues a pass. While it runs, the host advances the bookkeeping (lengths, hashes
/// of full blocks), forks samples, takes back the memory of those that end with this pass by their length,
/// and plans the next pass: slots, block tables, who is admitted. It waits once, for the chosen ids. They
/// are put into the plan, which is then run; unless somebody ended by what was chosen, came or went: then a
/// new plan is made.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/engine/scheduler.h"
#include "common/engine/stop_strings.h"
#include "common/kv/kv_store.h"
#include "common/model/sampler.h"
#include "common/model/transformer.h"
#include "common/tokenizer/tokenizer.h"

namespace kvcache {

/// What a client asks for. Unlike a Request (run.h), which is one sequence of a list and has its samples
/// behind it there, it stands for all its samples, and a text may end them.
struct GenerationRequest {
  std::vector<std::int32_t> prompt_ids;  ///< at least one, fewer than the context
  std::int64_t max_tokens = 64;          ///< new tokens of each sample; 0: prefill only
  bool ignore_eos = false;               ///< an end-of-sequence id does not end an output
  SamplingParams sampling;               ///< sample n draws with the seed `seed + n`, whatever else runs
  std::int64_t samples = 1;       ///< outputs of this prompt; where blocks can be shared they fork after it
  std::vector<std::string> stop;  ///< texts that end an output; they are not part of it
  std::string salt;               ///< it shares blocks with those of equal salt (Work::salt)
};

/// What a request was, when it has ended.
struct GenerationSummary {
  std::int64_t prompt_tokens = 0;     ///< as given
  std::int64_t cached_tokens = 0;     ///< of the prompt, not computed when it was admitted first
  std::int64_t generated_tokens = 0;  ///< of all samples, each counted once, however often it was recomputed
  double queue_ms = 0;                ///< from the submission until it was admitted, or ended
  double prefill_ms = 0;              ///< from then until the first token, or the end if there was none
  double decode_ms = 0;               ///< from then until the last sample ended
};

/// Something happened to a sample.
struct GenerationEvent {
  std::int64_t sample = 0;              ///< from 0
  std::optional<std::int32_t> id = {};  ///< a token was chosen
  /// Text that became certain; the texts of a sample, joined, are its output. It may come later than the id
  /// it belongs to: characters are never cut, and what might become a stop string is held back.
  std::string text = {};
  /// The sample has ended: "stop", "length", "capacity" (as in the report), "cancelled", or "error". Empty:
  /// it goes on.
  std::string finish_reason = {};
  /// With "error", why this request has failed: its logits are not finite, its text cannot be decoded, or
  /// there is no memory for it. Empty: the engine has failed.
  std::string error = {};
  std::optional<GenerationSummary> summary = {};  ///< with the last event of the request
};

/// Called by the engine's thread: must not throw, wait, or call the engine.
using OnGenerationEvent = std::function<void(const GenerationEvent&)>;

/// Names a request towards the engine; whoever adds it chooses.
using GenerationId = std::uint64_t;

/// What an engine has done so far.
struct EngineTotals {
  std::int64_t requests = 0;          ///< ended
  std::int64_t passes = 0;            ///< computed
  std::int64_t prepared_passes = 0;   ///< of them, planned while the one before was being computed
  std::int64_t computed_tokens = 0;   ///< rows of all passes
  std::int64_t generated_tokens = 0;  ///< told to clients
  double model_ms = 0;                ///< from the start of passes until their ids were there
  double host_ms = 0;  ///< between passes: planning anew, telling; a GPU has nothing to do meanwhile
};

/// Serves requests one pass at a time: takes them in, has the scheduler say who is computed, chooses tokens,
/// and tells each request's listener. All by whoever calls it; EngineThread gives it a thread.
class Engine {
 public:
  /// Of queueing and computing times.
  using Clock = std::chrono::steady_clock;

  /// @param tokenizer  for texts; nullptr: there are ids alone, and no stop strings
  /// @throws InputError for settings that cannot be.
  Engine(Transformer& model, KvManager& manager, KvStore& store, const Tokenizer* tokenizer,
         const SchedulerSettings& settings);

  /// May be called by any thread.
  /// @throws InputError naming the field, its value and what would be right, for a request that cannot be
  /// computed.
  void check(const GenerationRequest& request) const;
  /// Computes a prefix that is to stay, for the prompts that begin with it; only where blocks can be shared.
  /// @throws RunError if the pool is too small, or the prefix gives logits that are not finite.
  void pin(std::span<const std::int32_t> token_ids);

  /// A request that passes `check` waits from now on. Where there is no memory for it, or the engine has
  /// failed, it ends with "error" at once.
  /// @param id         that no request has
  /// @param submitted  since when it waits
  void add(GenerationId id, GenerationRequest request, OnGenerationEvent on_event,
           Clock::time_point submitted = Clock::now());
  /// Ends a request wherever it is; what it held is free at once. Harmless for one that is not there.
  void cancel(GenerationId id);
  /// Ends all that are there.
  void cancel_all();
  /// Tells all that are there that the engine has failed. From then on only `add` and `cancel` may be called.
  void fail();

  /// Computes one pass. A request with logits that are not finite ends with "error", all samples of it, and
  /// what it had stored cannot be found by others. So does a request whose text cannot be decoded, or for
  /// whose own ids or text there is no memory; what it had stored stays findable.
  /// @param on_planned  called before it is computed: who is admitted by it runs already
  /// @return false if there was nothing to compute: no request is there
  /// @throws RunError when the device fails.
  bool run_pass(const std::function<void()>& on_planned = {});

  const Scheduler& scheduler() const { return scheduler_; }  ///< who runs and who waits
  const KvManager& manager() const { return manager_; }      ///< who holds what
  const EngineTotals& totals() const { return totals_; }     ///< since the start

 private:
  struct Generation;
  /// One output.
  struct Sample : ScheduledSequence {
    Sample(std::int32_t id, Generation& generation, std::int64_t number, const TokenIds& prompt_ids);

    Generation& generation;
    std::int64_t number;
    Sampler sampler;
    std::optional<StreamDecoder> decoder;  // from the first text on
    StopStrings stops;
    bool ended = false;
  };
  /// A request on its way.
  struct Generation {
    GenerationId id = 0;
    GenerationRequest asked;  // without its prompt_ids: the samples have them
    OnGenerationEvent on_event;
    std::deque<Sample> samples;  // the scheduler points to them: growing moves no element
    std::int64_t open = 0;       // samples that have not ended
    std::string error;           // why it has failed; empty: it has not
    bool damaged = false;        // its logits are not finite
    GenerationSummary summary;
    Clock::time_point submitted;
    std::optional<Clock::time_point> admitted, began;  // began: the first token
  };

  void note_admitted(const NextPass& pass, Clock::time_point now);
  void end_stuck(Sample& sample);
  void want_tokens(Sample& sample, std::int64_t row);
  void expect_token(Sample& sample, std::int64_t row);
  void take_tokens(std::span<const Picked> picked);
  void take_token(Sample& sample, std::int32_t id);
  std::string text_of(Sample& sample, std::int32_t id);
  std::string rest_of_text(Sample& sample);
  void end_all(std::span<Sample* const> samples, const std::string& reason);
  void end(Sample& sample, const std::string& reason, GenerationEvent event = {});
  void tell_end(Sample& sample, GenerationEvent event);
  template <typename Work>
  bool attempt(Generation& generation, const Work& work);
  void note_failed(Generation& generation, std::string error);
  void end_failed();
  std::int32_t fresh_sequence();

  Transformer& model_;
  KvManager& manager_;
  KvStore& store_;
  const Tokenizer* tokenizer_;
  SchedulerSettings settings_;
  Scheduler scheduler_;
  // Samples refer to theirs: growing an unordered_map moves no element.
  std::unordered_map<GenerationId, Generation> generations_;
  std::int32_t last_sequence_ = 0;
  EngineTotals totals_;
  bool has_failed_ = false;
  std::vector<Generation*> failed_;  // requests that are to end with "error", each once
  // Of the pass: whose logits are looked at, in which row.
  std::vector<Sample*> takers_;
  std::vector<Pick> picks_;  // [takers]
};

}  // namespace kvcache
