/// @file
/// See run.h.
#include "common/kv/run.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>

#include "common/error.h"
#include "common/kv/accounts.h"

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
};

/// The loop's state, so that its stages can be functions.
class Loop {
 public:
  Loop(Transformer& model, KvManager& manager, KvStore& store, std::span<const Request> requests,
       const RunSettings& settings)
      : model_(model), manager_(manager), store_(store), settings_(settings), accounts_(requests.size()) {
    for (const Request& request : requests) {
      accounts_.sequence(sequences_.size()).prompt_ids = request.prompt_ids;
      waiting_.push_back(sequences_.size());
      sequences_.push_back({&request, request.prompt_ids, Sampler(request.sampling)});
    }
  }

  Report run() {
    const std::int64_t gathered_before = store_.gathered_bytes();
    if (!settings_.pinned_prefix.empty()) pin_prefix();
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
    Report report = accounts_.finish(manager_);
    report.counters.gathered_bytes = store_.gathered_bytes() - gathered_before;
    return report;
  }

 private:
  /// Computes K and V of all tokens of a waiting sequence and takes its next token. False if it does not fit
  /// now.
  bool admit(std::size_t index) {
    const Clock::time_point begin = Clock::now();
    const std::optional<PassPlan> plan = manager_.plan(work_of({&index, 1}));
    if (!plan) return false;
    run_pass(*plan);
    waiting_.pop_front();
    if (accounts_.sequence(index).output_ids.empty()) {
      begin_sequences(index, begin);
      accounts_.prefill(*plan, ms_since(begin));
    } else {
      // A preempted sequence came back: computing it again is part of what its next token costs.
      take_tokens({{index, 0}});
      accounts_.decode(ms_since(begin));
      if (!end_if_finished(index)) running_.push_back(index);
    }
    return true;
  }

  /// The first tokens of a sequence that was prefilled and of the samples that fork from it: they share all
  /// that the prefill has stored, and its logits.
  void begin_sequences(std::size_t parent, Clock::time_point begin) {
    const std::size_t samples = parent + 1 + static_cast<std::size_t>(sequences_[parent].request->forks);
    accounts_.sequence(parent).cached_tokens = manager_.cached_tokens(static_cast<std::int32_t>(parent));
    for (std::size_t child = parent + 1; child < samples; ++child) {
      manager_.fork(static_cast<std::int32_t>(parent), static_cast<std::int32_t>(child));
      accounts_.fork(parent, child);
      accounts_.sequence(child).cached_tokens = std::ssize(sequences_[parent].token_ids);
      waiting_.pop_front();
    }
    std::vector<Turn> turns;
    for (std::size_t sample = parent; sample < samples; ++sample) {
      if (settings_.keep_logits) accounts_.sequence(sample).logits = model_.logits();
      if (sequences_[sample].request->max_tokens > 0) turns.push_back({sample, 0});
    }
    take_tokens(turns);
    for (std::size_t sample = parent; sample < samples; ++sample) {
      accounts_.sequence(sample).ttft_ms = ms_since(begin);
      if (!end_if_finished(sample)) running_.push_back(sample);
    }
  }

  /// One token for every running sequence; preempts the youngest until the others fit.
  void decode() {
    std::erase_if(running_, [this](std::size_t index) { return end_if_beyond_capacity(index); });
    if (settings_.preempt_every > 0 && !running_.empty() &&
        (accounts_.decode_passes() + 1) % settings_.preempt_every == 0) {
      preempt_youngest();
    }
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
    run_pass(*plan);
    std::vector<Turn> turns;
    for (const std::size_t index : running_) turns.push_back({index, std::ssize(turns)});
    take_tokens(turns);
    accounts_.decode(ms_since(begin));
    std::erase_if(running_, [this](std::size_t index) { return end_if_finished(index); });
  }

