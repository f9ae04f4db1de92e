/// @file
/// Four measurements of serving: the same requests one at a time and many at once, in the cache of each step
/// that serves; the price of the prefix cache where it finds nothing; how many rows a pass should have; and,
/// on a GPU, how many tokens a second long requests get. Or, for a replay, what a pass costs, or a trace
/// served for real (for_replay.h). `./steps serve-bench` runs it.
#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/bench/statistics.h"
#include "common/bench/step_benchmarks.h"
#include "common/cli/program.h"
#include "common/cli/run_main.h"
#include "common/engine/engine.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "step2_flat_cache/make_cache.h"
#include "step3_paged/make_cache.h"
#include "step4_prefix_cache/bench/for_replay.h"
#include "step4_prefix_cache/make_cache.h"

namespace kvcache {
namespace {

constexpr std::int64_t kRequests = 48;
constexpr std::int64_t kMostPrompt = 64, kMostOutputs = 128;  // tokens of a request; half of it on average
constexpr std::int64_t kSharedTokens = 256;                   // in front of all prompts, if they share any
constexpr std::int64_t kLongest = 512;  // what step 2 reserves: it cannot know how long an answer will be
constexpr std::int64_t kMemory = 8;     // sequences of that length
constexpr int kRounds = 3;              // one at a time, then many at once
constexpr int kLeastTurns = 9;          // of the same passes with and without the prefix cache,
constexpr double kLeastSeconds = 8;     // and how long they go on
constexpr std::int64_t kStreams = 8, kStreamPrompt = 16;        // that decode beside a long prompt
constexpr std::int64_t kLongPrompt = 1000;                      // tokens, if the model takes as many
constexpr std::int64_t kRowsOfAPass[] = {256, 128, 64, 32};     // of the streams and the prompt, at most
constexpr int kPromptRounds = 9;                                // each of them in turn
constexpr std::int64_t kCrowds[] = {64, 256};                   // long requests that come at once
constexpr std::int64_t kLeastTokens = 100, kMostTokens = 1024;  // of a prompt, and of an answer
constexpr std::int64_t kRowsForCrowds[] = {256, 2048};          // of a pass, at most

/// Requests of random lengths, the same every time.
/// @param shared  tokens that all of them begin with
/// @param seed    of what they do not share
std::vector<GenerationRequest> requests_of(std::int64_t shared, const ModelConfig& config,
                                           std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t bound) { return static_cast<std::int64_t>(random()) % bound; };
  std::vector<GenerationRequest> requests(kRequests);
  for (GenerationRequest& request : requests) {
    for (std::int64_t n = 0; n < shared; ++n)
      request.prompt_ids.push_back(static_cast<std::int32_t>(n * 7919 % config.vocab_size));
    for (std::int64_t n = 1 + below(kMostPrompt); n > 0; --n)
      request.prompt_ids.push_back(static_cast<std::int32_t>(below(config.vocab_size)));
    request.max_tokens = 1 + below(kMostOutputs);
    request.ignore_eos = true;
  }
  return requests;
}

struct Outcome {
  double seconds = 0;
  std::int64_t tokens = 0;  // generated
  std::size_t running_at_most = 0;
  std::int64_t preemptions = 0;
  double host_us = 0;   // per pass
  double prepared = 0;  // of the passes

