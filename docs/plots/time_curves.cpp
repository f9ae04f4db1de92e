/// @file
/// See time_curves.h.
#include "docs/plots/time_curves.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/cli/progress.h"
#include "step1_no_cache/make_cache.h"
#include "step2_flat_cache/make_cache.h"
#include "step3_paged/make_cache.h"
#include "step4_prefix_cache/make_cache.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBlockSize = 16;

/// The steps; step 3 twice.
enum class Way : std::uint8_t { no_cache, flat, gather, paged, shared };

Cache make_cache(Way way, const Program& program) {
  switch (way) {
    case Way::no_cache:
      return make_no_cache(program);
    case Way::flat:
      return make_flat_cache(program);
    case Way::gather:
    case Way::paged:
      return make_paged_cache(program);
    case Way::shared:
      break;
  }
  return make_prefix_cache(program);
}

double median_of(std::vector<double> numbers) {
  const auto middle = numbers.begin() + std::ssize(numbers) / 2;
  std::ranges::nth_element(numbers, middle);
  return *middle;
}

/// What one curve has measured: [points][turns].
class Samples {
 public:
  explicit Samples(std::size_t points) : points_(points) {}
  void add(std::size_t point, double number) { points_[point].push_back(number); }
  Spread spread() const {
    Spread result;
    for (const std::vector<double>& turns : points_) {
      result.median.push_back(median_of(turns));
      result.least.push_back(std::ranges::min(turns));
      result.most.push_back(std::ranges::max(turns));
    }
    return result;
  }

 private:
  std::vector<std::vector<double>> points_;
};

/// A prompt of made-up ids: the first `common` are those of every prompt.
Request made_up_request(const Program& program, std::int64_t length, std::int64_t tokens, std::int64_t number,
                        std::int64_t common = 0) {
  Request request;
  for (std::int64_t n = 0; n < length; ++n) {
    const std::int64_t place = n < common ? n : n + 3001 * (number + 1);
    request.prompt_ids.push_back(
        static_cast<std::int32_t>(place * 7919 % program.model->config().vocab_size));
  }
  request.max_tokens = tokens;
  return request;
}

/// Runs the requests in a cache of their own.
Report run_in(Way way, Program& program, std::vector<Request> requests,
              std::int64_t block_size = kBlockSize) {
  program.requests = std::move(requests);
  program.options.block_size = block_size;
  program.options.attention = way == Way::gather ? AttentionPath::gather : AttentionPath::paged;
  program.options.max_seq_len = longest_request(program);
  const Cache cache = make_cache(way, program);
  return run(*program.model, *cache.manager, *cache.store, program.requests);
}

/// ms of a decode pass at about `context` tokens: the median of several that end there, the first of the run
/// left out. Step 1's passes take long and are few.
double decode_ms(Way way, Program& program, std::int64_t sequences, std::int64_t context,
                 std::int64_t block_size = kBlockSize) {
  const std::int64_t passes = way == Way::no_cache ? 4 : 16;
  std::vector<Request> requests;
  for (std::int64_t n = 0; n < sequences; ++n)
    requests.push_back(made_up_request(program, context - passes, passes + 1, n));
  const Report report = run_in(way, program, std::move(requests), block_size);
  const std::vector<double>& times = report.timing.decode_pass_ms;
  return median_of({times.begin() + 1, times.end()});
}

DecodeCurves measure_decode(Program& program, const TimingPlan& plan) {
  DecodeCurves curves{plan.contexts, {}, {}, {}, {}, {}};
  const std::pair<Way, Spread*> ways[] = {{Way::no_cache, &curves.no_cache},
                                          {Way::flat, &curves.flat},
                                          {Way::gather, &curves.gather},
                                          {Way::paged, &curves.paged},
                                          {Way::shared, &curves.shared}};
  std::vector<Samples> samples(std::size(ways), Samples(plan.contexts.size()));
  for (std::int64_t turn = 0; turn < plan.turns; ++turn) {
    for (std::size_t point = 0; point < plan.contexts.size(); ++point) {
      for (std::size_t way = 0; way < std::size(ways); ++way)
        samples[way].add(point, decode_ms(ways[way].first, program, 1, plan.contexts[point]));
    }
  }
  for (std::size_t way = 0; way < std::size(ways); ++way) *ways[way].second = samples[way].spread();
  return curves;
}

/// ms from the beginning of a generation until each of its tokens.
std::vector<double> arrivals(const Report& report) {
  std::vector<double> times{report.sequences[0].ttft_ms};
  for (const double pass_ms : report.timing.decode_pass_ms) times.push_back(times.back() + pass_ms);
  return times;
}