  /// The youngest goes back to the head of the queue: all that wait are younger.
  void preempt_youngest() {
    manager_.free(static_cast<std::int32_t>(running_.back()));
    waiting_.push_front(running_.back());
    running_.pop_back();
    accounts_.preemption();
  }

  /// Computes the prefix that is to stay, under an id that no request has.
  void pin_prefix() {
    const Clock::time_point begin = Clock::now();
    const auto id = static_cast<std::int32_t>(sequences_.size());
    const Work work{id, settings_.pinned_prefix};
    const std::optional<PassPlan> plan = manager_.plan({&work, 1});
    if (!plan) throw RunError("the pool is too small for the prefix to be pinned");
    run_pass(*plan);
    model_.pick({});  // nothing is chosen; this waits until the pass is done
    manager_.pin(id);
    accounts_.prefill(*plan, ms_since(begin));
  }

  std::vector<Work> work_of(std::span<const std::size_t> indices) const {
    std::vector<Work> work;
    for (const std::size_t index : indices)
      work.push_back({static_cast<std::int32_t>(index), sequences_[index].token_ids});
    return work;
  }

  void run_pass(const PassPlan& plan) {
    if (settings_.before_pass) settings_.before_pass();
    model_.forward(plan, store_);
    if (settings_.after_pass) settings_.after_pass();
    manager_.commit(plan);
    accounts_.pass(plan, manager_);
  }

  /// A sequence whose next token is chosen from a row of the last pass's logits.
  struct Turn {
    std::size_t index;
    std::int64_t row;
  };
  void take_tokens(const std::vector<Turn>& turns) {
    std::vector<Pick> picks;
    for (const Turn& turn : turns) picks.push_back({turn.row, &sequences_[turn.index].sampler});
    const std::vector<std::int32_t> ids = model_.pick(picks);
    for (std::size_t n = 0; n < turns.size(); ++n) {
      const std::size_t index = turns[n].index;
      sequences_[index].token_ids.push_back(ids[n]);
      accounts_.sequence(index).output_ids.push_back(ids[n]);
      if (settings_.on_token) settings_.on_token(index, ids[n]);
    }
  }

  bool end_if_finished(std::size_t index) {
    const Request& request = *sequences_[index].request;
    const std::vector<std::int32_t>& outputs = accounts_.sequence(index).output_ids;
    const std::vector<std::int32_t>& eos_ids = model_.config().eos_ids;
    if (!request.ignore_eos && !outputs.empty() &&
        std::binary_search(eos_ids.begin(), eos_ids.end(), outputs.back())) {
      end(index, "stop");
    } else if (std::ssize(outputs) >= request.max_tokens ||
               std::ssize(sequences_[index].token_ids) >= model_.config().max_position_embeddings) {
      end(index, "length");
    } else {
      return false;
    }
    return true;
  }

  bool end_if_beyond_capacity(std::size_t index) {
    if (std::ssize(sequences_[index].token_ids) <= manager_.capacity()) return false;
    end(index, "capacity");
    return true;
  }

  /// Notes why a sequence ended and gives its memory back.
  void end(std::size_t index, const char* reason) {
    accounts_.sequence(index).finish_reason = reason;
    accounts_.sequence(index).block_table = manager_.block_table(static_cast<std::int32_t>(index));
    if (settings_.on_end) settings_.on_end(index, reason);
    manager_.free(static_cast<std::int32_t>(index));
  }

  Transformer& model_;
  KvManager& manager_;
  KvStore& store_;
  const RunSettings& settings_;
  Accounts accounts_;
  std::vector<Sequence> sequences_;   // [requests]
  std::deque<std::size_t> waiting_;   // indices, oldest first
  std::vector<std::size_t> running_;  // indices, in order of admission, which is that of age
};

}  // namespace

Report run(Transformer& model, KvManager& manager, KvStore& store, std::span<const Request> requests,
           const RunSettings& settings) {
  return Loop(model, manager, store, requests, settings).run();
}

}  // namespace kvcache
