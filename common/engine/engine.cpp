/// @file
/// See engine.h. Read `run_pass` first.
#include "common/engine/engine.h"

#include <exception>
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

constexpr std::int32_t kPinnedSequence = 0;  // no request's sequence has this id

double ms_between(Engine::Clock::time_point begin, Engine::Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

/// Sample n of a request draws with the request's seed + n.
SamplingParams sampling_of(const GenerationRequest& request, std::int64_t sample) {
  SamplingParams params = request.sampling;
  params.seed += static_cast<std::uint64_t>(sample);
  return params;
}

/// A copy of the pointers: the request, and `samples` with it, is gone when the last of them ends.
template <typename Sample>
std::vector<Sample*> open_samples(std::deque<Sample>& samples) {
  std::vector<Sample*> open;
  for (Sample& sample : samples) {
    if (!sample.ended) open.push_back(&sample);
  }
  return open;
}

/// Tells all samples of a request that could not begin.
void tell_error(const OnGenerationEvent& on_event, std::int64_t samples, const GenerationSummary& summary,
                const std::string& error) {
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    GenerationEvent event{.sample = sample, .finish_reason = "error", .error = error};
    if (sample + 1 == samples) event.summary = summary;
    on_event(event);
  }
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
                       const TokenIds& prompt_ids)
    : ScheduledSequence{.id = id, .token_ids = prompt_ids, .salt = generation.asked.salt},
      generation(generation),
      number(number),
      sampler(sampling_of(generation.asked, number)),
      stops(generation.asked.stop) {}

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

/// A waiting request has one copy of its prompt, its stop strings and its salt, however many samples it has.
void Engine::add(GenerationId id, GenerationRequest request, OnGenerationEvent on_event,
                 Clock::time_point submitted) {
  const std::int64_t samples = request.samples;
  GenerationSummary summary{.prompt_tokens = std::ssize(request.prompt_ids)};
  if (has_failed_) return tell_error(on_event, samples, summary, "");
  try {
    Generation& generation = generations_[id];
    generation.id = id;
    generation.asked = std::move(request);
    generation.submitted = submitted;
    generation.summary = summary;
    generation.open = samples;
    const TokenIds prompt_ids(std::move(generation.asked.prompt_ids));
    for (std::int64_t number = 0; number < samples; ++number)
      generation.samples.emplace_back(fresh_sequence(), generation, number, prompt_ids);
  } catch (const std::exception& error) {
    generations_.erase(id);
    ++totals_.requests;
    summary.queue_ms = ms_between(submitted, Clock::now());
    return tell_error(on_event, samples, summary, words_of(error));
  }
  Generation& generation = generations_.at(id);
  generation.on_event = std::move(on_event);
  if (manager_.can_fork()) {
    // The other samples fork from the first when its prompt is computed.
    generation.samples.front().forks = samples - 1;
    scheduler_.add(generation.samples.front());
  } else {
    for (Sample& sample : generation.samples) scheduler_.add(sample);
  }
}

void Engine::cancel(GenerationId id) {
  const auto found = generations_.find(id);
  if (found == generations_.end()) return;
  end_all(open_samples(found->second.samples), "cancelled");
}

void Engine::cancel_all() {
  while (!generations_.empty()) cancel(generations_.begin()->first);
}

void Engine::fail() {
  has_failed_ = true;
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

/// Ids repeat after 2^31 sequences. Only the pinned sequence can be that old, and its id is left out.
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
  model_.forward(pass.plan, store_);  // on a GPU this only queues the pass; the host goes on
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
  // Requests without memory for their next token have no place in the next pass.
  for (Generation* generation : failed_) {
    for (Sample* sample : open_samples(generation->samples)) scheduler_.remove(*sample);
  }
  scheduler_.prepare();
  const std::vector<Picked> picked = model_.pick(picks_);  // waits for the pass
  const Clock::time_point computed = Clock::now();
  take_tokens(picked);
  totals_.model_ms += ms_between(planned, computed);
  totals_.host_ms += ms_between(begin, planned) + ms_between(computed, Clock::now());
  return true;
}

/// The samples that would fork from it end with it.
void Engine::end_stuck(Sample& sample) {
  std::vector<Sample*> samples;
  for (Sample& other : sample.generation.samples) {
    if (&other == &sample || sample.forks > 0) samples.push_back(&other);
  }
  end_all(samples, "capacity");
}

/// Notes when requests were admitted whose first pass this is.
void Engine::note_admitted(const NextPass& pass, Clock::time_point now) {
  for (const NextPass::Turn& turn : pass.turns) {
    Generation& generation = static_cast<Sample&>(*turn.sequence).generation;
    if (generation.admitted) continue;
    generation.admitted = now;
    generation.summary.queue_ms = ms_between(generation.submitted, now);
    generation.summary.cached_tokens = manager_.cached_tokens(turn.sequence->id);
  }
}

/// `row` of the logits predicts the next token of `sample`. If its prompt is complete only now, the other
/// samples fork from it and choose from the same row.
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

/// Notes that `sample` takes an id from `row`. With max_tokens 0 it takes none, and its logits are still
/// looked at. A sample that ends with this pass, whichever id is chosen, gives its memory back now: what is
/// planned from here on runs after this pass.
void Engine::expect_token(Sample& sample, std::int64_t row) {
  takers_.push_back(&sample);
  picks_.push_back({row, &sample.sampler});
  Generation& generation = sample.generation;
  const std::int64_t max_tokens = generation.asked.max_tokens;
  if (max_tokens > 0 && !attempt(generation, [&sample] { sample.token_ids.push_back(kUnknownToken); }))
    return;
  const bool is_last = !finish_reason(model_.config(), sample.token_ids, generation.summary.prompt_tokens,
                                      max_tokens, /*ignore_eos=*/true)
                            .empty();
  if (is_last) scheduler_.remove(sample);
}

