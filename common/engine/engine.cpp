/// @file
/// See engine.h. Read `run_pass` first.
#include "common/engine/engine.h"

#include <iterator>
#include <limits>
#include <utility>

#include "common/base/error.h"
#include "common/engine/finish_reason.h"
#include "common/engine/run.h"
#include "common/tokenizer/utf8.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

constexpr std::int32_t kPinnedSequence = 0;  // no other has this id

double ms_between(Engine::Clock::time_point begin, Engine::Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

/// Each sample of a request has a seed of its own.
SamplingParams sampling_of(const GenerationRequest& request, std::int64_t sample) {
  SamplingParams params = request.sampling;
  params.seed += static_cast<std::uint64_t>(sample);
  return params;
}

/// The request is gone with the last of them.
template <typename Sample>
std::vector<Sample*> open_samples(std::deque<Sample>& samples) {
  std::vector<Sample*> open;
  for (Sample& sample : samples) {
    if (!sample.ended) open.push_back(&sample);
  }
  return open;
}

}  // namespace

Engine::Engine(Transformer& model, KvManager& manager, KvStore& store, const Tokenizer* tokenizer,
               const SchedulerSettings& settings)
    : model_(model),
      manager_(manager),
      store_(store),
      tokenizer_(tokenizer),
      settings_(settings),
      scheduler_(manager, settings) {}

Engine::Sample::Sample(std::int32_t id, Generation& generation, std::int64_t number,
                       const Tokenizer* tokenizer)
    : ScheduledSequence{.id = id, .token_ids = generation.asked.prompt_ids, .salt = generation.asked.salt},
      generation(generation),
      number(number),
      sampler(sampling_of(generation.asked, number)),
      stops(generation.asked.stop) {
  if (tokenizer != nullptr) decoder.emplace(*tokenizer);
}

// Requests come and go

void Engine::check(const GenerationRequest& request) const {
  check_prompt("prompt_ids", request.prompt_ids, model_.config());
  if (const std::int64_t capacity = manager_.capacity_for(request.prompt_ids, request.salt);
      std::ssize(request.prompt_ids) > capacity) {
    throw InputError(fmt::format("prompt_ids has {} tokens and the cache holds at most {} of such a sequence",
                                 request.prompt_ids.size(), capacity));
  }
  if (request.max_tokens < 0)
    throw InputError(fmt::format("max_tokens is {}; it must be 0 or more", request.max_tokens));
  if (request.samples < 1 || request.samples > settings_.max_sequences) {
    throw InputError(fmt::format("n is {}; it must be 1 to {}, the sequences that can run at a time",
                                 request.samples, settings_.max_sequences));
  }
  const Sampler checks_its_parameters(request.sampling);
  if (!request.stop.empty() && tokenizer_ == nullptr)
    throw InputError("stop needs a tokenizer, and this model has none");
  for (const std::string& stop : request.stop) {
    if (stop.empty() || find_invalid_utf8(stop))
      throw InputError("stop has a string that is empty or not valid UTF-8");
  }
}

void Engine::pin(std::span<const std::int32_t> token_ids) {
  pin_prefix(model_, manager_, store_, token_ids, kPinnedSequence);
}

void Engine::add(GenerationId id, GenerationRequest request, OnGenerationEvent on_event,
                 Clock::time_point submitted) {
  Generation& generation = generations_[id];
  generation.id = id;
  generation.asked = std::move(request);
  generation.on_event = std::move(on_event);
  generation.submitted = submitted;
  generation.summary.prompt_tokens = std::ssize(generation.asked.prompt_ids);
  generation.open = generation.asked.samples;
  for (std::int64_t number = 0; number < generation.asked.samples; ++number)
    generation.samples.emplace_back(fresh_sequence(), generation, number, tokenizer_);
  if (manager_.can_fork()) {
    // The others fork from the first when its prompt is computed.
    generation.samples.front().forks = generation.asked.samples - 1;
    scheduler_.add(generation.samples.front());
  } else {
    for (Sample& sample : generation.samples) scheduler_.add(sample);
  }
}

