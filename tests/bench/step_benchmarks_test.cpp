// The contract of the four benchmark programs: the same names in all four, the promised counters, cold runs
// apart from warm ones, and no count of what did not happen. They run on a tiny model; no test looks at a
// time.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "common/bench/step_runs.h"
#include "common/bench/workloads.h"
#include "common/cli/machine.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/reference_model.h"
#include "tests/support/report_of.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr const char* kPrograms[] = {"bench_step1_no_cache", "bench_step2_flat_cache", "bench_step3_paged",
                                     "bench_step4_prefix_cache"};

/// The names that a program registers, without Google Benchmark's suffix.
std::set<std::string> names_of(const std::string& program) {
  const ProgramResult result = run_step(program, {"--benchmark_list_tests"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::set<std::string> names;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) names.insert(line.substr(0, line.find("/iterations:")));
  return names;
}

/// Runs the benchmarks that match `filter` and returns what was written.
json run_benchmarks(const std::string& program, const std::string& filter,
                    std::vector<std::string> arguments = {}) {
  const TemporaryFolder folder;
  arguments.insert(arguments.end(),
                   {"--random-weights", "tiny", "--threads", "1", "--benchmark_filter=" + filter,
                    "--benchmark_out=" + (folder / "out.json").string()});
  const ProgramResult result = run_step(program, arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(read_file(folder / "out.json"));
}

/// The first run whose name begins with `name`.
json benchmark(const json& written, const std::string& name) {
  for (const json& run : written["benchmarks"]) {
    if (run["name"].get<std::string>().starts_with(name + "/iterations")) return run;
  }
  ADD_FAILURE() << name << " did not run";
  return {};
}

// The benchmarks that every program runs here: one of each kind, and a prefix cold and warm.
constexpr const char* kOneOfEach = "prompt:64/iter|context:64/iter|generate.*tokens:64/|prefix:128";

TEST(StepBenchmarks, HaveTheSameNamesInAllFourPrograms) {
  const std::set<std::string> names = names_of("bench_step1_no_cache");
  for (const char* promised :
       {"time_to_first_token/prompt:512", "decode/context:512", "decode/context:2048/sequences:8",
        "generate/prompt:64/tokens:256", "shared_prefix/prefix:512/requests:16",
        "shared_prefix/prefix:512/requests:16/warm"}) {
    EXPECT_EQ(names.count(promised), 1U) << promised;
  }
  for (const std::string program : kPrograms) {
    std::set<std::string> these = names_of(program);
    // Growing instead of reserving is step 2's own subject.
    const auto grown =
        std::erase_if(these, [](const std::string& name) { return name.starts_with("grow/"); });
    EXPECT_EQ(grown > 0, program == "bench_step2_flat_cache");
    EXPECT_EQ(these, names) << program;
  }
}

TEST(StepBenchmarks, HaveThePromisedCountersAndCountWhatHappened) {
  for (const std::string program : kPrograms) {
    SCOPED_TRACE(program);
    const json written = run_benchmarks(program, kOneOfEach);
    EXPECT_EQ("bench_" + written["context"]["step"].get<std::string>(), program);
    for (const char* name : {"time_to_first_token/prompt:64", "decode/context:64",
                             "generate/prompt:64/tokens:64", "shared_prefix/prefix:128/requests:16"}) {
      const json run = benchmark(written, name);
      for (const char* counter :
           {"context", "tokens_per_s", "kv_rows", "kv_reserved", "kv_used", "waste_percent", "cached_tokens",
            "gathered_bytes", "failed", "preemptions", "extra_passes"})
        EXPECT_TRUE(run.contains(counter)) << name << " " << counter;
      EXPECT_EQ(run["failed"], 0);
      EXPECT_EQ(run["preemptions"], 0);
      EXPECT_EQ(run["extra_passes"], 0);
      EXPECT_EQ(run["gathered_bytes"], 0);
    }
    const json decode = benchmark(written, "decode/context:64");
    EXPECT_GT(decode["of_memory"], 0);
    EXPECT_EQ(decode["context"], 71) << "the mean of passes 3 to 11 after 64 tokens";
    EXPECT_NEAR(decode["tokens_per_s"].get<double>() * decode["real_time"].get<double>(), 1e3, 1e-6);
    EXPECT_GT(decode["memory_GB_per_s"], 0);
    // 12 new tokens: 64 rows and then 11 times one, or without a cache 64 + 65 + ... + 75.
    EXPECT_EQ(decode["kv_rows"], program == "bench_step1_no_cache" ? 834 : 75);

    // A cold prefix is found by all requests but the first, which computes it, and a warm one by all.
    const bool shares = program == "bench_step4_prefix_cache";
    const json cold = benchmark(written, "shared_prefix/prefix:128/requests:16");
    const json warm = benchmark(written, "shared_prefix/prefix:128/requests:16/warm");
    EXPECT_EQ(cold["cached_tokens"], shares ? 15 * 128 : 0);
    EXPECT_EQ(warm["cached_tokens"], shares ? 16 * 128 : 0);
    EXPECT_EQ(cold["kv_rows"], shares ? 128 + 16 * 32 : 16 * 160);
    EXPECT_EQ(warm["kv_rows"], shares ? 16 * 32 : 16 * 160) << "the run before is not counted";
  }
}

TEST(StepBenchmarks, NeedNoTokenizer) {
  const TemporaryFolder folder;
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(checkpoint_folder("qwen3-tied") / name, folder / name);
  for (const std::string program : kPrograms) {
    const ProgramResult result =
        run_step(program, {"--model", folder.path(), "--benchmark_filter=context:64/iter"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("decode/context:64"), std::string::npos) << program;
  }
}

TEST(StepBenchmarks, GrowingMovesWhatIsStoredAndMeetsNoNewPages) {
  const json written =
      run_benchmarks("bench_step2_flat_cache", "grow/(exact|doubling|reservation)/tokens:32/");
  constexpr std::int64_t kBytesOfAToken = 2 * 28 * 8 * 128 * 2;
  EXPECT_EQ(benchmark(written, "grow/exact/tokens:32")["bytes_moved"], kBytesOfAToken * 31 * 32 / 2);
  EXPECT_EQ(benchmark(written, "grow/doubling/tokens:32")["bytes_moved"],
            kBytesOfAToken * (1 + 2 + 4 + 8 + 16));
  EXPECT_EQ(benchmark(written, "grow/reservation/tokens:32")["bytes_moved"], 0);
  // 3.6 MB are 896 pages of 4 KiB. A vector takes a handful more.
  for (const char* name : {"grow/exact/tokens:32", "grow/doubling/tokens:32", "grow/reservation/tokens:32"})
    EXPECT_LT(benchmark(written, name)["page_faults"], 20) << name;
  const json fresh = run_benchmarks("bench_step2_flat_cache", "grow/reservation/fresh_memory");
  EXPECT_GT(benchmark(fresh, "grow/reservation/fresh_memory/tokens:512")["page_faults"], 20);
}

TEST(StepBenchmarks, GatherIsAnOptionOfSteps3And4AndItsBytesAreCounted) {
  const json written =
      run_benchmarks("bench_step3_paged", "context:64/iter|prefix:128", {"--attention", "gather"});
  EXPECT_EQ(written["context"]["attention"], "gather");
  const json decode = benchmark(written, "decode/context:64");
  // 75 tokens are stored at the end, and the passes gathered 64, 65, ..., 75.
  EXPECT_EQ(decode["gathered_bytes"].get<double>() * 75, decode["kv_used"].get<double>() * 834);
  EXPECT_EQ(benchmark(written, "shared_prefix/prefix:128/requests:16/warm")["gathered_bytes"],
            benchmark(written, "shared_prefix/prefix:128/requests:16")["gathered_bytes"])
      << "the run before is not counted";
  expect_refusal("bench_step1_no_cache", {"--attention", "gather"}, 2, {"--attention", "step1_no_cache"});
}

TEST(StepBenchmarks, APoolThatIsTooSmallForAllAtOnceShows) {
  const json written = run_benchmarks("bench_step3_paged", "context:128/sequences:8", {"--num-blocks", "40"});
  const json decode = benchmark(written, "decode/context:128/sequences:8");
  EXPECT_GT(decode["preemptions"], 0);
  EXPECT_GT(decode["extra_passes"], 0);
  EXPECT_LT(decode["tokens_per_s"].get<double>() * decode["real_time"].get<double>() * 1e-3, 7.99)
      << "not eight tokens per pass";
}

TEST(StepBenchmarks, RepetitionsWorkAndTheirAggregatesAreNoRuns) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "out.json";
  const ProgramResult result =
      run_step("bench_step4_prefix_cache", {"--random-weights", "tiny", "--benchmark_filter=prompt:64/iter",
                                            "--benchmark_repetitions=3", "--benchmark_out=" + file.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* kind : {"mean", "median", "stddev"})
    EXPECT_NE(read_file(file).find("\"aggregate_name\": \"" + std::string(kind)), std::string::npos) << kind;
  const StepRuns step = read_step_runs(file);
  ASSERT_EQ(step.runs.size(), 3U);
  EXPECT_EQ(step.runs[2].name, "time_to_first_token/prompt:64");
}

TEST(StepBenchmarks, RefuseOptionsThatWouldChangeNothing) {
  for (const char* option : {"--tokens=3", "--ids=1", "--json", "--temperature=1"})
    expect_refusal("bench_step2_flat_cache", {option}, 2, {std::string(option).substr(0, 5), "leave it out"});
  // One that asks for another option, or for a tokenizer, is refused before it may ask.
  for (const char* option : {"--prompt", "--prompt-file", "--system-prompt", "--no-special-tokens",
                             "--logits", "--port", "--serve", "--trace"}) {
    for (const std::string program : kPrograms)
      expect_refusal(program, {option, "1"}, 2,
                     {"error: " + std::string(option) + " has no use", "leave it out"});
  }
  expect_refusal("bench_step2_flat_cache", {"--max-seq-le", "9"}, 2, {"did you mean --max-seq-len?"});
  expect_refusal("bench_step2_flat_cache", {"--blcok-size", "9"}, 2,
                 {"--help lists the options of bench_step2_flat_cache"});  // step 3 has --block-size
}

TEST(StepBenchmarks, AWordThatNoOptionTakesIsNoPrompt) {
  for (const std::string program : {"bench_step3_paged", "bench_serving"}) {
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"x"}, {"--threads", "1", "x"}, {"--threads=1", "x"}, {""}}) {
      expect_refusal(
          program, words, 2,
          {"the word \"" + words.back() + "\" belongs to no option", "--help", "options of " + program});
    }
  }
  for (const char* near_prompt : {"--promt", "--tokns"})  // a benchmark takes neither --prompt nor --tokens
    expect_refusal("bench_step3_paged", {near_prompt, "x"}, 2,
                   {near_prompt, "--help lists the options of bench_step3_paged"});
  expect_refusal("bench_step3_paged", {"--nonsense"}, 2,
                 {"--nonsense", "--help lists the options of bench_step3_paged"});
}