  double tokens_per_s() const { return static_cast<double>(tokens) / seconds; }
};

/// All requests come at once; the time until the last has ended.
/// @param rows  of a pass at most
Outcome serve(Program& program, const MakeCache& make_cache, const std::vector<GenerationRequest>& requests,
              std::int64_t max_sequences, std::int64_t rows = 256) {
  const Cache cache = make_cache(program);
  Engine engine(*program.model, *cache.manager, *cache.store, nullptr,
                {.max_batch_tokens = rows, .max_sequences = max_sequences});
  Outcome outcome;
  const Engine::Clock::time_point begin = Engine::Clock::now();
  GenerationId id = 0;
  std::string error;
  const auto hear = [&error](const GenerationEvent& event) {
    if (!event.error.empty()) error = event.error;
  };
  for (const GenerationRequest& request : requests) engine.add(id++, request, hear);
  while (engine.run_pass())
    outcome.running_at_most = std::max(outcome.running_at_most, engine.scheduler().running().size());
  if (!error.empty()) throw RunError(error);
  outcome.seconds = std::chrono::duration<double>(Engine::Clock::now() - begin).count();
  const EngineTotals& totals = engine.totals();
  const auto passes = static_cast<double>(totals.passes);
  outcome.tokens = totals.generated_tokens;
  outcome.host_us = totals.host_ms * 1e3 / passes;
  outcome.prepared = static_cast<double>(totals.prepared_passes) / passes;
  outcome.preemptions = engine.scheduler().preemptions();
  return outcome;
}

/// The memory that every step gets: kMemory sequences of kLongest tokens.
void give_memory(Program& program) {
  program.options.max_seq_len = kLongest;
  Request any;
  any.prompt_ids = {0};
  program.requests.assign(kMemory, any);
  program.options.num_blocks = kMemory * kLongest / program.options.block_size;
}

void compare_batching(Program& program, std::int64_t shared) {
  const std::vector<GenerationRequest> requests = requests_of(shared, program.model->config());
  fmt::print(
      "\n{} requests of 1 to {} prompt tokens, {} that all have in common before them, and 1 to {} new "
      "ones; medians of {} rounds\n",
      kRequests, kMostPrompt, shared, kMostOutputs, kRounds);
  fmt::print("{:20} {:>14} {:>14} {:>6} {:>16} {:>12} {:>16} {:>14}\n", "", "one at a time", "many at once",
             "ratio", "running at most", "preemptions", "prepared passes", "host between");
  const std::pair<Step, MakeCache> steps[] = {{Step::flat_cache, make_flat_cache},
                                              {Step::paged, make_paged_cache},
                                              {Step::prefix_cache, make_prefix_cache}};
  for (const auto& [step, make_cache] : steps) {
    std::vector<double> alone, together, ratios;  // tokens per second
    Outcome many;
    for (int round = 0; round < kRounds; ++round) {
      alone.push_back(serve(program, make_cache, requests, 1).tokens_per_s());
      many = serve(program, make_cache, requests, kRequests);
      together.push_back(many.tokens_per_s());
      ratios.push_back(together.back() / alone.back());
    }
    fmt::print("{:20} {:>10.0f} t/s {:>10.0f} t/s {:>6.2f} {:>16} {:>12} {:>15.0f}% {:>11.0f} us\n",
               name_of(step), median(alone), median(together), median(ratios), many.running_at_most,
               many.preemptions, 100 * many.prepared, many.host_us);
  }
}

/// An engine with or without the prefix cache, in a pool in which every block was used.
struct Contender {
  Contender(Program& program, bool prefix_cache)
      : cache((program.options.prefix_cache = prefix_cache, make_prefix_cache(program))),
        engine(*program.model, *cache.manager, *cache.store, nullptr,
               {.max_batch_tokens = 256, .max_sequences = kRequests}) {
    add(requests_of(0, program.model->config(), /*seed=*/2));
    while (engine.run_pass()) {
    }
  }
  void add(const std::vector<GenerationRequest>& requests) {
    for (const GenerationRequest& request : requests)
      engine.add(id++, request, [](const GenerationEvent&) {});
  }
  /// @return seconds; none if there was nothing to compute
  std::optional<double> time_pass() {
    const Engine::Clock::time_point begin = Engine::Clock::now();
    if (!engine.run_pass()) return std::nullopt;
    return std::chrono::duration<double>(Engine::Clock::now() - begin).count();
  }