void Engine::cancel(GenerationId id) {
  const auto found = generations_.find(id);
  if (found == generations_.end()) return;
  for (Sample* sample : open_samples(found->second.samples)) end(*sample, "cancelled");
}

void Engine::cancel_all() {
  while (!generations_.empty()) cancel(generations_.begin()->first);
}

void Engine::fail() {
  for (auto& [id, generation] : generations_) {
    for (Sample& sample : generation.samples) {
      if (sample.ended) continue;
      GenerationEvent event{.sample = sample.number, .finish_reason = "error"};
      if (--generation.open == 0) event.summary = generation.summary;
      generation.on_event(event);
    }
  }
  generations_.clear();
}

/// Ids come round after 2^31 sequences; none is so old that it would still be there, but for the pinned one.
std::int32_t Engine::fresh_sequence() {
  static_assert(kPinnedSequence == 0);
  last_sequence_ = last_sequence_ == std::numeric_limits<std::int32_t>::max() ? 1 : last_sequence_ + 1;
  return last_sequence_;
}

// One pass

bool Engine::run_pass(const std::function<void()>& on_planned) {
  const Clock::time_point begin = Clock::now();
  const bool prepared = scheduler_.prepared();
  NextPass pass = scheduler_.next();
  for (; pass.stuck != nullptr; pass = scheduler_.next()) end_stuck(static_cast<Sample&>(*pass.stuck));
  if (pass.turns.empty()) return false;
  if (on_planned) on_planned();

  const Clock::time_point planned = Clock::now();
  model_.forward(pass.plan, store_);  // on a GPU it runs while the host goes on here
  scheduler_.commit(pass);
  ++totals_.passes;
  totals_.prepared_passes += prepared ? 1 : 0;
  totals_.computed_tokens += pass.plan.tokens();
  note_admitted(pass, begin);
  takers_.clear();
  picks_.clear();
  for (const NextPass::Turn& turn : pass.turns) {
    if (turn.complete()) want_tokens(static_cast<Sample&>(*turn.sequence), &turn - pass.turns.data());
  }
  scheduler_.prepare();
  const std::vector<Picked> picked = model_.pick(picks_);  // waits for the pass
  const Clock::time_point computed = Clock::now();
  take_tokens(picked);
  totals_.model_ms += ms_between(planned, computed);
  totals_.host_ms += ms_between(begin, planned) + ms_between(computed, Clock::now());
  return true;
}

/// Samples that were to fork from it end with it.
void Engine::end_stuck(Sample& sample) {
  std::vector<Sample*> samples;
  for (Sample& other : sample.generation.samples) {
    if (&other == &sample || sample.forks > 0) samples.push_back(&other);
  }
  for (Sample* each : samples) end(*each, "capacity");
}

/// Those whose first pass this was.
void Engine::note_admitted(const NextPass& pass, Clock::time_point now) {
  for (const NextPass::Turn& turn : pass.turns) {
    Generation& generation = static_cast<Sample&>(*turn.sequence).generation;
    if (generation.admitted) continue;
    generation.admitted = now;
    generation.summary.queue_ms = ms_between(generation.submitted, now);
    generation.summary.cached_tokens = manager_.cached_tokens(turn.sequence->id);
  }
}

/// `row` of the logits says what follows `sample`; and, if its prompt is complete only now, what follows
/// those that fork from it.
void Engine::want_tokens(Sample& sample, std::int64_t row) {
  std::vector<Sample*> samples{&sample};
  if (sample.forks > 0) {
    std::vector<ScheduledSequence*> children;
    for (Sample& child : sample.generation.samples) {
      if (&child == &sample) continue;
      samples.push_back(&child);
      children.push_back(&child);
    }
    scheduler_.fork(sample, children);
  }
  for (Sample* taker : samples) expect_token(*taker, row);
}

