/// @file
/// See run.h.
#include "common/kv/run.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "common/error.h"

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// A request on its way.
struct Sequence {
  const Request* request;
  std::vector<std::int32_t> token_ids;  // prompt, then output
  Sampler sampler;
  std::int64_t projected = 0;  // positions whose K and V were computed at least once

  std::int64_t length() const { return static_cast<std::int64_t>(token_ids.size()); }
};

/// The loop's state, so that its stages can be functions.
class Loop {
 public:
  Loop(Transformer& model, KvManager& manager, KvStore& store, std::span<const Request> requests,
       const RunSettings& settings)
      : model_(model), manager_(manager), store_(store), settings_(settings) {
    report_.sequences.resize(requests.size());
    for (const Request& request : requests) {
      sequences_.push_back({&request, request.prompt_ids, Sampler(request.sampling)});
    }
  }

  Report run() {
    if (!settings_.pinned_prefix.empty()) pin_prefix();
    for (std::size_t index = 0; index < sequences_.size(); ++index) waiting_.push_back(index);
    while (!waiting_.empty() || !running_.empty()) {
      while (!waiting_.empty() && admit(waiting_.front())) {
      }
      if (running_.empty() && !waiting_.empty()) {
        // Nothing else holds memory and it still does not fit: it never will.
        end(waiting_.front(), "capacity");
        waiting_.pop_front();
      }
      decode();
    }
    finish_report();
    return std::move(report_);
  }

 private:
  void pin_prefix() {
    const Clock::time_point begin = Clock::now();
    const auto id = static_cast<std::int32_t>(sequences_.size());
    const Work work{id, settings_.pinned_prefix};
    const std::optional<PassPlan> plan = manager_.plan({&work, 1});
    if (!plan) throw RunError("the pool is too small for the prefix to be pinned");
    model_.forward(*plan, store_);
    manager_.commit(*plan);
    manager_.pin(id);
    note_memory();
    report_.kv_rows.computed += plan->tokens();
    report_.timing.prefill_tokens += plan->tokens();
    report_.timing.prefill_ms += ms_since(begin);
  }

  /// Computes K and V of all tokens of a waiting sequence and takes its next token. False if it does not fit
  /// now.
  bool admit(std::size_t index) {
    const Clock::time_point begin = Clock::now();
    const std::optional<PassPlan> plan = manager_.plan(work_of({&index, 1}));
    if (!plan) return false;
    const bool first_time = report_.sequences[index].output_ids.empty();
    const std::span<const float> logits = run_pass(*plan);
    if (first_time)
      report_.sequences[index].cached_tokens = manager_.cached_tokens(static_cast<std::int32_t>(index));
    // Samples of one prompt share all that its prefill has stored, and its logits.
    const std::size_t samples =
        first_time ? 1 + static_cast<std::size_t>(sequences_[index].request->forks) : 1;
    for (std::size_t sample = index + 1; sample < index + samples; ++sample) {
      manager_.fork(static_cast<std::int32_t>(index), static_cast<std::int32_t>(sample));
      sequences_[sample].projected = sequences_[index].projected;
      report_.sequences[sample].cached_tokens = sequences_[index].length();
    }
    for (std::size_t sample = index; sample < index + samples; ++sample) {
      waiting_.pop_front();
      SequenceReport& report = report_.sequences[sample];
      if (first_time && settings_.keep_logits) report.logits.assign(logits.begin(), logits.end());
      if (sequences_[sample].request->max_tokens > 0) take_token(sample, logits);
      if (first_time) report.ttft_ms = ms_since(begin);
      if (!end_if_finished(sample)) running_.push_back(sample);
    }
    if (first_time) {
      report_.timing.prefill_ms += ms_since(begin);
      report_.timing.prefill_tokens += plan->tokens();
    } else {
      // A preempted sequence came back: computing it again is part of what its next token costs.
      report_.timing.decode_pass_ms.push_back(ms_since(begin));
    }
    return true;
  }

  /// One token for every running sequence; preempts the youngest until the others fit.
  void decode() {
    std::erase_if(running_, [this](std::size_t index) { return end_if_beyond_capacity(index); });
    const auto passes = static_cast<std::int64_t>(report_.timing.decode_pass_ms.size());
    if (settings_.preempt_every > 0 && !running_.empty() && (passes + 1) % settings_.preempt_every == 0)
      preempt_youngest();
    std::optional<PassPlan> plan;
    while (!running_.empty() && !(plan = manager_.plan(work_of(running_)))) {
      if (running_.size() == 1) {
        end(running_.front(), "capacity");
        running_.clear();
      } else {
        preempt_youngest();
      }
    }
    if (running_.empty()) return;
    const Clock::time_point begin = Clock::now();
    const std::span<const float> logits = run_pass(*plan);
    const auto vocab = static_cast<std::size_t>(model_.config().vocab_size);
    for (std::size_t n = 0; n < running_.size(); ++n)
      take_token(running_[n], logits.subspan(n * vocab, vocab));
    report_.timing.decode_pass_ms.push_back(ms_since(begin));
    std::erase_if(running_, [this](std::size_t index) { return end_if_finished(index); });
  }

