/// @file
/// See replay.h. Read `Replay::run` first: arrivals and passes in the order of their times.
#include "common/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/replay/virtual_engine.h"

namespace kvcache {
namespace {

constexpr std::size_t kMostSamples = 1 << 20;
constexpr double kSampleMs = 1000;   // of virtual time between two samples of the memory
constexpr double kLateShare = 0.01;  // of all requests may be later than the SLO
constexpr double kNever = std::numeric_limits<double>::infinity();

/// The value that `share` of the sorted ones do not exceed.
double percentile(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<std::size_t>(rank, 1) - 1];
}

double ratio(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

void add(CountersReport& sum, const CountersReport& more) {
  for (std::int64_t CountersReport::*counter :
       {&CountersReport::prefix_hits, &CountersReport::evictions, &CountersReport::preemptions,
        &CountersReport::copies, &CountersReport::swaps_out, &CountersReport::swaps_in})
    sum.*counter += more.*counter;
}

class Replay {
 public:
  Replay(const Traffic& traffic, std::span<EngineParts> parts, const ReplaySettings& settings,
         const std::function<void(std::int64_t)>& on_pass)
      : traffic_(traffic),
        parts_(parts),
        settings_(settings),
        on_pass_(on_pass),
        outcomes_(traffic.requests.size()) {
    for (EngineParts& part : parts)
      engines_.push_back(std::make_unique<VirtualEngine>(traffic, *part.manager, settings.scheduler,
                                                         settings.cost, outcomes_));
  }

  ReplayReport run() {
    for (;;) {
      const double arrival = next_arrival();
      VirtualEngine* const engine = next_to_compute();
      if (engine == nullptr && arrival == kNever) break;
      if (engine == nullptr || arrival <= engine->ready_ms()) {
        sample_until(arrival);
        for (const auto& each : engines_) each->end_pass_by(arrival);
        route(arrived_++, arrival);
        if (arrived_ == traffic_.requests.size()) report_.at_last_arrival = figures(arrival);
      } else {
        sample_until(engine->ready_ms());
        if (engine->run_pass() && on_pass_) on_pass_(++passes_);
        last_end_ = std::max(last_end_, engine->ready_ms());
      }
      if (settings_.slo_ms && late_requests() > allowed_late()) {
        report_.meets_slo = false;
        break;
      }
    }
    report_.drained = figures(last_end_);
    return std::move(report_);
  }

 private:
  /// Whether request `index` has its first token, or is refused: then its time is known.
  bool is_settled(std::size_t index) const {
    const RequestOutcome& outcome = outcomes_[index];
    return outcome.state == RequestOutcome::State::refused || outcome.first_token_ms > 0;
  }

  double next_arrival() const {
    if (arrived_ == traffic_.requests.size()) return kNever;
    if (!settings_.serial)
      return static_cast<double>(traffic_.requests[arrived_].timestamp_ms) / settings_.rate;
    const bool idle = std::ranges::none_of(engines_, [](const auto& engine) { return engine->has_work(); });
    return idle ? last_end_ : kNever;
  }

  /// The engine that is ready first, of those that have work.
  VirtualEngine* next_to_compute() const {
    VirtualEngine* next = nullptr;
    for (const auto& engine : engines_) {
      if (engine->has_work() && (next == nullptr || engine->ready_ms() < next->ready_ms()))
        next = engine.get();
    }
    return next;
  }

  void route(std::size_t index, double now) {
    std::size_t chosen = 0;
    if (settings_.router == Router::round_robin) {
      chosen = index % engines_.size();
    } else if (engines_.size() > 1) {
      // Ids of a request that no engine can hold may be more than memory.
      const bool looks = settings_.router == Router::longest_prefix && parts_[0].peek &&
                         traffic_.requests[index].tokens_to_store() <= parts_[0].manager->capacity();
      const TokenIds ids = looks ? traffic_.prompt_ids(index) : TokenIds();
      const auto found = [&](std::size_t n) { return looks ? parts_[n].peek(ids) : 0; };
      // The best has found most, and of those has the fewest tokens in hand.
      std::pair<std::int64_t, std::int64_t> best{std::numeric_limits<std::int64_t>::min(), 0};
      for (std::size_t n = 0; n < engines_.size(); ++n) {
        const std::pair<std::int64_t, std::int64_t> rank{found(n), -engines_[n]->tokens_in_hand()};
        if (rank > best) {
          best = rank;
          chosen = n;
        }
      }
    }
    engines_[chosen]->add(index, now);
    last_end_ = std::max(last_end_, now);
  }

  /// Samples the memory at the whole seconds up to `time`: nothing changes before it.
  void sample_until(double time) {
    if (next_sample_ > time) return;
    ReplayMemory::Sample sample;
    report_.memory.pool_bytes = 0;
    for (const EngineParts& part : parts_) {
      const KvMemoryReport memory = part.manager->memory();
      sample.reserved_bytes += memory.reserved_bytes;
      sample.used_bytes += memory.used_bytes;
      report_.memory.pool_bytes += memory.pool_bytes;
    }
    for (; next_sample_ <= time; next_sample_ += sample_ms_) {
      sample.at_ms = next_sample_;
      report_.memory.samples.push_back(sample);
      if (report_.memory.samples.size() == kMostSamples) keep_every_other_sample();
    }
  }

  /// Of a time of weeks: half the samples, and from now on half as many.
  void keep_every_other_sample() {
    std::vector<ReplayMemory::Sample>& samples = report_.memory.samples;
    for (std::size_t n = 0; n < samples.size() / 2; ++n) samples[n] = samples[2 * n];
    samples.resize(samples.size() / 2);
    sample_ms_ *= 2;
    next_sample_ = samples.back().at_ms;  // the loop goes on from here
  }

  std::int64_t allowed_late() const {
    return static_cast<std::int64_t>(kLateShare * static_cast<double>(traffic_.requests.size()));
  }

  /// Requests that are refused or late. Those before `settled_` are counted already.
  std::int64_t late_requests() {
    while (settled_ < arrived_ && is_settled(settled_)) {
      const RequestOutcome& outcome = outcomes_[settled_++];
      const bool late = outcome.first_token_ms - outcome.arrival_ms > *settings_.slo_ms;
      late_ += late || outcome.state == RequestOutcome::State::refused ? 1 : 0;
    }
    return late_;
  }

  ReplayFigures figures(double now) const;

  const Traffic& traffic_;
  std::span<EngineParts> parts_;
  const ReplaySettings& settings_;
  const std::function<void(std::int64_t)>& on_pass_;
  std::vector<RequestOutcome> outcomes_;
  std::vector<std::unique_ptr<VirtualEngine>> engines_;
  std::size_t arrived_ = 0;  // requests that have come
  std::size_t settled_ = 0;  // of these, the first ones, in the order of arrival
  std::int64_t late_ = 0;    // of the settled
  std::int64_t passes_ = 0;
  double last_end_ = 0;  // of a pass, or an arrival
  double next_sample_ = 0, sample_ms_ = kSampleMs;
  ReplayReport report_;
};

ReplayFigures Replay::figures(double now) const {
  ReplayFigures figures;
  figures.at_ms = now;
  std::vector<double> first_tokens, output_tokens;
  const std::int64_t block_size = parts_[0].manager->blocks().block_size;
  for (std::size_t index = 0; index < arrived_; ++index) {
    const RequestOutcome& outcome = outcomes_[index];
    const TrafficRequest& request = traffic_.requests[index];
    const bool is_done = outcome.state == RequestOutcome::State::done && outcome.end_ms <= now;
    figures.done += is_done ? 1 : 0;
    figures.refused += outcome.state == RequestOutcome::State::refused ? 1 : 0;
    if (outcome.state == RequestOutcome::State::running || outcome.state == RequestOutcome::State::done) {
      figures.input_tokens += request.input_length;
      figures.found_tokens += outcome.cached_tokens;
      if (block_size > 0) {
        figures.input_blocks += request.input_length / block_size;
        figures.found_blocks += outcome.cached_tokens / block_size;
      }
    }
    if (request.output_length > 0 && outcome.first_token_ms > 0 && outcome.first_token_ms <= now)
      first_tokens.push_back(outcome.first_token_ms - outcome.arrival_ms);
    if (is_done && request.output_length > 1)
      output_tokens.push_back((outcome.end_ms - outcome.first_token_ms) /
                              static_cast<double>(request.output_length - 1));
  }
  double busy_ms = 0, sequence_ms = 0;
  for (const auto& engine : engines_) {
    const VirtualTotals& totals = engine->totals();
    figures.waiting += engine->waiting();
    figures.passes += totals.passes;
    figures.most_requests = std::max(figures.most_requests, totals.requests);
    figures.most_sequences = std::max(figures.most_sequences, totals.most_sequences);
    figures.generated_tokens += totals.generated_tokens;
    figures.computed_tokens += totals.computed_tokens;
    figures.recomputed_tokens += totals.recomputed_tokens;
    // What is left of the pass that is computed.
    const double rest = engine->computing() > 0 ? std::max(0.0, engine->ready_ms() - now) : 0;
    busy_ms += totals.busy_ms - rest;
    sequence_ms += totals.sequence_ms - rest * static_cast<double>(engine->computing());
    add(figures.counters, engine->manager().counters());
    figures.counters.preemptions += engine->scheduler().preemptions();
  }
  figures.running = static_cast<std::int64_t>(arrived_) - figures.done - figures.refused - figures.waiting;
  if (now > 0) {
    figures.mean_sequences = sequence_ms / now;
    figures.busy_share = busy_ms / now / static_cast<double>(engines_.size());
  }
  figures.first_token_ms = spread_of(std::move(first_tokens));
  figures.output_token_ms = spread_of(std::move(output_tokens));
  return figures;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  return {.count = std::ssize(values),
          .mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
          .median = percentile(values, 0.5),
          .p90 = percentile(values, 0.9),
          .p99 = percentile(values, 0.99)};
}

double ReplayFigures::found_share() const {
  return ratio(found_tokens, input_tokens);
}

double ReplayFigures::found_block_share() const {
  return ratio(found_blocks, input_blocks);
}

double ReplayFigures::generated_per_s() const {
  return at_ms > 0 ? static_cast<double>(generated_tokens) / at_ms * 1e3 : 0;
}

ReplayReport replay(const Traffic& traffic, std::span<EngineParts> engines, const ReplaySettings& settings,
                    const std::function<void(std::int64_t passes)>& on_pass) {
  return Replay(traffic, engines, settings, on_pass).run();
}

}  // namespace kvcache