  Cache cache;
  Engine engine;
  GenerationId id = 0;
};

/// Requests that have nothing in common, with and without the prefix cache. The passes of the two are the
/// same, and each is followed by its like, so that what disturbs the machine disturbs both.
void measure_prefix_cache(Program& program) {
  Contender off(program, false), on(program, true);
  std::vector<double> ratios;
  double seconds = 0;
  for (std::uint32_t turn = 0; turn < kLeastTurns || seconds < kLeastSeconds; ++turn) {
    const std::vector<GenerationRequest> requests = requests_of(0, program.model->config(), 3 + turn);
    off.add(requests);
    on.add(requests);
    double seconds_off = 0, seconds_on = 0;
    for (bool on_first = false;; on_first = !on_first) {
      std::optional<double> pass_on = on_first ? on.time_pass() : std::nullopt;
      const std::optional<double> pass_off = off.time_pass();
      if (!on_first) pass_on = on.time_pass();
      if (!pass_on && !pass_off) break;
      seconds_off += pass_off.value_or(0);
      seconds_on += pass_on.value_or(0);
    }
    ratios.push_back(seconds_off / seconds_on);
    seconds += seconds_off + seconds_on;
  }
  const auto host_share = [](const Contender& contender) {
    const EngineTotals& totals = contender.engine.totals();
    return 100 * totals.host_ms / (totals.host_ms + totals.model_ms);
  };
  fmt::print(
      "\nprefix cache on against off, nothing in common, pass by pass in turn: {:.3f} of the speed, the "
      "median of {} turns;\nhalf of them lie within {:.1f}%; of the time no pass was being computed: {:.2f}% "
      "on, "
      "{:.2f}% off\n",
      median(ratios), ratios.size(), quartile_distance_percent(ratios), host_share(on), host_share(off));
}

/// How long eight streams wait for a long prompt that comes beside them, and how long the prompt waits.
struct Waits {
  std::vector<double> pauses;        // ms between two tokens of each stream, while the prompt is computed
  std::vector<double> first_tokens;  // ms from the prompt's arrival, each of another round