  /// The youngest goes back to the head of the queue: all that wait are younger.
  void preempt_youngest() {
    manager_.free(static_cast<std::int32_t>(running_.back()));
    waiting_.push_front(running_.back());
    running_.pop_back();
    ++report_.counters.preemptions;
  }

  std::vector<Work> work_of(std::span<const std::size_t> indices) const {
    std::vector<Work> work;
    for (const std::size_t index : indices) {
      work.push_back({static_cast<std::int32_t>(index), sequences_[index].token_ids});
    }
    return work;
  }

  /// The pass of a plan; [sequences, vocab] logits of their last tokens.
  std::span<const float> run_pass(const PassPlan& plan) {
    const std::span<const float> logits = model_.forward(plan, store_);
    manager_.commit(plan);
    note_memory();
    count_rows(plan);
    return logits;
  }

  void take_token(std::size_t index, std::span<const float> logits) {
    const std::int32_t id = sequences_[index].sampler.pick(logits);
    sequences_[index].token_ids.push_back(id);
    report_.sequences[index].output_ids.push_back(id);
    if (settings_.on_token) settings_.on_token(index, id);
  }

  bool end_if_finished(std::size_t index) {
    const Sequence& sequence = sequences_[index];
    const std::vector<std::int32_t>& outputs = report_.sequences[index].output_ids;
    const std::vector<std::int32_t>& eos_ids = model_.config().eos_ids;
    if (!sequence.request->ignore_eos && !outputs.empty() &&
        std::binary_search(eos_ids.begin(), eos_ids.end(), outputs.back())) {
      end(index, "stop");
    } else if (static_cast<std::int64_t>(outputs.size()) >= sequence.request->max_tokens ||
               sequence.length() >= model_.config().max_position_embeddings) {
      end(index, "length");
    } else {
      return false;
    }
    return true;
  }

  bool end_if_beyond_capacity(std::size_t index) {
    if (sequences_[index].length() <= manager_.capacity()) return false;
    end(index, "capacity");
    return true;
  }

  /// Notes why a sequence ended and gives its memory back.
  void end(std::size_t index, const char* reason) {
    SequenceReport& report = report_.sequences[index];
    report.finish_reason = reason;
    report.block_table = manager_.block_table(static_cast<std::int32_t>(index));
    manager_.free(static_cast<std::int32_t>(index));
  }

  /// Keeps the memory report of the greatest reservation, and of those the one with the most in it.
  void note_memory() {
    KvMemoryReport now = manager_.memory();
    KvMemoryReport& most = report_.kv_memory;
    if (std::pair(now.reserved_bytes, now.used_bytes) < std::pair(most.reserved_bytes, most.used_bytes))
      return;
    if (now.reserved_bytes > 0) {
      now.waste_percent = 100.0 * static_cast<double>(now.reserved_bytes - now.used_bytes) /
                          static_cast<double>(now.reserved_bytes);
    }
    most = now;
  }

  void count_rows(const PassPlan& plan) {
    report_.kv_rows.computed += plan.tokens();
    for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
      std::int64_t& projected = sequences_[static_cast<std::size_t>(plan.sequences[s])].projected;
      const std::int64_t first = plan.context_len[s] - (plan.row_begin[s + 1] - plan.row_begin[s]);
      report_.kv_rows.recomputed += std::max<std::int64_t>(0, projected - first);
      projected = std::max<std::int64_t>(projected, plan.context_len[s]);
    }
  }

  void finish_report() {
    TimingReport& timing = report_.timing;
    for (std::size_t index = 0; index < sequences_.size(); ++index) {
      SequenceReport& sequence = report_.sequences[index];
      sequence.prompt_ids = sequences_[index].request->prompt_ids;
      timing.decode_tokens +=
          std::max<std::int64_t>(0, static_cast<std::int64_t>(sequence.output_ids.size()) - 1);
    }
    const std::int64_t preemptions = report_.counters.preemptions;
    report_.counters = manager_.counters();
    report_.counters.preemptions = preemptions;
    report_.blocks = manager_.blocks();
    for (const double ms : timing.decode_pass_ms) timing.decode_ms += ms;
    const auto passes = static_cast<double>(timing.decode_pass_ms.size());
    const auto per_second = [](std::int64_t tokens, double ms) {
      return ms > 0 ? static_cast<double>(tokens) / ms * 1e3 : 0.0;
    };
    timing.ms_per_token = passes > 0 ? timing.decode_ms / passes : 0.0;
    timing.prefill_tokens_per_s = per_second(timing.prefill_tokens, timing.prefill_ms);
    timing.decode_tokens_per_s = per_second(timing.decode_tokens, timing.decode_ms);
  }

  Transformer& model_;
  KvManager& manager_;
  KvStore& store_;
  const RunSettings& settings_;
  std::vector<Sequence> sequences_;   // [requests]
  std::deque<std::size_t> waiting_;   // indices, oldest first
  std::vector<std::size_t> running_;  // indices, in order of admission, which is that of age
  Report report_;
};

}  // namespace

Report run(Transformer& model, KvManager& manager, KvStore& store, std::span<const Request> requests,
           const RunSettings& settings) {
  return Loop(model, manager, store, requests, settings).run();
}

}  // namespace kvcache
