/// @file
/// See step_benchmarks.h. A benchmark is one run of a workload (workloads.h) in a fresh cache. Its time comes
/// from the run's own report, so it is what a user sees. `kNote` says how each number is made and what it
/// does not say.
#include "common/bench/step_benchmarks.h"

#include <benchmark/benchmark.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/bench/benchmark_program.h"
#include "common/bench/gpu_pass_timer.h"
#include "common/bench/memory_rate.h"
#include "common/bench/workloads.h"
#include "common/cli/machine.h"
#include "common/cli/run_main.h"
#include "common/tokenizer/tokenizer_json.h"
#include "fmt/format.h"
#ifdef WITH_CUDA
#include "common/cuda/device.h"
#endif

namespace kvcache {
namespace {

constexpr const char* kNote =
    "Every run starts with an empty cache, except warm runs: there an earlier request has computed the "
    "shared prefix. A pass larger than any before runs once untimed. time_to_first_token: prefill and the "
    "choice of a token. decode: the median pass, without the first two of a run. generate: prefill and "
    "decoding. shared_prefix: until all requests, one after the other, have their first token; "
    "cached_tokens counts the tokens that were found. Times are wall times. On a GPU, gpu_ms lies between "
    "two CUDA events, before the first kernel of a pass and after its last. It includes the time in which "
    "the GPU waits for the host to start the next kernel. From the third decode pass of a kind on, the host "
    "starts a whole pass at once, as a CUDA graph. Prefills, passes of step 1 and passes that gather are no "
    "graphs, so part of their extra time is the host's. of_memory: the rate at which a decode pass reads "
    "the weights and the K and V that it needs, as a share of the measured read rate; above 1, the "
    "processor's caches held some of them. Workloads longer than the model's context are left out. Single "
    "runs on a shared machine "
    "vary: compare medians.";

/// The program of the step that is measured.
struct Subject {
  Program& program;
  const MakeCache& make_cache;
  double memory_rate = 0;           ///< bytes per second; 0: not measured yet
  std::int64_t largest_so_far = 0;  ///< the most rows of a pass so far
};

/// One run of a workload.
struct Measured {
  Report report;
  double ms = 0, gpu_ms = 0;  ///< of the timed part; gpu_ms is 0 on the CPU
};

Measured run_once(const Subject& subject, const Workload& workload) {
  Program& program = subject.program;
  const std::int64_t vocab_size = program.model->config().vocab_size;
  program.requests = requests_of(workload, vocab_size);
  const Cache cache = subject.make_cache(program);
  if (workload.warm) {
    const Request before = request_before(workload, vocab_size);
    expect_no_error(run(*program.model, *cache.manager, *cache.store, {&before, 1}));
  }
  GpuPassTimer timer(program);
  RunSettings settings;
  timer.listen(settings);
  Measured measured{run(*program.model, *cache.manager, *cache.store, program.requests, settings)};
  expect_no_error(measured.report);

  std::vector<double> prefill_ms;
  for (const SequenceReport& sequence : measured.report.sequences) prefill_ms.push_back(sequence.ttft_ms);
  measured.ms = timed_ms(workload.timed, prefill_ms, measured.report.timing.decode_pass_ms);
  if (measured.ms <= 0) {
    throw InputError(fmt::format("{}: the cache is too small for the passes to be timed; give it more memory",
                                 workload.name));
  }
  const std::vector<double> passes = timer.pass_ms();  // prefills first, unless a sequence was preempted
  if (const std::size_t prefills = prefill_ms.size(); passes.size() >= prefills)
    measured.gpu_ms =
        timed_ms(workload.timed, std::span(passes).first(prefills), std::span(passes).subspan(prefills));
  return measured;
}

/// Runs untimed passes of this size first: they wake threads, let buffers grow and, on a GPU, load kernels. A
/// buffer that grows in a decode pass would spoil its CUDA graph, so the first warm-up has as many sequences
/// as the largest workload.
void warm_up(Subject& subject, const Workload& workload) {
  if (subject.largest_so_far == 0)
    run_once(subject, {"warm-up", 64, subject.program.gpu ? 64 : 8, 3, Workload::Timed::all});
  if (workload.prompt > subject.largest_so_far)
    run_once(subject, {"warm-up", workload.prompt, 1, 1, Workload::Timed::all});
  subject.largest_so_far = std::max(subject.largest_so_far, workload.prompt);
}

/// The ids of the timed part; for decode passes, of one pass on average.
double tokens(const Report& report, const Workload& workload) {
  if (workload.timed == Workload::Timed::decode_pass) {
    return static_cast<double>(report.timing.decode_tokens) /
           static_cast<double>(report.timing.decode_pass_ms.size());
  }
  double ids = 0;
  for (const SequenceReport& sequence : report.sequences)
    ids += static_cast<double>(sequence.output_ids.size());
  return ids;
}

/// The bytes that a decode pass in the middle of a run reads: every weight once, and each sequence's K and V.
double bytes_of_a_decode_pass(const Program& program, const Workload& workload) {
  const std::int64_t per_token = program.model->config().kv_bytes_per_token(size_of(program.dtype));
  return static_cast<double>(program.model->weight_bytes_of_a_pass()) +
         static_cast<double>(workload.sequences * per_token) * context_of(workload);
}

void set_counters(benchmark::State& state, const Subject& subject, const Workload& workload,
                  const Measured& measured) {
  const Report& report = measured.report;
  const auto over_sequences = [&](auto number) {
    return std::transform_reduce(report.sequences.begin(), report.sequences.end(), 0.0, std::plus{}, number);
  };
  state.counters["context"] = context_of(workload);
  state.counters["tokens_per_s"] = tokens(report, workload) / measured.ms * 1e3;
  state.counters["kv_rows"] = static_cast<double>(report.kv_rows.computed);
  state.counters["kv_reserved"] = static_cast<double>(report.kv_memory.reserved_bytes);
  state.counters["kv_used"] = static_cast<double>(report.kv_memory.used_bytes);
  state.counters["waste_percent"] = report.kv_memory.waste_percent();
  state.counters["gathered_bytes"] = static_cast<double>(report.counters.gathered_bytes);
  state.counters["cached_tokens"] =
      over_sequences([](const SequenceReport& s) { return static_cast<double>(s.cached_tokens); });
  state.counters["preemptions"] = static_cast<double>(report.counters.preemptions);
  // Passes beyond one per token: the cache was too small for all sequences at once, and some waited.
  state.counters["extra_passes"] =
      static_cast<double>(std::ssize(report.timing.decode_pass_ms) - (workload.tokens - 1));
  state.counters["failed"] =
      over_sequences([](const SequenceReport& s) { return s.finish_reason == "length" ? 0.0 : 1.0; });
  if (subject.program.gpu) state.counters["gpu_ms"] = measured.gpu_ms;
  if (workload.timed == Workload::Timed::decode_pass) {
    const double per_second = bytes_of_a_decode_pass(subject.program, workload) / measured.ms * 1e3;
    state.counters["of_memory"] = per_second / subject.memory_rate;
    state.counters["memory_GB_per_s"] = subject.memory_rate * 1e-9;
  }
}

void run_workload(benchmark::State& state, Subject& subject, const Workload& workload) {
  warm_up(subject, workload);
  if (workload.timed == Workload::Timed::decode_pass && subject.memory_rate == 0)
    subject.memory_rate =
        memory_read_rate(subject.program);  // outside of the loop, since the loop counts CPU time
  for (auto _ : state) {
    const Measured measured = run_once(subject, workload);
    state.SetIterationTime(measured.ms * 1e-3);
    set_counters(state, subject, workload, measured);
  }
}

/// The steps' options that a benchmark uses: for the model, the device, and the cache.
const std::pair<const char*, std::vector<std::string_view>> kUsed[] = {
    {"all steps", {"--model", "--random-weights", "--device", "--dtype", "--threads"}},
    {"step 2", {"--max-seq-len"}},
    {"steps 3, 4", {"--block-size", "--num-blocks", "--kv-memory", "--attention", "--debug-fill"}},
    {"step 4", {"--prefix-cache", "--salt", "--host-blocks"}}};

bool is_used(std::string_view option) {
  return std::ranges::any_of(kUsed,
                             [&](const auto& of) { return std::ranges::count(of.second, option) > 0; });
}

/// @param words  the program's path and its words without those of Google Benchmark
/// @throws InputError for an option of the steps that a benchmark does not use, and for a word that belongs
/// to none: a benchmark has no prompt, to which parse_options would point.
void refuse_unused(Step step, std::span<const char* const> words) {
  for (std::size_t n = 1; n < words.size(); ++n) {
    const std::string_view word = words[n], name = word.substr(0, word.find('='));
    if (is_option(name) && !is_used(name))
      throw InputError(
          fmt::format("{} has no use in a benchmark, which makes its own requests; leave it out", name));
    if (!word.starts_with("--") && name != "-h")
      throw InputError(fmt::format("the word {} belongs to no option; --help lists the options of {}",
                                   in_quotes(word), program_name(words[0])));
    if (name == "--help" || name == "-h" || name == "--version") return;  // parse_options goes on
    if (!is_option(name)) {
      std::vector<std::string_view> known;
      for (const auto& [steps, options] : kUsed)
        std::ranges::copy_if(options, std::back_inserter(known),
                             [step](std::string_view option) { return is_option(step, option); });
      throw unknown_option(name, known, program_name(words[0]));
    }
    if (takes_value(name) && name == word) ++n;  // the next word is its value
  }
}

/// The text of `--help` for the benchmarks of a step.
std::string usage(Step step) {
  std::string text = fmt::format(
      "Usage: bench_{} [OPTIONS]\n\n"
      "Times the workloads that all four steps have, under the same names; ./steps bench runs the four\n"
      "programs in turns and compares them. The model is --random-weights fairytale unless another is "
      "named.\n\n"
      "Options of the steps, which {} --help explains:\n",
      name_of(step), name_of(step));
  for (const auto& [steps, options] : kUsed)
    text += fmt::format("  {:<12}{}\n", steps, fmt::join(options, " "));
  return text;
}

bool is_google_benchmarks(std::string_view word) {
  return word.starts_with("--benchmark_") || word == "--v" || word.starts_with("--v=");
}

}  // namespace

std::optional<Options> own_options(Step step, std::span<char* const> line) {
  std::vector<const char*> words;
  std::ranges::remove_copy_if(line, std::back_inserter(words), is_google_benchmarks);
  const bool model_named = std::ranges::any_of(words, [](std::string_view word) {
    return word.starts_with("--model") || word.starts_with("--random-weights");
  });
  refuse_unused(step, words);  // first: what follows may ask for such an option
  if (!model_named) words.insert(words.begin() + 1, {"--random-weights", "fairytale"});
  std::optional<Options> options = parse_options(step, static_cast<int>(words.size()), words.data());
  if (!options) return options;
  options->prompts.emplace_back(std::vector<std::int32_t>{0});  // an id, since a text would need a tokenizer
  return options;
}

namespace {

/// Adds what Google Benchmark writes beside the numbers: step, model, device.
void describe(const Program& program) {
  benchmark::AddCustomContext("step", name_of(program.step));
  benchmark::AddCustomContext("model", program.model_name);
  benchmark::AddCustomContext("device", program.gpu ? "cuda" : "cpu");
  benchmark::AddCustomContext("dtype", std::string(name_of(program.dtype)));
  benchmark::AddCustomContext("processor", processor_name("cpu"));
#ifdef WITH_CUDA
  if (program.gpu) benchmark::AddCustomContext("gpu", program.gpu->name());
#endif
  benchmark::AddCustomContext("threads", fmt::format("{}", program.threads->threads()));
  if (program.step == Step::paged || program.step == Step::prefix_cache)
    benchmark::AddCustomContext("attention",
                                program.options.attention == AttentionPath::gather ? "gather" : "paged");
  benchmark::AddCustomContext("note", kNote);
}

/// Registers the workloads that fit the model's context and the device.
/// @return as `add` of run_benchmarks
std::string add_workloads(Subject& subject) {
  const std::int64_t context = subject.program.model->config().max_position_embeddings;
  std::string left_out;
  for (const Workload& workload : workloads()) {
    if (workload.on_gpu && !subject.program.gpu) continue;
    if (workload.prompt + workload.tokens > context) {
      left_out = fmt::format(
          "; workloads longer than the model's context of {} tokens need a model with a longer one", context);
      continue;
    }
    benchmark::RegisterBenchmark(
        workload.name.c_str(),
        [&subject, workload](benchmark::State& state) { run_workload(state, subject, workload); })
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  }
  return left_out;
}

}  // namespace

int run_step_benchmarks(Step step, int argc, char** argv, const MakeCache& make_cache) {
  return run_main([&] {
    const std::span<char* const> line(argv, static_cast<std::size_t>(argc));
    if (std::ranges::any_of(line, asks_for_help)) {
      print_benchmark_help(usage(step), kNote);
      return 0;
    }
    const std::optional<Options> options = own_options(step, line);
    if (!options) return 0;
    Program program = load_program(step, *options);
    Subject subject{program, make_cache};
    describe(program);
    std::vector<char*> words{line[0]};
    std::ranges::copy_if(line.subspan(1), std::back_inserter(words), is_google_benchmarks);
    run_benchmarks(words, [&] { return add_workloads(subject); });
    return 0;
  });
}

}  // namespace kvcache