TEST(StepBenchmarks, SayWhatTheirNumbersAreAndWhereTheyWereMade) {
  const json context = run_benchmarks("bench_step1_no_cache", "prompt:64/iter")["context"];
  const auto note = context["note"].get<std::string>();
  for (const char* part :
       {"waits for the host", "passes of step 1 and passes that gather", "first two of a run"})
    EXPECT_NE(note.find(part), std::string::npos) << part;
  EXPECT_EQ(context["processor"], processor_name("cpu"));
}

TEST(StepBenchmarks, HelpIsTheirOwnAndGoogleBenchmarks) {
  const ProgramResult result = run_step("bench_step3_paged", {"--help"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("Usage: bench_step3_paged ")) << result.out;
  for (const char* part : {"--random-weights", "--attention", "--benchmark_filter", "Every run starts"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part;
  EXPECT_EQ(result.out.find("--prompt"), std::string::npos) << "has no use here";
  EXPECT_EQ(result.out.find(" \n"), std::string::npos) << "a line ends in a space";
}

TEST(StepBenchmarks, WhatGoogleBenchmarkDoesNotTakeIsRefusedInOneLine) {
  expect_refusal("bench_step1_no_cache", {"--benchmark_filer=x"}, 2, {"error: ", "--benchmark_filer=x"});
  expect_refusal("bench_step1_no_cache", {"--benchmark_repetitions=few"}, 2, {"error: ", "few"});
}

TEST(StepBenchmarks, ACacheThatIsTooSmallIsAnErrorAndNotANumber) {
  const ProgramResult result = run_step("bench_step3_paged", {"--random-weights", "tiny", "--num-blocks", "4",
                                                              "--benchmark_filter=context:64/iter"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("error: decode/context:64: the cache is too small"), std::string::npos)
      << result.err;
}

TEST(StepBenchmarks, AFilterThatMatchesNothingIsAnError) {
  expect_refusal("bench_step1_no_cache", {"--random-weights", "tiny", "--benchmark_filter=nothing"}, 2,
                 {"error: ", "nothing; --benchmark_list_tests"});
}

TEST(StepBenchmarks, SayThatTheContextLeavesOutAllThatTheFilterMatches) {
  const TemporaryFolder folder;
  test::TestCheckpoint("LlamaForCausalLM", {{"max_position_embeddings", 64}}).save(folder.path());
  const std::vector<std::string> model{"--model", folder.path()};
  const std::string reason = "longer than the model's context of 64 tokens";
  for (const std::string program : kPrograms)
    expect_refusal(program, {"--model", folder.path(), "--benchmark_filter=context:2048"}, 2,
                   {"error: ", "context:2048", reason});
  expect_refusal("bench_step1_no_cache", model, 2, {"error: there is no benchmark", reason});
  const ProgramResult grow =
      run_step("bench_step2_flat_cache", {"--model", folder.path(), "--benchmark_filter=exact/tokens:32/"});
  EXPECT_EQ(grow.exit_code, 0) << "of no model: " << grow.err;
}

// ---- what is timed ----

TEST(TimedMs, IsThePartThatTheWorkloadIsAbout) {
  using enum Workload::Timed;
  const std::vector<double> prefill{10, 20}, decode{99, 88, 3, 1, 2};
  EXPECT_EQ(timed_ms(first_token, prefill, decode), 10);
  EXPECT_EQ(timed_ms(decode_pass, prefill, decode), 2) << "two passes are warm-up";
  EXPECT_EQ(timed_ms(all, prefill, decode), 223);
  EXPECT_EQ(timed_ms(all_first_tokens, prefill, decode), 30);
  for (const std::size_t passes : {0U, 1U, 2U})
    EXPECT_EQ(timed_ms(decode_pass, prefill, std::vector<double>(passes, 5)), 0) << "nothing but warm-up";
}

// On a GPU the first pass of a kind runs directly, and the second is recorded. Only later passes are
// replayed.
TEST(Workloads, TimePassesThatArePlayedAsCudaGraphs) {
  for (const Workload& workload : workloads()) {
    if (workload.timed != Workload::Timed::decode_pass) continue;
    std::vector<double> passes(static_cast<std::size_t>(workload.tokens - 1), 1);
    passes[0] = passes[1] = 1000;
    EXPECT_EQ(timed_ms(workload.timed, {}, passes), 1) << workload.name;
    EXPECT_GE(std::ssize(passes) - kUntimedDecodePasses, 2) << workload.name;
  }
}

TEST(Workloads, BeginAlikeOnlyAsFarAsThePrefixIsShared) {
  for (const Workload& workload : workloads()) {
    const std::vector<Request> requests = requests_of(workload, 4096);
    ASSERT_EQ(std::ssize(requests), workload.sequences);
    EXPECT_EQ(request_before(workload, 4096).prompt_ids.size(), static_cast<std::size_t>(workload.shared));
    for (std::size_t n = 1; n < requests.size(); ++n) {
      const auto differ = std::ranges::mismatch(requests[0].prompt_ids, requests[n].prompt_ids).in1;
      EXPECT_EQ(differ - requests[0].prompt_ids.begin(), workload.shared) << workload.name;
    }
  }
}

}  // namespace
}  // namespace kvcache
