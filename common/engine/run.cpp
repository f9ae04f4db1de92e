/// @file
/// See run.h. The serving engine (common/engine/engine.h) uses the same scheduler for requests that come and
/// go at any time. Here all requests are known from the start, and each prefill is a pass of its own, so the
/// report tells prefill and decode apart.
#include "common/engine/run.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "common/base/error.h"
#include "common/engine/accounts.h"
#include "common/engine/finish_reason.h"
#include "common/engine/scheduler.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// A request on its way.
struct Sequence : ScheduledSequence {
  const Request* request;
  Sampler sampler;
};

/// The loop's state, so that its stages can be functions. The scheduler decides what a pass computes.
class Loop {
 public:
  Loop(Transformer& model, KvManager& manager, KvStore& store, std::span<const Request> requests,
       const RunSettings& settings)
      : model_(model),
        manager_(manager),
        store_(store),
        settings_(settings),
        accounts_(requests.size()),
        scheduler_(manager, {.prefill_alone = true, .preempt_every = settings.preempt_every}) {
    sequences_.reserve(requests.size());  // the scheduler points to the elements: they must not move
    for (const Request& request : requests) {
      const std::size_t index = sequences_.size();
      accounts_.sequence(index).prompt_ids = request.prompt_ids;
      const ScheduledSequence scheduled{static_cast<std::int32_t>(index), request.prompt_ids, request.forks,
                                        request.salt};
      sequences_.push_back({scheduled, &request, Sampler(request.sampling)});
    }
    for (std::size_t index = 0; index < requests.size();
         index += 1 + static_cast<std::size_t>(requests[index].forks)) {
      scheduler_.add(sequences_[index]);
    }
  }

  Report run() {
    const std::int64_t gathered_before = store_.gathered_bytes();
    if (!settings_.pinned_prefix.empty()) pin_prefix();
    Clock::time_point begin = Clock::now();
    for (NextPass pass = scheduler_.next(); pass.stuck != nullptr || !pass.turns.empty();
         begin = Clock::now(), pass = scheduler_.next()) {
      if (pass.stuck != nullptr) {
        end(index_of(*pass.stuck), "capacity");
      } else {
        take(pass, begin);
      }
    }
    Report report = accounts_.finish(manager_, scheduler_.preemptions());
    report.counters.gathered_bytes = store_.gathered_bytes() - gathered_before;
    return report;
  }

 private:
  /// Computes a pass: the prompt of one sequence, or a token for each running sequence.
  void take(const NextPass& pass, Clock::time_point begin) {
    if (settings_.before_pass) settings_.before_pass();
    model_.forward(pass.plan, store_);
    if (settings_.after_pass) settings_.after_pass();
    scheduler_.commit(pass);
    accounts_.pass(pass.plan, manager_);
    const std::size_t first = index_of(*pass.turns.front().sequence);
    if (accounts_.sequence(first).output_ids.empty()) {
      begin_sequences(first, begin);
      accounts_.prefill(pass.plan, ms_since(begin));
      return;
    }
    // A preempted sequence that came back is among these: its next token costs the recomputing, too.
    std::vector<Pick> picks;
    std::vector<std::size_t> indices;
    for (const NextPass::Turn& turn : pass.turns) {
      indices.push_back(index_of(*turn.sequence));
      picks.push_back({std::ssize(picks), &sequences_[indices.back()].sampler});
    }
    add_tokens(indices, picks);
    accounts_.decode(ms_since(begin));
    for (const std::size_t index : indices) end_if_finished(index);
  }

  /// Chooses the first tokens of a sequence that was prefilled and of the samples that fork from it. All of
  /// them share what the prefill stored, and its logits.
  void begin_sequences(std::size_t parent, Clock::time_point begin) {
    std::vector<std::size_t> samples{parent};
    std::vector<ScheduledSequence*> children;
    accounts_.sequence(parent).cached_tokens = manager_.cached_tokens(sequences_[parent].id);
    for (std::int64_t n = 0; n < sequences_[parent].forks; ++n) {
      const std::size_t child = samples.back() + 1;
      samples.push_back(child);
      children.push_back(&sequences_[child]);
      accounts_.fork(parent, child);
      accounts_.sequence(child).cached_tokens = std::ssize(sequences_[parent].token_ids);
    }
    scheduler_.fork(sequences_[parent], children);
    std::vector<Pick> picks;
    for (const std::size_t sample : samples) picks.push_back({0, &sequences_[sample].sampler});
    add_tokens(samples, picks);
    for (const std::size_t sample : samples) {
      if (settings_.keep_logits) accounts_.sequence(sample).logits = model_.logits();
      accounts_.sequence(sample).ttft_ms = ms_since(begin);
      end_if_finished(sample);
    }
  }

