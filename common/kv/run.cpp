/// @file
/// See run.h.
#include "common/kv/run.h"

#include <algorithm>
#include <chrono>

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

  std::int64_t outputs() const {
    return static_cast<std::int64_t>(token_ids.size()) -
           static_cast<std::int64_t>(request->prompt_ids.size());
  }
};

/// The loop's state, so that its stages can be functions.
class Loop {
 public:
  Loop(Transformer& model, KvManager& manager, KvStore& store, std::span<const Request> requests,
       const OnToken& on_token)
      : model_(model), manager_(manager), store_(store), on_token_(on_token) {
    report_.sequences.resize(requests.size());
    for (const Request& request : requests) {
      sequences_.push_back({&request, request.prompt_ids, Sampler(request.sampling)});
    }
  }

  Report run(bool keep_logits) {
    std::vector<std::size_t> running;
    for (std::size_t index = 0; index < sequences_.size(); ++index) {
      prefill(index, keep_logits);
      if (!end_if_finished(index)) running.push_back(index);
    }
    while (!running.empty()) {
      decode(running);
      std::erase_if(running, [this](std::size_t index) { return end_if_finished(index); });
    }
    finish_report();
    return std::move(report_);
  }

 private:
  /// One pass over the given sequences; [sequences, vocab] logits of their last tokens.
  std::span<const float> pass(std::span<const std::size_t> indices) {
    std::vector<Work> work;
    for (const std::size_t index : indices) {
      work.push_back({static_cast<std::int32_t>(index), sequences_[index].token_ids});
    }
    const PassPlan plan = manager_.plan(work).value();
    note_memory();
    const std::span<const float> logits = model_.forward(plan, store_);
    manager_.commit(plan);
    count_rows(plan);
    return logits;
  }

  void prefill(std::size_t index, bool keep_logits) {
    const Clock::time_point begin = Clock::now();
    const std::int64_t computed_before = report_.kv_rows.computed;
    const std::span<const float> logits = pass({&index, 1});
    SequenceReport& sequence = report_.sequences[index];
    if (keep_logits) sequence.logits.assign(logits.begin(), logits.end());
    if (sequences_[index].request->max_tokens > 0) take_token(index, logits);
    sequence.ttft_ms = ms_since(begin);
    report_.timing.prefill_ms += sequence.ttft_ms;
    report_.timing.prefill_tokens += report_.kv_rows.computed - computed_before;
  }

  void decode(std::span<const std::size_t> indices) {
    const Clock::time_point begin = Clock::now();
    const std::span<const float> logits = pass(indices);
    const auto vocab = static_cast<std::size_t>(model_.config().vocab_size);
    for (std::size_t n = 0; n < indices.size(); ++n) take_token(indices[n], logits.subspan(n * vocab, vocab));
    report_.timing.decode_pass_ms.push_back(ms_since(begin));
  }

  void take_token(std::size_t index, std::span<const float> logits) {
    const std::int32_t id = sequences_[index].sampler.pick(logits);
    sequences_[index].token_ids.push_back(id);
    report_.sequences[index].output_ids.push_back(id);
    if (on_token_) on_token_(index, id);
  }

  /// Notes the reason and gives the sequence's memory back, if it has ended.
  bool end_if_finished(std::size_t index) {
    const Sequence& sequence = sequences_[index];
    SequenceReport& report = report_.sequences[index];
    const std::vector<std::int32_t>& eos_ids = model_.config().eos_ids;
    const auto length = static_cast<std::int64_t>(sequence.token_ids.size());
    const bool stop = !sequence.request->ignore_eos && !report.output_ids.empty() &&
                      std::binary_search(eos_ids.begin(), eos_ids.end(), report.output_ids.back());
    const bool full = sequence.outputs() >= sequence.request->max_tokens ||
                      length >= model_.config().max_position_embeddings;
    if (!stop && !full) return false;
    report.finish_reason = stop ? "stop" : "length";
    manager_.free(static_cast<std::int32_t>(index));
    return true;
  }

  /// Keeps the memory report of the greatest reservation.
  void note_memory() {
    const KvMemoryReport now = manager_.memory();
    if (now.reserved_bytes >= report_.kv_memory.reserved_bytes) report_.kv_memory = now;
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
      report_.sequences[index].prompt_ids = sequences_[index].request->prompt_ids;
      timing.decode_tokens += std::max<std::int64_t>(0, sequences_[index].outputs() - 1);
    }
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
  const OnToken& on_token_;
  std::vector<Sequence> sequences_;
  Report report_;
};

}  // namespace

Report run(Transformer& model, KvManager& manager, KvStore& store, std::span<const Request> requests,
           bool keep_logits, const OnToken& on_token) {
  return Loop(model, manager, store, requests, on_token).run(keep_logits);
}

}  // namespace kvcache