  double most_pauses() const {
    std::vector<double> sorted = pauses;
    std::ranges::sort(sorted);
    return sorted[(sorted.size() - 1) * 99 / 100];
  }
};

GenerationRequest request_of(std::int64_t length, const ModelConfig& config) {
  GenerationRequest request;
  for (std::int64_t n = 0; n < length; ++n)
    request.prompt_ids.push_back(static_cast<std::int32_t>((length + n * 7919) % config.vocab_size));
  request.max_tokens = kLongest;
  request.ignore_eos = true;
  return request;
}

/// Tokens of the long prompt; the model adds one.
std::int64_t long_prompt(const ModelConfig& config) {
  return std::min(kLongPrompt, config.max_position_embeddings - 1);
}

/// @param rows  of a pass at most
void measure_waits(Program& program, std::int64_t rows, Waits& waits) {
  const ModelConfig& config = program.model->config();
  const Cache cache = make_paged_cache(program);
  Engine engine(*program.model, *cache.manager, *cache.store, nullptr,
                {.max_batch_tokens = rows, .max_sequences = kStreams + 1});
  GenerationId id = 0;
  for (; id < kStreams; ++id)
    engine.add(id, request_of(kStreamPrompt, config), [](const GenerationEvent&) {});
  for (int pass = 0; pass < 2 * kStreams; ++pass) engine.run_pass();  // all of them decode by then
  bool has_come = false;
  const Engine::Clock::time_point begin = Engine::Clock::now();
  engine.add(id, request_of(long_prompt(config), config), [&](const GenerationEvent&) { has_come = true; });
  const auto ms_since = [](Engine::Clock::time_point time) {
    return std::chrono::duration<double, std::milli>(Engine::Clock::now() - time).count();
  };
  while (!has_come) {
    const Engine::Clock::time_point pass = Engine::Clock::now();
    engine.run_pass();  // a token for each stream
    waits.pauses.push_back(ms_since(pass));
  }
  waits.first_tokens.push_back(ms_since(begin));
}

/// Fewer rows of a pass: streams wait less for others' prompts. More: prompts are done sooner.
void compare_rows(Program& program) {
  std::vector<Waits> waits(std::size(kRowsOfAPass));
  for (int round = 0; round < kPromptRounds; ++round) {
    for (std::size_t n = 0; n < waits.size(); ++n) measure_waits(program, kRowsOfAPass[n], waits[n]);
  }
  fmt::print(
      "\n{} streams and a prompt of {} tokens that comes beside them, by --max-batch-tokens; {} rounds\n"
      "{:20} {:>24} {:>7} {:>32} {:>7}\n",
      kStreams, long_prompt(program.model->config()), kPromptRounds, "", "99% of the pauses up to", "ratio",
      "the prompt's first token after", "ratio");
  const double pause = waits[0].most_pauses(), first_token = median(waits[0].first_tokens);
  for (std::size_t n = 0; n < waits.size(); ++n) {
    const double pauses = waits[n].most_pauses(), first_tokens = median(waits[n].first_tokens);
    fmt::print("{:<20} {:>21.2f} ms {:>7.2f} {:>29.1f} ms {:>7.2f}\n",
               fmt::format("{} rows", kRowsOfAPass[n]), pauses, pauses / pause, first_tokens,
               first_tokens / first_token);
  }
}

/// Requests of random lengths, and a pool with room for all of them.
std::vector<GenerationRequest> crowd_of(std::int64_t count, Program& program) {
  std::mt19937 random(4);
  const auto below = [&](std::int64_t bound) { return static_cast<std::int64_t>(random()) % bound; };
  const auto length = [&] { return kLeastTokens + below(kMostTokens - kLeastTokens + 1); };
  std::vector<GenerationRequest> requests(static_cast<std::size_t>(count));
  std::int64_t blocks = 0;
  for (GenerationRequest& request : requests) {
    for (std::int64_t n = length(); n > 0; --n)
      request.prompt_ids.push_back(static_cast<std::int32_t>(below(program.model->config().vocab_size)));
    request.max_tokens = length();
    request.ignore_eos = true;
    blocks += (std::ssize(request.prompt_ids) + request.max_tokens) / program.options.block_size + 1;
  }
  program.options.num_blocks = blocks + blocks / 99 + 1;  // a hundredth is the watermark's
  return requests;
}

/// Long requests, all at once.
void measure_crowds(Program& program) {
  if (!program.gpu || program.model->config().max_position_embeddings < 2 * kMostTokens) {
    fmt::print("\nleft out: {} long requests, which need a GPU and a context of {}\n",
               fmt::join(kCrowds, " and "), 2 * kMostTokens);
    return;
  }
  fmt::print(
      "\nrequests of {0} to {1} prompt tokens and {0} to {1} new ones, all at once, in step 4; medians "
      "of {2} rounds\n{3:30} {4:>14} {5:>16} {6:>12} {7:>16}\n",
      kLeastTokens, kMostTokens, kRounds, "", "new tokens", "running at most", "preemptions",
      "prepared passes");
  for (const std::int64_t crowd : kCrowds) {
    const std::vector<GenerationRequest> requests = crowd_of(crowd, program);
    for (const std::int64_t rows : kRowsForCrowds) {
      std::vector<double> rates;  // tokens per second
      Outcome outcome;
      for (int round = 0; round < kRounds; ++round) {
        outcome = serve(program, make_prefix_cache, requests, crowd, rows);
        rates.push_back(outcome.tokens_per_s());
      }
      fmt::print("{:30} {:>10.0f} t/s {:>16} {:>12} {:>15.0f}%\n",
                 fmt::format("{} requests, {} rows a pass", crowd, rows), median(rates),
                 outcome.running_at_most, outcome.preemptions, 100 * outcome.prepared);
    }
  }
}

/// Where it runs and on what; all else the benchmark sets itself.
constexpr std::string_view kOptions[] = {"--model",   "--random-weights", "--device",   "--dtype",
                                         "--threads", "--block-size",     "--attention"};
/// Of replays, taken off the line before (for_replay.h).
constexpr std::string_view kOptionsForReplay[] = {"--cost", "--traffic", "--trace-block",
                                                  "--max-batch-tokens"};

/// @throws InputError for any other option.
void refuse_others(std::span<char* const> words) {
  for (const std::string_view word : words) {
    const std::string_view name = word.substr(0, word.find('='));
    if (name.starts_with("--") && std::ranges::count(kOptions, name) == 0)
      throw InputError(fmt::format(
          "{} has no use here: the benchmark sets requests, pool and sharing; its options are {}, {}", name,
          fmt::join(kOptions, ", "), fmt::join(kOptionsForReplay, ", ")));
  }
}

void print_help() {
  fmt::print(
      "Usage: bench_serving [OPTIONS]\n\n"
      "Times four things in the serving engine:\n"
      "- the same requests one at a time and many at once, in equally large caches of steps 2, 3 and 4;\n"
      "- requests with nothing in common, with the prefix cache and without, pass by pass in turn;\n"
      "- eight streams and a long prompt beside them, with passes of 256 to 32 rows;\n"
      "- on a GPU, 64 and 256 long requests at once in step 4, with passes of 256 and 2,048 rows.\n"
      "The model is --random-weights fairytale unless another is named.\n\n"
      "For ./steps replay, instead of these four:\n"
      "  --cost FILE                 fit the cost of a pass, and write it; with --traffic the cost of its "
      "passes\n"
      "  --traffic TRACE             serve the requests of a trace for real in step 4, as they come\n"
      "  --trace-block N             tokens for each of the trace's hash ids (default: 512)\n"
      "  --max-batch-tokens N        rows of a pass at most, from 16 on (default: CPU 64, CUDA 256)\n\n"
      "Options, which step4_prefix_cache --help explains:\n  {}\n",
      fmt::join(kOptions, " "));
}

int bench_serving(std::vector<char*> line) {
  refuse_values(line, {"-h", "--help"});
  if (std::ranges::any_of(std::span(line).subspan(1),
                          [](std::string_view word) { return word == "--help" || word == "-h"; })) {
    print_help();
    return 0;
  }
  const ForReplay for_replay = take_options_for_replay(line);
  refuse_others(std::span(line).subspan(1));
  const std::optional<Options> options = own_options(Step::prefix_cache, line);
  if (!options) return 0;
  if (constexpr std::int64_t most = kMemory * kLongest; options->block_size > most)
    throw InputError(fmt::format(
        "--block-size {} is more than the {} tokens of K and V that this benchmark has; give at most {}",
        options->block_size, most, most));
  Program program = load_program(Step::prefix_cache, *options);
  if (for_replay.is_given()) {
    measure(program, for_replay, kMemory * kLongest);
    return 0;
  }
  if (const std::int64_t context = program.model->config().max_position_embeddings; context < kLongest)
    throw InputError(
        fmt::format("the model's context is {} and the requests need {}; give a model with a longer one",
                    context, kLongest));
  give_memory(program);
  fmt::print("{}, {} on {}, {} threads; K and V of {} tokens\n", program.model_name, name_of(program.dtype),
             program.gpu ? "cuda" : "cpu", program.threads->threads(), kMemory * kLongest);
  serve(program, make_paged_cache, requests_of(0, program.model->config()), kRequests);  // warm
  compare_batching(program, 0);
  compare_batching(program, kSharedTokens);
  measure_prefix_cache(program);
  compare_rows(program);
  measure_crowds(program);
  return 0;
}

}  // namespace
}  // namespace kvcache

/// Takes the options of a step's benchmarks, without Google Benchmark's. @return as run_main.
int main(int argc, char** argv) {
  return kvcache::run_main([&] { return kvcache::bench_serving({argv, argv + argc}); });
}