/// A token of `sample` is on its way; for one that wants none, its logits are looked at all the same. If the
/// sample ends with this pass whatever the token is, its memory goes back now: nothing that is planned from
/// here on runs before this pass is done.
void Engine::expect_token(Sample& sample, std::int64_t row) {
  takers_.push_back(&sample);
  picks_.push_back({row, &sample.sampler});
  const GenerationRequest& asked = sample.generation.asked;
  if (asked.max_tokens > 0) sample.token_ids.push_back(kUnknownToken);
  const bool is_last = !finish_reason(model_.config(), sample.token_ids, std::ssize(asked.prompt_ids),
                                      asked.max_tokens, /*ignore_eos=*/true)
                            .empty();
  if (is_last) scheduler_.remove(sample);
}

/// A request with a row that gave no id ends, and no other: its client gets one answer, so its other samples
/// end with it.
void Engine::take_tokens(std::span<const Picked> picked) {
  std::vector<Generation*> failed;
  for (std::size_t n = 0; n < picked.size(); ++n) {
    Generation& generation = takers_[n]->generation;
    if (picked[n].ok() || !generation.error.empty()) continue;
    generation.error = message_of(picked[n]);
    failed.push_back(&generation);
  }
  for (std::size_t n = 0; n < picked.size(); ++n) {
    if (takers_[n]->generation.error.empty()) take_token(*takers_[n], picked[n].id);
  }
  for (Generation* generation : failed) end_with_error(*generation);
}

/// Some of its samples may have given their memory back already, and the next pass may be planned with it:
/// the scheduler drops that plan.
void Engine::end_with_error(Generation& generation) {
  const std::vector<Sample*> samples = open_samples(generation.samples);
  for (Sample* sample : samples) scheduler_.discard(*sample, generation.summary.cached_tokens);
  for (Sample* sample : samples) end(*sample, "error", {.error = generation.error});
}

void Engine::take_token(Sample& sample, std::int32_t id) {
  Generation& generation = sample.generation;
  const GenerationRequest& asked = generation.asked;
  if (asked.max_tokens == 0) return end(sample, "length");
  if (!generation.began) {
    generation.began = Clock::now();
    generation.summary.prefill_ms = ms_between(*generation.admitted, *generation.began);
  }
  sample.token_ids.back() = id;
  ++generation.summary.generated_tokens;
  ++totals_.generated_tokens;
  GenerationEvent event{.sample = sample.number, .id = id};
  std::string reason = finish_reason(model_.config(), sample.token_ids, std::ssize(asked.prompt_ids),
                                     asked.max_tokens, asked.ignore_eos);
  // The id of the end has no text.
  if (sample.decoder && reason != "stop") event.text = sample.stops.push(sample.decoder->push(id));
  if (sample.stops.stopped()) reason = "stop";
  if (reason.empty()) {
    generation.on_event(event);
  } else {
    end(sample, reason, std::move(event));
  }
}

/// Frees what a sample holds and tells that it has ended, with `event`, which may tell of its last token.
void Engine::end(Sample& sample, const std::string& reason, GenerationEvent event) {
  Generation& generation = sample.generation;
  scheduler_.remove(sample);
  sample.ended = true;
  event.sample = sample.number;
  event.finish_reason = reason;
  if (sample.decoder) {
    event.text += sample.stops.push(sample.decoder->finish());
    if (sample.stops.stopped() && reason != "cancelled" && reason != "error") event.finish_reason = "stop";
    event.text += sample.stops.finish();
  }
  if (--generation.open == 0) {
    const Clock::time_point now = Clock::now();
    if (generation.began) {
      generation.summary.decode_ms = ms_between(*generation.began, now);
    } else if (generation.admitted) {
      generation.summary.prefill_ms = ms_between(*generation.admitted, now);
    } else {
      generation.summary.queue_ms = ms_between(generation.submitted, now);
    }
    event.summary = generation.summary;
    ++totals_.requests;
  }
  generation.on_event(event);
  if (generation.open == 0) generations_.erase(generation.id);
}

}  // namespace kvcache
