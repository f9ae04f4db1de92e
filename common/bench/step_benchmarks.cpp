/// @file
/// See step_benchmarks.h. A benchmark is one run of requests in a fresh cache; what is timed is read from the
/// run's own report, so that it is what a user sees. `note` says how each number is made and what it does not
/// say.
#include "common/bench/step_benchmarks.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "common/bench/memory_rate.h"
#include "common/cli/run_main.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

constexpr const char* kNote =
    "Every run starts with an empty cache; the process has generated a few tokens before the first. "
    "decode: the median pass, the first one of a run left out. time_to_first_token: prefill and the choice "
    "of a "
    "token. generate: prefill and decoding. shared_prefix: until all have their first token; cached_tokens "
    "says "
    "what was found. of_memory: the weights and the K and V that a decode step must read, per time, as a "
    "share "
    "of the measured read rate. Single runs on a shared machine vary: compare medians.";

/// One workload.
struct Workload {
  std::string name;
  std::int64_t prompt, sequences, tokens;  ///< tokens of each prompt; how many; new tokens of each
  std::int64_t shared = 0;                 ///< tokens that all prompts begin with
  enum class Timed { first_token, decode_pass, all, all_first_tokens } timed;
};

using enum Workload::Timed;

const std::vector<Workload>& workloads() {
  static const std::vector<Workload> list{
      {"time_to_first_token/prompt:128", 128, 1, 1, 0, first_token},
      {"time_to_first_token/prompt:512", 512, 1, 1, 0, first_token},
      {"time_to_first_token/prompt:2048", 2048, 1, 1, 0, first_token},
      {"decode/context:128", 128, 1, 12, 0, decode_pass},
      {"decode/context:512", 512, 1, 12, 0, decode_pass},
      {"decode/context:1024", 1024, 1, 12, 0, decode_pass},
      {"decode/context:2048", 2048, 1, 8, 0, decode_pass},
      {"decode/context:512/sequences:8", 512, 8, 8, 0, decode_pass},
      {"decode/context:2048/sequences:8", 2048, 8, 4, 0, decode_pass},
      {"generate/prompt:64/tokens:256", 64, 1, 256, 0, all},
      {"shared_prefix/prefix:512/requests:16", 544, 16, 1, 512, all_first_tokens},
  };
  return list;
}

/// Prompts of made-up ids: the shared part first, then each its own.
std::vector<Request> requests_of(const Workload& workload, const ModelConfig& config) {
  const auto id = [&](std::int64_t n) {
    return static_cast<std::int32_t>((n * 7919 + 1) % config.vocab_size);
  };
  std::vector<Request> requests(static_cast<std::size_t>(workload.sequences));
  for (std::int64_t s = 0; s < workload.sequences; ++s) {
    Request& request = requests[static_cast<std::size_t>(s)];
    for (std::int64_t n = 0; n < workload.prompt; ++n)
      request.prompt_ids.push_back(n < workload.shared ? id(n) : id(n + 3001 * (s + 1)));
    request.max_tokens = workload.tokens;
    request.ignore_eos = true;
  }
  return requests;
}