/// A row without an id ends its request with all samples, since the client gets one answer. Other requests go
/// on.
void Engine::take_tokens(std::span<const Picked> picked) {
  for (std::size_t n = 0; n < picked.size(); ++n) {
    if (picked[n].ok()) continue;
    Generation& generation = takers_[n]->generation;
    generation.damaged = true;
    note_failed(generation, message_of(picked[n]));
  }
  for (std::size_t n = 0; n < picked.size(); ++n) {
    if (takers_[n]->generation.error.empty()) take_token(*takers_[n], picked[n].id);
  }
  end_failed();
}

void Engine::take_token(Sample& sample, std::int32_t id) {
  Generation& generation = sample.generation;
  const GenerationRequest& asked = generation.asked;
  if (asked.max_tokens == 0) return end(sample, "length");
  sample.token_ids.replace_back(id);
  GenerationEvent event{.sample = sample.number, .id = id};
  std::string reason = finish_reason(model_.config(), sample.token_ids, generation.summary.prompt_tokens,
                                     asked.max_tokens, asked.ignore_eos);
  // An end-of-sequence id has no text.
  if (reason != "stop" && !attempt(generation, [&] { event.text = text_of(sample, id); })) return;
  if (sample.stops.stopped()) reason = "stop";
  if (!generation.began) {
    generation.began = Clock::now();
    generation.summary.prefill_ms = ms_between(*generation.admitted, *generation.began);
  }
  ++generation.summary.generated_tokens;
  ++totals_.generated_tokens;
  if (reason.empty()) {
    generation.on_event(event);
  } else {
    end(sample, reason, std::move(event));
  }
}

/// The text that is certain once `id` is added.
std::string Engine::text_of(Sample& sample, std::int32_t id) {
  if (tokenizer_ == nullptr) return {};
  if (!sample.decoder) sample.decoder.emplace(*tokenizer_);
  return sample.stops.push(sample.decoder->push(id));
}

/// The text that is still held back when an output ends.
std::string Engine::rest_of_text(Sample& sample) {
  if (tokenizer_ == nullptr) return {};
  if (!sample.decoder) sample.decoder.emplace(*tokenizer_);
  std::string text = sample.stops.push(sample.decoder->finish());
  return text += sample.stops.finish();
}

// The end of a sample

/// Ends samples of one request. If the rest of a text cannot be decoded, the request ends with "error".
void Engine::end_all(std::span<Sample* const> samples, const std::string& reason) {
  for (Sample* sample : samples) {
    if (failed_.empty()) end(*sample, reason);
  }
  end_failed();
}

/// Frees what a sample holds and tells its end with `event`, which may carry its last token. If the rest of
/// its text cannot be decoded, the request is marked as failed instead.
void Engine::end(Sample& sample, const std::string& reason, GenerationEvent event) {
  Generation& generation = sample.generation;
  event.sample = sample.number;
  if (!attempt(generation, [&] { event.text += rest_of_text(sample); })) {
    if (event.id) generation.on_event(event);
    return;
  }
  event.finish_reason = sample.stops.stopped() && reason != "cancelled" ? "stop" : reason;
  tell_end(sample, std::move(event));
}

/// Tells the last event of a sample. The request is gone with its last sample.
void Engine::tell_end(Sample& sample, GenerationEvent event) {
  Generation& generation = sample.generation;
  scheduler_.remove(sample);
  event.admitted = generation.admitted.has_value();
  if (generation.open == 1) {
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
  sample.ended = true;  // now that it has been told: if the listener throws, `fail` tells it
  if (--generation.open == 0) generations_.erase(generation.id);
}

// Requests that fail

/// Does work that belongs to one request alone: its ids, its text. If it throws, that request is marked as
/// failed. An exception from what all requests share (scheduler, manager, model) fails the engine.
/// @return whether the work was done
template <typename Work>
bool Engine::attempt(Generation& generation, const Work& work) {
  try {
    work();
    return true;
  } catch (const std::exception& error) {
    note_failed(generation, words_of(error));
    return false;
  }
}

/// Keeps the first error of a request.
void Engine::note_failed(Generation& generation, std::string error) {
  if (!generation.error.empty()) return;
  generation.error = std::move(error);
  failed_.push_back(&generation);
}

/// Ends the requests that are marked as failed. Some samples may have given their memory back already, and
/// the next pass may be planned with it. If that memory must not be found, the scheduler drops the plan.
void Engine::end_failed() {
  for (Generation* generation : std::exchange(failed_, {})) {
    const std::vector<Sample*> samples = open_samples(generation->samples);
    for (Sample* sample : samples) {
      if (generation->damaged) scheduler_.discard(*sample, generation->summary.cached_tokens);
    }
    for (Sample* sample : samples) {
      GenerationEvent event{.sample = sample->number, .finish_reason = "error", .error = generation->error};
      try {
        event.text = rest_of_text(*sample);
      } catch (const std::exception&) {
        event.text = sample->stops.finish();
      }
      tell_end(*sample, std::move(event));
    }
  }
}

}  // namespace kvcache
