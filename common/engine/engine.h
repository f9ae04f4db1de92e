/// @file
/// The serving engine: takes many requests from their arrival to their end, one pass at a time, and tells
/// each request's listener its tokens. The scheduler decides which sequences a pass computes (scheduler.h).
/// The step's manager and store do the remembering, so steps 2, 3 and 4 serve with the same code. The engine
/// belongs to one thread; other threads use engine_thread.h. Described in docs/serving.md.
///
/// On a GPU `forward` only queues a pass. While the device computes the pass, the host
///
/// 1. advances the bookkeeping: lengths, hashes of full blocks,
/// 2. forks samples (Scheduler::fork), and frees the sequences that end with this pass by their length,
/// 3. plans the next pass: slots, block tables, admissions.
///
/// Then the host waits once, for the chosen ids, and puts them into the plan. If a sequence ended by what was
/// chosen, or a request came or went, the plan is dropped and made again.
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

/// What a client asks for: a prompt and all its samples, which a stop string may end. (A `Request` of run.h
/// is a single sequence; its samples follow it in a list.)
struct GenerationRequest {
  std::vector<std::int32_t> prompt_ids;  ///< at least one, fewer than the context
  std::int64_t max_tokens = 64;          ///< new tokens of each sample; 0: prefill only
  bool ignore_eos = false;               ///< an end-of-sequence id does not end an output
  SamplingParams sampling;               ///< sample n draws with the seed `seed + n`, whatever else runs
  std::int64_t samples = 1;              ///< outputs of this prompt; in step 4 the engine forks them after it
  std::vector<std::string> stop;         ///< stop strings; they are not part of the output
  std::string salt;                      ///< requests of equal salt share blocks (Work::salt)
};

/// The numbers of a request that has ended.
struct GenerationSummary {
  std::int64_t prompt_tokens = 0;     ///< as given
  std::int64_t cached_tokens = 0;     ///< prompt tokens not computed at the first admission
  std::int64_t generated_tokens = 0;  ///< of all samples; a recomputed token counts once
  double queue_ms = 0;                ///< from submission to admission, or to the end without it
  double prefill_ms = 0;              ///< from admission to the first token, or to the end without it
  double decode_ms = 0;               ///< from the first token to the end of the last sample
};

/// What happened to a sample: a token, text, its end.
struct GenerationEvent {
  std::int64_t sample = 0;              ///< from 0
  std::optional<std::int32_t> id = {};  ///< the chosen token, if one was chosen
  /// New text. The texts of a sample, joined, are its output. Text may come later than its id: characters are
  /// never cut, and text that may become a stop string is held back.
  std::string text = {};
  /// Why the sample has ended: "stop", "length", "capacity" (as in the report), "cancelled", or "error".
  /// Empty: the sample goes on.
  std::string finish_reason = {};
  /// With "error", why this request has failed: its logits are not finite, its text cannot be decoded, or
  /// there is no memory for it. Empty: the engine has failed.
  std::string error = {};
  std::optional<GenerationSummary> summary = {};  ///< with the last event of the request
  bool admitted = false;  ///< with a finish_reason: the request was admitted, so some of it was computed
};

/// Called by the engine's thread: must not throw, wait, or call the engine.
using OnGenerationEvent = std::function<void(const GenerationEvent&)>;

/// The engine's name for a request; the caller of Engine::add chooses it.
using GenerationId = std::uint64_t;

/// What an engine has done so far.
struct EngineTotals {
  std::int64_t requests = 0;          ///< ended
  std::int64_t passes = 0;            ///< computed
  std::int64_t prepared_passes = 0;   ///< planned while the pass before was computed
  std::int64_t computed_tokens = 0;   ///< rows of all passes
  std::int64_t generated_tokens = 0;  ///< told to clients
  double model_ms = 0;                ///< from the start of each pass until its ids are known
  double host_ms = 0;                 ///< between passes: new plans, telling listeners; a GPU idles meanwhile
};

/// Serves requests one pass at a time: takes them in, asks the scheduler for a pass, computes it, chooses ids
/// and tells each request's listener. The caller's thread does all of it; EngineThread brings its own.
class Engine {
 public:
  /// The clock of queueing and computing times.
  using Clock = std::chrono::steady_clock;

  /// @param tokenizer  for texts; nullptr: ids alone, and no stop strings
  /// @throws InputError for impossible settings.
  Engine(Transformer& model, KvManager& manager, KvStore& store, const Tokenizer* tokenizer,
         const SchedulerSettings& settings);

  /// Checks whether a request can be computed. Any thread may call it.
  /// @throws InputError that names the field, its value and what would be right.
  void check(const GenerationRequest& request) const;
  /// Computes a prefix and pins it, for the prompts that begin with it; only where blocks can be shared.
  /// @throws RunError if the pool is too small, or the prefix gives logits that are not finite.
  void pin(std::span<const std::int32_t> token_ids);

  /// Adds a request that passes `check`; it waits from now on. It ends with "error" at once if there is no
  /// memory for it, or the engine has failed.
  /// @param id         used by no other request
  /// @param submitted  since when it waits
  void add(GenerationId id, GenerationRequest request, OnGenerationEvent on_event,
           Clock::time_point submitted = Clock::now());
  /// Cancels a request, waiting or running; its blocks are free at once. An unknown `id` changes nothing.
  void cancel(GenerationId id);
  /// Cancels all requests.
  void cancel_all();
  /// Ends all requests with "error", since the engine has failed. From then on only `add` and `cancel` may be
  /// called.
  void fail();

  /// Computes one pass. Some requests end with "error", all their samples, and no other request does:
  ///
  /// - logits that are not finite: what the request stored cannot be found by others;
  /// - text that cannot be decoded, or no memory for the request's own ids or text: what it stored stays
  ///   findable.
  ///
  /// @param on_planned  called before the pass is computed: the sequences that it admits run already
  /// @return false if there is no request, so nothing was computed
  /// @throws RunError when the device fails.
  bool run_pass(const std::function<void()>& on_planned = {});

  const Scheduler& scheduler() const { return scheduler_; }  ///< which sequences run and wait
  const KvManager& manager() const { return manager_; }      ///< which blocks they hold
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
    std::string error;           // why the request failed; empty: it has not failed
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
  // Samples refer to their Generation: growing an unordered_map moves no element.
  std::unordered_map<GenerationId, Generation> generations_;
  std::int32_t last_sequence_ = 0;
  EngineTotals totals_;
  bool has_failed_ = false;
  std::vector<Generation*> failed_;  // requests that will end with "error", each once
  // Of the pass: the samples that take an id, and from which row of the logits.
  std::vector<Sample*> takers_;
  std::vector<Pick> picks_;  // [takers]
};

}  // namespace kvcache