  /// Computes and pins the prefix, under an id that no request has.
  void pin_prefix() {
    const Clock::time_point begin = Clock::now();
    const PassPlan plan = kvcache::pin_prefix(model_, manager_, store_, settings_.pinned_prefix,
                                              static_cast<std::int32_t>(sequences_.size()));
    accounts_.pass(plan, manager_);
    accounts_.prefill(plan, ms_since(begin));
  }

  /// Chooses a token for each of the sequences from the last pass's logits. The logits of a sequence that
  /// wants no token are checked all the same.
  void add_tokens(const std::vector<std::size_t>& indices, const std::vector<Pick>& picks) {
    const std::vector<Picked> picked = model_.pick(picks);
    for (std::size_t n = 0; n < picked.size(); ++n) {
      const std::size_t index = indices[n];
      if (!picked[n].ok()) accounts_.sequence(index).error = message_of(picked[n]);
      if (!picked[n].ok() || sequences_[index].request->max_tokens == 0) continue;
      sequences_[index].token_ids.push_back(picked[n].id);
      accounts_.sequence(index).output_ids.push_back(picked[n].id);
      if (settings_.on_token) settings_.on_token(index, picked[n].id);
    }
  }

  void end_if_finished(std::size_t index) {
    if (!accounts_.sequence(index).error.empty()) return end(index, "error");
    const Request& request = *sequences_[index].request;
    const std::string reason =
        finish_reason(model_.config(), sequences_[index].token_ids, std::ssize(request.prompt_ids),
                      request.max_tokens, request.ignore_eos);
    if (!reason.empty()) end(index, reason);
  }

  /// Notes why a sequence ended and gives its memory back.
  void end(std::size_t index, const std::string& reason) {
    accounts_.sequence(index).finish_reason = reason;
    accounts_.sequence(index).block_table = manager_.block_table(sequences_[index].id);
    if (settings_.on_end) settings_.on_end(index, reason);
    if (reason == "error") {
      scheduler_.discard(sequences_[index], accounts_.sequence(index).cached_tokens);
    } else {
      scheduler_.remove(sequences_[index]);
    }
  }

  static std::size_t index_of(const ScheduledSequence& sequence) {
    return static_cast<std::size_t>(sequence.id);
  }

  Transformer& model_;
  KvManager& manager_;
  KvStore& store_;
  const RunSettings& settings_;
  Accounts accounts_;
  Scheduler scheduler_;
  std::vector<Sequence> sequences_;  // [requests] a sequence's id is its index
};

}  // namespace

void check_prompt(const std::string& name, std::span<const std::int32_t> ids, const ModelConfig& config) {
  const auto length = static_cast<std::int64_t>(ids.size());
  if (length == 0) {
    throw InputError(
        fmt::format("{} is empty: it has no token, and none is added to it; give some text", name));
  }
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= config.vocab_size) {
      throw InputError(
          fmt::format("{}: token id {} is outside the vocabulary, 0 to {}", name, id, config.vocab_size - 1));
    }
  }
  if (length >= config.max_position_embeddings) {
    throw InputError(fmt::format("{} has {} tokens and {}; it must leave room for one more", name, length,
                                 config.context_sentence()));
  }
}

PassPlan pin_prefix(Transformer& model, KvManager& manager, KvStore& store,
                    std::span<const std::int32_t> token_ids, std::int32_t sequence) {
  const Work work{sequence, token_ids};
  std::optional<PassPlan> plan = manager.plan({&work, 1});
  if (!plan) throw RunError("the pool is too small for the system prompt; raise --num-blocks or --kv-memory");
  model.forward(*plan, store);
  manager.commit(*plan);
  Sampler greedy{SamplingParams{}};
  const Pick look{0, &greedy};  // the id is not used: this waits for the pass and checks its logits
  if (const Picked picked = model.pick({&look, 1}).front(); !picked.ok()) {
    manager.discard(work, manager.cached_tokens(sequence));
    throw RunError("the system prompt: " + message_of(picked));
  }
  manager.pin(sequence);
  return *std::move(plan);
}

Report run(Transformer& model, KvManager& manager, KvStore& store, std::span<const Request> requests,
           const RunSettings& settings) {
  return Loop(model, manager, store, requests, settings).run();
}

void expect_no_error(const Report& report) {
  for (const SequenceReport& sequence : report.sequences) {
    if (!sequence.error.empty()) throw RunError(sequence.error);
  }
}

}  // namespace kvcache