GenerationCurves measure_generation(Program& program, const TimingPlan& plan) {
  GenerationCurves curves{plan.prompt, {1}, {}, {}, {}, {}};
  for (std::int64_t tokens = 8; tokens <= plan.generated; tokens += 8) curves.tokens.push_back(tokens);
  const std::pair<Way, Spread*> ways[] = {{Way::no_cache, &curves.no_cache},
                                          {Way::flat, &curves.flat},
                                          {Way::paged, &curves.paged},
                                          {Way::shared, &curves.shared}};
  std::vector<Samples> samples(std::size(ways), Samples(curves.tokens.size()));
  for (std::int64_t turn = 0; turn < plan.turns; ++turn) {
    for (std::size_t way = 0; way < std::size(ways); ++way) {
      const Request request = made_up_request(program, plan.prompt, plan.generated, 0);
      const std::vector<double> times = arrivals(run_in(ways[way].first, program, {request}));
      for (std::size_t point = 0; point < curves.tokens.size(); ++point)
        samples[way].add(point, times[static_cast<std::size_t>(curves.tokens[point] - 1)]);
    }
  }
  for (std::size_t way = 0; way < std::size(ways); ++way) *ways[way].second = samples[way].spread();
  return curves;
}

FirstTokenCurves measure_first_token(Program& program, const TimingPlan& plan) {
  FirstTokenCurves curves{plan.own, plan.prefixes, {}, {}, {}};
  Samples cold(plan.prefixes.size()), warm(plan.prefixes.size());
  for (std::int64_t turn = 0; turn < plan.turns; ++turn) {
    for (std::size_t point = 0; point < plan.prefixes.size(); ++point) {
      const std::int64_t prefix = plan.prefixes[point];
      const Report report = run_in(Way::shared, program,
                                   {made_up_request(program, prefix + plan.own, 1, 0, prefix),
                                    made_up_request(program, prefix + plan.own, 1, 1, prefix)});
      cold.add(point, report.sequences[0].ttft_ms);
      warm.add(point, report.sequences[1].ttft_ms);
      if (turn == 0) curves.cached.push_back(report.sequences[1].cached_tokens);
    }
  }
  curves.cold = cold.spread();
  curves.warm = warm.spread();
  return curves;
}

BlockSizeTimes measure_block_sizes(Program& program, const TimingPlan& plan) {
  BlockSizeTimes curves{plan.sequences, plan.context, plan.block_sizes, {}, {}};
  Samples ms(plan.block_sizes.size()), ratio(plan.block_sizes.size());
  for (std::int64_t turn = 0; turn < plan.turns; ++turn) {
    const double flat = decode_ms(Way::flat, program, plan.sequences, plan.context);
    for (std::size_t point = 0; point < plan.block_sizes.size(); ++point) {
      const double paged =
          decode_ms(Way::paged, program, plan.sequences, plan.context, plan.block_sizes[point]);
      ms.add(point, paged);
      ratio.add(point, paged / flat);
    }
  }
  curves.ms = ms.spread();
  curves.ratio = ratio.spread();
  return curves;
}

}  // namespace

TimingPlan timing_plan(DeviceChoice device) {
  TimingPlan plan{.weights = "fairytale",
                  .turns = 5,
                  .contexts = {128, 256, 512, 1024, 2048},
                  .prompt = 64,
                  .generated = 256,
                  .prefixes = {64, 128, 256, 512, 1024, 2048},
                  .own = 32,
                  .block_sizes = {1, 2, 4, 8, 16, 32, 64, 128, 256},
                  .sequences = 4,
                  .context = 1024};
  if (device == DeviceChoice::cuda) {
    plan.weights = "qwen3-0.6b";
    for (const std::int64_t tokens : {4096, 8192}) {
      plan.contexts.push_back(tokens);
      plan.prefixes.push_back(tokens);
    }
    plan.generated = 512;
    plan.sequences = 8;
    plan.context = 2048;
  }
  return plan;
}

Program load_for_timing(const TimingPlan& plan, DeviceChoice device) {
  Options options;
  options.random_weights = plan.weights;
  options.device = device;
  return load_program(Step::prefix_cache, std::move(options));
}

TimeCurves time_curves(Program& program, const TimingPlan& plan) {
  // Threads, caches and, on a GPU, kernels are ready after this.
  for (const Way way : {Way::no_cache, Way::flat, Way::gather, Way::paged, Way::shared})
    decode_ms(way, program, plan.sequences, plan.contexts.front());
  ProgressLine progress("Measuring");
  TimeCurves curves;
  curves.decode = measure_decode(program, plan);
  progress(0.25);
  curves.generation = measure_generation(program, plan);
  progress(0.5);
  curves.first_token = measure_first_token(program, plan);
  progress(0.75);
  curves.block_sizes = measure_block_sizes(program, plan);
  return curves;
}

}  // namespace kvcache