double median(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  const auto middle = numbers.begin() + std::ssize(numbers) / 2;
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

double seconds(const Report& report, Workload::Timed timed) {
  const std::vector<double>& passes = report.timing.decode_pass_ms;
  switch (timed) {
    case first_token:
      return report.sequences[0].ttft_ms * 1e-3;
    case decode_pass:
      return median({passes.begin() + 1, passes.end()}) * 1e-3;
    case all:
      return (report.timing.prefill_ms + report.timing.decode_ms) * 1e-3;
    case all_first_tokens:
      return report.timing.prefill_ms * 1e-3;
  }
  return 0;
}

/// Ids that came back in the time that is measured.
double tokens(const Report& report, const Workload& workload) {
  switch (workload.timed) {
    case first_token:
      return 1;
    case decode_pass:
    case all_first_tokens:
      return static_cast<double>(workload.sequences);
    case all:
      return static_cast<double>(report.sequences[0].output_ids.size());
  }
  return 0;
}

void set_counters(benchmark::State& state, const Report& report, const Workload& workload, double time) {
  const auto over_sequences = [&](auto number) {
    return std::transform_reduce(report.sequences.begin(), report.sequences.end(), 0.0, std::plus{}, number);
  };
  state.counters["tokens_per_s"] = tokens(report, workload) / time;
  state.counters["kv_rows"] = static_cast<double>(report.kv_rows.computed);
  state.counters["kv_reserved"] = static_cast<double>(report.kv_memory.reserved_bytes);
  state.counters["kv_used"] = static_cast<double>(report.kv_memory.used_bytes);
  state.counters["waste_percent"] = report.kv_memory.waste_percent;
  state.counters["cached_tokens"] =
      over_sequences([](const SequenceReport& s) { return static_cast<double>(s.cached_tokens); });
  state.counters["preemptions"] = static_cast<double>(report.counters.preemptions);
  state.counters["failed"] =
      over_sequences([](const SequenceReport& s) { return s.finish_reason == "length" ? 0.0 : 1.0; });
}

/// What a decode pass in the middle of the run must read: every weight once, and each sequence's K and V.
double bytes_of_a_decode_pass(const Program& program, const Workload& workload) {
  const ModelConfig& config = program.model->config();
  const std::int64_t context = workload.prompt + workload.tokens / 2;
  return static_cast<double>(program.model->weight_bytes_of_a_pass() +
                             workload.sequences * context *
                                 config.kv_bytes_per_token(size_of(program.dtype)));
}

void run_workload(benchmark::State& state, Program& program, const Workload& workload,
                  const MakeCache& make_cache, double memory_rate) {
  program.requests = requests_of(workload, program.model->config());
  for (auto _ : state) {
    const Cache cache = make_cache(program);
    const Report report = run(*program.model, *cache.manager, *cache.store, program.requests);
    const double time = seconds(report, workload.timed);
    state.SetIterationTime(time);
    set_counters(state, report, workload, time);
    if (workload.timed == decode_pass)
      state.counters["of_memory"] = bytes_of_a_decode_pass(program, workload) / time / memory_rate;
  }
}

/// Threads, caches and, on a GPU, kernels are ready after this.
void warm_up(Program& program, const MakeCache& make_cache) {
  program.requests = requests_of({"", 64, 2, 8, 0, all}, program.model->config());
  const Cache cache = make_cache(program);
  run(*program.model, *cache.manager, *cache.store, program.requests);
}

}  // namespace

std::optional<Options> own_options(Step step, int argc, char** argv) {
  std::vector<const char*> words;
  bool model_named = false;
  for (const char* word : std::span(argv, static_cast<std::size_t>(argc))) {
    if (std::strncmp(word, "--benchmark_", 12) == 0) continue;
    words.push_back(word);
    model_named |= std::strncmp(word, "--model", 7) == 0 || std::strncmp(word, "--random-weights", 16) == 0;
  }
  if (!model_named) words.insert(words.end(), {"--random-weights", "fairytale"});
  return parse_options(step, static_cast<int>(words.size()), words.data());
}

int run_step_benchmarks(Step step, int argc, char** argv, const MakeCache& make_cache) {
  return run_main([&] {
    const std::optional<Options> options = own_options(step, argc, argv);
    if (!options) return 0;
    Program program = load_program(step, *options);
    warm_up(program, make_cache);
    const double memory_rate = memory_read_rate(program);

    benchmark::AddCustomContext("step", name_of(step));
    benchmark::AddCustomContext("model", program.model_name);
    benchmark::AddCustomContext("device", program.gpu ? "cuda" : "cpu");
    benchmark::AddCustomContext("dtype", std::string(name_of(program.dtype)));
    benchmark::AddCustomContext("threads", fmt::format("{}", program.pool->threads()));
    benchmark::AddCustomContext("memory_read_GB_per_s", fmt::format("{:.1f}", memory_rate * 1e-9));
    benchmark::AddCustomContext("note", kNote);
    for (const Workload& workload : workloads()) {
      if (workload.prompt + workload.tokens > program.model->config().max_position_embeddings) continue;
      benchmark::RegisterBenchmark(
          workload.name.c_str(),
          [&](benchmark::State& state) { run_workload(state, program, workload, make_cache, memory_rate); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
    std::vector<char*> words{argv[0]};
    for (char* word : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
      if (std::strncmp(word, "--benchmark_", 12) == 0) words.push_back(word);
    }
    int count = static_cast<int>(words.size());
    words.push_back(nullptr);
    benchmark::Initialize(&count, words.data());
    if (benchmark::ReportUnrecognizedArguments(count, words.data())) return 2;
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
  });
}

}  // namespace kvcache
