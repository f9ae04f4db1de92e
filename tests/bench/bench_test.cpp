// The benchmark programs as a script runs them: each benchmark has its name and its counters, as JSON. No
// test looks at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "tests/support/report_of.h"

namespace kvcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Runs the benchmarks that match `filter`.
/// @return the output of each benchmark, by its name without Google Benchmark's suffix
std::map<std::string, nlohmann::json> run_benchmarks(const std::string& program, const std::string& filter) {
  const ProgramResult result = run_step(program, {"--benchmark_filter=" + filter, "--benchmark_format=json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, nlohmann::json> benchmarks;
  const nlohmann::json report = nlohmann::json::parse(result.out);
  EXPECT_FALSE(report["context"]["note"].get<std::string>().empty());
  for (const nlohmann::json& benchmark : report["benchmarks"]) {
    EXPECT_FALSE(benchmark.value("error_occurred", false)) << benchmark;
    std::string name = benchmark["name"];
    for (const char* appended : {"/iterations:", "/manual_time"})
      name.resize(std::min(name.size(), name.find(appended)));
    benchmarks[name] = benchmark;
  }
  return benchmarks;
}

void expect_counters(const std::map<std::string, nlohmann::json>& benchmarks, const std::string& name,
                     const std::vector<std::string>& counters) {
  ASSERT_TRUE(benchmarks.contains(name)) << name;
  for (const std::string& counter : counters)
    EXPECT_GT(benchmarks.at(name).value(counter, 0.0), 0.0) << name << ": " << counter;
}

TEST(BenchBookkeeping, EveryOperationOfTheManagersAndTheirParts) {
  const auto benchmarks = run_benchmarks("bench_bookkeeping", "/blocks:1000/");
  for (const char* name :
       {"PagedManager/allocate", "PagedManager/free", "PrefixCachingManager/allocate",
        "PrefixCachingManager/free", "PrefixCachingManager/hit", "PrefixCachingManager/evict",
        "PrefixCachingManager/fork", "PrefixCachingManager/copy_on_write", "BlockPool/allocate",
        "BlockPool/free", "FreeBlockQueue/take_front", "FreeBlockQueue/push_back", "FreeBlockQueue/remove",
        "PrefixIndex/find", "PrefixIndex/insert", "PrefixIndex/erase"}) {
    expect_counters(benchmarks, std::string(name) + "/blocks:1000", {"operations/s at median"});
  }
}

TEST(BenchBookkeeping, EvictsAndCopiesInNearlyEveryOperationThatIsCalledSo) {
  const auto benchmarks = run_benchmarks("bench_bookkeeping", "(evict|copy_on_write)/blocks:1000/");
  const nlohmann::json& evict = benchmarks.at("PrefixCachingManager/evict/blocks:1000");
  EXPECT_GT(evict["evictions"], 0.95);
  EXPECT_LE(evict["evictions"], 1.05);
  EXPECT_EQ(benchmarks.at("PrefixCachingManager/copy_on_write/blocks:1000")["copies"], 1.0);
}

TEST(BenchBookkeeping, PromptsAreHashedAndFoundOrNot) {
  const auto benchmarks = run_benchmarks("bench_bookkeeping", "block_hash|lookup.*blocks:10000/");
  expect_counters(benchmarks, "block_hash/tokens:50000", {"tokens/s at median"});
  EXPECT_EQ(benchmarks.at("lookup/all_hit/tokens:50000/blocks:10000")["found"], 50'000);
  EXPECT_EQ(benchmarks.at("lookup/all_miss/tokens:50000/blocks:10000")["found"], 0);
}

TEST(BenchBookkeeping, EveryPoolHasTheSameNames) {
  const ProgramResult result = run_step("bench_bookkeeping", {"--benchmark_list_tests"});
  for (const char* size : {"1000", "100000", "1000000"}) {
    for (const char* operation : {"allocate", "free", "hit", "evict", "fork", "copy_on_write"})
      EXPECT_THAT(result.out, HasSubstr(fmt::format("PrefixCachingManager/{}/blocks:{}/", operation, size)));
  }
}

TEST(BenchKernels, EachKernelBesideTheMachinesLimits) {
  const auto benchmarks = run_benchmarks(
      "bench_kernels",
      "cpu/(matmul/(1|512)x1024x3072|decode/.*/1x512|prefill/paged/1x512|scatter|gather).*/bf16");
  expect_counters(benchmarks, "cpu/matmul/1x1024x3072/bf16", {"GB/s at median", "of read"});
  expect_counters(benchmarks, "cpu/matmul/512x1024x3072/bf16", {"GFLOP/s at median", "of multiply_add"});
  for (const char* rows : {"contiguous", "gathered", "paged"})
    expect_counters(benchmarks, "cpu/decode/" + std::string(rows) + "/1x512/bf16",
                    {"GB/s at median", "of read"});
  expect_counters(benchmarks, "cpu/prefill/paged/1x512/bf16", {"GFLOP/s at median", "of multiply_add"});
  expect_counters(benchmarks, "cpu/scatter/block_size:16/bf16", {"GB/s at median", "of copy"});
  expect_counters(benchmarks, "cpu/gather/block_size:16/bf16", {"GB/s at median", "of copy"});
}

// A call of the median length would reach the rate that is printed beside it.
TEST(BenchKernels, RatesAndTimesAreThoseOfTheMedianCallAndHaveASpread) {
  const nlohmann::json product =
      run_benchmarks("bench_kernels", "cpu/matmul/1x1024x3072/bf16").at("cpu/matmul/1x1024x3072/bf16");
  EXPECT_EQ(product["time_unit"], "us");
  EXPECT_NEAR(product["GB/s at median"].get<double>() * product["real_time"].get<double>(),
              1024 * 3072 * 2 * 1e-3, 1e-6);
  EXPECT_GT(product["IQR %"], 0);
  const auto limits = run_benchmarks("bench_kernels", "cpu/(read|multiply_add)/");
  expect_counters(limits, "cpu/read/1GB", {"GB/s at best"});
  expect_counters(limits, "cpu/multiply_add/1GFLOP", {"GFLOP/s at best"});
}

TEST(BenchBookkeeping, RatesAndTimesAreThoseOfTheMedianRoundAndHaveASpread) {
  const nlohmann::json free = run_benchmarks("bench_bookkeeping", "PrefixCachingManager/free/blocks:1000/")
                                  .at("PrefixCachingManager/free/blocks:1000");
  EXPECT_NEAR(free["operations/s at median"].get<double>() * free["real_time"].get<double>(), 1e9, 1);
  EXPECT_GT(free["IQR %"], 0);
}

TEST(BenchKernels, SaysWhyTheGpuIsLeftOut) {
  const ProgramResult result = run_step("bench_kernels", {"--benchmark_list_tests"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("cpu/decode/paged/1x8192/f32"), Not(HasSubstr("cuda/"))));
  EXPECT_THAT(result.err, HasSubstr("without cuda/"));
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
}

TEST(BenchPrograms, RefuseWhatTheyDoNotKnowInOneLine) {
  for (const char* program : {"bench_bookkeeping", "bench_kernels", "bench_pool_layout"}) {
    expect_refusal(program, {"--pool=7"}, 2, {"--pool=7"});
    expect_refusal(program, {"--benchmark_min_time=soon"}, 2, {"benchmark_min_time", "soon"});
  }
}

/// Google Benchmark's options that need a value, as `--help` lists them. The others are {true|false}, and
/// take any value or none.
std::vector<std::string> valued_options() {
  std::vector<std::string> found;
  const std::string help = run_step("bench_bookkeeping", {"--help"}).out;
  const std::regex pattern(R"(\[(--\w+)=(?!\{true\|false\}))");
  for (std::sregex_iterator option(help.begin(), help.end(), pattern); option != std::sregex_iterator();
       ++option)
    found.push_back((*option)[1]);
  return found;
}

TEST(BenchPrograms, SayThatAnOptionNeedsAValue) {
  const std::vector<std::string> options = valued_options();
  EXPECT_GE(options.size(), 11U);
  for (const std::string& option : options) {
    for (const std::string program : {"bench_bookkeeping", "bench_step1_no_cache"})
      expect_refusal(program, {option}, 2, {"error: " + option + " needs a value: "});
  }
  for (const std::string option : {"--benchmark_repetitions", "--benchmark_min_time", "--benchmark_format",
                                   "--benchmark_time_unit", "--benchmark_color"})
    expect_refusal("bench_bookkeeping", {option + "="}, 2, {"error: " + option + " needs a value: "});
}

TEST(BenchPrograms, SayWhatAnOptionTakes) {
  const auto expect_words = [](const std::string& option, const std::string& value,
                               const std::string& takes) {
    expect_refusal("bench_bookkeeping", {option + "=" + value}, 2,
                   {"error: " + option + " takes " + takes + ", and not '" + value + "'"});
  };
  for (const char* option : {"--benchmark_format", "--benchmark_out_format"})
    expect_words(option, "xml", "console, json or csv");
  expect_words("--benchmark_time_unit", "parsec", "ns, us, ms or s");
  for (const char* value : {"steps", "a=b=c", "a=b,", ",a=b"})
    expect_words("--benchmark_context", value, "KEY=VALUE, or several with commas between them");
  for (const char* value : {"0", "-1", "+0", " 0", "few"})
    expect_words("--benchmark_repetitions", value, "a number of at least 1");
  for (const char* value : {"soon", "5 s", "5h", "x", "s"})
    expect_words("--benchmark_min_time", value, "a number of seconds");
  for (const char* option : {"--benchmark_min_warmup_time", "--v"})
    expect_refusal("bench_bookkeeping", {std::string(option) + "=soon"}, 2, {option, "soon"});
}

TEST(BenchPrograms, SayWhatAVariableTakesThatStandsForAnOption) {
  struct Case {
    const char *name, *value, *takes;
  };
  for (const auto& [name, value, takes] : {Case{"BENCHMARK_REPETITIONS", "0", "a number of at least 1"},
                                           {"BENCHMARK_REPETITIONS", "-3", "a number of at least 1"},
                                           {"BENCHMARK_FORMAT", "xml", "console, json or csv"},
                                           {"BENCHMARK_FORMAT", "", "console, json or csv"},
                                           {"BENCHMARK_OUT_FORMAT", "xml", "console, json or csv"},
                                           {"BENCHMARK_TIME_UNIT", "h", "ns, us, ms or s"}}) {
    setenv(name, value, 1);
    for (const std::string program : {"bench_bookkeeping", "bench_step1_no_cache"})
      expect_refusal(program, {}, 2,
                     {"error: " + std::string(name) + " takes " + takes + ", and not '" + value + "'"});
    unsetenv(name);
  }
  setenv("BENCHMARK_REPETITIONS", "", 1);
  EXPECT_EQ(run_step("bench_bookkeeping", {"--benchmark_list_tests"}).exit_code, 0);
  unsetenv("BENCHMARK_REPETITIONS");
}

TEST(BenchPrograms, SayWhatTheyAreWhenAskedForHelp) {
  for (const std::string program : {"bench_bookkeeping", "bench_kernels", "bench_pool_layout"}) {
    const ProgramResult result = run_step(program, {"--help"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr("Usage: " + program), HasSubstr("How the numbers are made"),
                                  HasSubstr("--benchmark_filter")));
  }
}

TEST(BenchPrograms, HelpAndVersionTakeNoValue) {
  for (const std::string program :
       {"bench_bookkeeping", "bench_kernels", "bench_pool_layout", "bench_serving", "bench_step1_no_cache",
        "bench_step2_flat_cache", "bench_step3_paged", "bench_step4_prefix_cache", "compare_benchmarks"}) {
    for (const std::string flag : {"--help", "-h"})
      expect_refusal(program, {flag + "=x"}, 2,
                     {fmt::format("{0} takes no value, and \"x\" is given; write {0}", flag)});
  }
  expect_refusal("bench_step3_paged", {"--version=x"}, 2, {"--version takes no value, and \"x\" is given"});
}

TEST(BenchPrograms, AFilterThatMatchesNothingIsAnError) {
  const TemporaryFolder folder;
  write_file(folder / "out.json", "an earlier record");
  for (const char* filter : {"--benchmark_filter=decode", "--benchmark_filter=("})
    expect_refusal("bench_bookkeeping", {filter, "--benchmark_out=" + (folder / "out.json").string()}, 2,
                   {"error: ", std::string(filter).substr(19), "--benchmark_list_tests"});
  EXPECT_EQ(read_file(folder / "out.json"), "an earlier record");
}

constexpr const char* kOneShort = "--benchmark_filter=BlockPool/free/blocks:1000/";

TEST(BenchPrograms, WriteARecordInEachFormat) {
  const TemporaryFolder folder;
  const std::string file = folder / "out";
  for (const auto& [format, beginning] : {std::pair("json", "{"), {"csv", "name,"}, {"console", "---"}}) {
    const ProgramResult result =
        run_step("bench_bookkeeping",
                 {kOneShort, "--benchmark_out=" + file, "--benchmark_out_format=" + std::string(format)});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(read_file(file), AllOf(HasSubstr(beginning), HasSubstr("BlockPool/free/blocks:1000")));
  }
}

TEST(BenchPrograms, ARecordThatCannotBeWrittenIsAFailureInOneLineUnderTheTable) {
  for (const char* format : {"json", "csv", "console"}) {
    const ProgramResult result =
        run_step("bench_bookkeeping",
                 {kOneShort, "--benchmark_out=/dev/full", "--benchmark_out_format=" + std::string(format)});
    EXPECT_EQ(result.exit_code, 1) << format;
    EXPECT_THAT(result.out, HasSubstr("BlockPool/free/blocks:1000"));
    EXPECT_THAT(result.err, HasSubstr("\nerror: cannot write all of --benchmark_out=/dev/full; "));
  }
}

TEST(BenchPrograms, ARecordThatCannotBeOpenedIsRefused) {
  for (const char* name : {"/", "/dev/null/out.json"})
    expect_refusal("bench_bookkeeping", {kOneShort, "--benchmark_out=" + std::string(name)}, 2,
                   {"error: cannot write --benchmark_out=", name, "give a file"});
}

}  // namespace
}  // namespace kvcache
