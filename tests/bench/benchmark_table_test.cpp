// The table of ./steps bench and the files behind it, on small results made by hand.
#include "common/bench/benchmark_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "common/base/error.h"
#include "tests/support/report_of.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;
using Counters = std::map<std::string, double>;

/// One run, as Google Benchmark writes it.
Json entry(const std::string& name, double ms, const Counters& counters = {}) {
  const std::string full_name = name + "/iterations:1/manual_time";
  Json json{{"name", full_name},     {"run_name", full_name}, {"run_type", "iteration"}, {"repetitions", 1},
            {"repetition_index", 0}, {"threads", 1},          {"iterations", 1},         {"real_time", ms},
            {"cpu_time", ms},        {"time_unit", "ms"}};
  for (const auto& [key, value] : counters) json[key] = value;
  return json;
}

/// One round, as a step's program writes it.
Json round_of(const std::string& step, const std::vector<Json>& entries) {
  Json context{{"step", step},   {"model", "random:tiny"}, {"device", "cpu"},
               {"dtype", "f32"}, {"threads", "2"},         {"note", "Every run starts with an empty cache."}};
  return {{"context", context}, {"benchmarks", entries}};
}

class BenchmarkTable : public testing::Test {
 protected:
  /// Writes it to a file of its own.
  std::string file(const Json& round) { return file_of(round.dump()); }
  std::string file_of(const std::string& text) {
    const std::filesystem::path path = folder_ / ("round" + std::to_string(files_++) + ".json");
    write_file(path, text);
    return path.string();
  }

  std::string table(const std::vector<Json>& rounds) {
    std::vector<StepRuns> read;
    for (const Json& round : rounds) read.push_back(read_step_runs(file(round)));
    return benchmark_table(merge_rounds(std::move(read)));
  }

  /// The words of the first line that begins with `label`, after it.
  static std::vector<std::string> cells(const std::string& table, const std::string& label) {
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(label + " ")) continue;
      std::istringstream words(line.substr(label.size()));
      return {std::istream_iterator<std::string>(words), {}};
    }
    return {"no such line"};
  }

  TemporaryFolder folder_;
  int files_ = 0;
};

using Words = std::vector<std::string>;

TEST_F(BenchmarkTable, HasMediansRatiosToTheStepBeforeAndSpreads) {
  const std::string text = table({round_of("step1_no_cache", {entry("decode/context:8", 100)}),
                                  round_of("step2_flat_cache", {entry("decode/context:8", 4)}),
                                  round_of("step3_paged", {entry("decode/context:8", 5)}),
                                  round_of("step1_no_cache", {entry("decode/context:8", 120)}),
                                  round_of("step2_flat_cache", {entry("decode/context:8", 3)}),
                                  round_of("step3_paged", {entry("decode/context:8", 5)}),
                                  round_of("step1_no_cache", {entry("decode/context:8", 90)}),
                                  round_of("step2_flat_cache", {entry("decode/context:8", 8)}),
                                  round_of("step3_paged", {entry("decode/context:8", 5)})});
  EXPECT_TRUE(text.starts_with("random:tiny, cpu f32, 2 threads\n")) << text;
  EXPECT_EQ(cells(text, "ms"), (Words{"step1_no_cache", "step2_flat_cache", "step3_paged"})) << text;
  EXPECT_EQ(cells(text, "decode/context:8"),
            (Words{"100.0", "30%", "4.000", "1/25", "125%", "5.000", "x1.25", "0%"}))
      << text;
  EXPECT_NE(text.find("Every run starts with an empty cache."), std::string::npos);
}

TEST_F(BenchmarkTable, ComparesBothFormsOfStep3WithStep2AndStep4WithTheOneWithoutGather) {
  Json gather = round_of("step3_paged", {entry("a:1", 3)});
  gather["context"]["attention"] = "gather";
  const Json rounds[] = {round_of("step2_flat_cache", {entry("a:1", 1)}),
                         round_of("step3_paged", {entry("a:1", 2)}), gather,
                         round_of("step4_prefix_cache", {entry("a:1", 8)})};
  const std::string text = table({std::begin(rounds), std::end(rounds)});
  EXPECT_EQ(cells(text, "ms"),
            (Words{"step2_flat_cache", "step3_paged", "step3_paged_gather", "step4_prefix_cache"}));
  EXPECT_EQ(cells(text, "a:1"),
            (Words{"1.000", "0%", "2.000", "x2.00", "0%", "3.000", "x3.00", "0%", "8.000", "x4.00", "0%"}))
      << text;
}

TEST_F(BenchmarkTable, LeavesACellEmptyWhereAStepHasNoSuchBenchmark) {
  const std::string text = table({round_of("step1_no_cache", {entry("a:1", 1)}),
                                  round_of("step2_flat_cache", {entry("a:1", 1), entry("b:1", 2)}),
                                  round_of("step3_paged", {entry("a:1", 1), entry("b:1", 3)}),
                                  round_of("step4_prefix_cache", {entry("a:1", 1)})});
  EXPECT_EQ(cells(text, "b:1"), (Words{"-", "2.000", "0%", "3.000", "x1.50", "0%", "-"})) << text;
}

TEST_F(BenchmarkTable, WhatOneStepAloneHasStandsUnderTheTable) {
  const std::string text =
      table({round_of("step1_no_cache", {entry("a:1", 1)}),
             round_of("step2_flat_cache",
                      {entry("grow/exact/tokens:32", 7, {{"bytes_moved", 56.9e6}, {"page_faults", 3}}),
                       entry("a:1", 1)})});
  EXPECT_EQ(cells(text, "grow/exact/tokens:32"), (Words{"7.000", "0%"})) << text;
  EXPECT_EQ(cells(text, "  MB moved"), Words{"56.9"});
  EXPECT_EQ(cells(text, "  page faults"), Words{"3"});
  EXPECT_LT(text.find("a:1"), text.find("grow/")) << text;
}

TEST_F(BenchmarkTable, ShowsHitTokensAlsoWhereThereAreNoneAndBytesThatWereGathered) {
  const std::string text = table(
      {round_of("step3_paged", {entry("shared_prefix/prefix:9/requests:2", 2, {{"cached_tokens", 0}}),
                                entry("decode/context:9", 1, {{"gathered_bytes", 2.5e6}})}),
       round_of("step4_prefix_cache", {entry("shared_prefix/prefix:9/requests:2", 1, {{"cached_tokens", 16}}),
                                       entry("decode/context:9", 1, {{"gathered_bytes", 0}})})});
  EXPECT_EQ(cells(text, "  cached tokens"), (Words{"0", "16"})) << text;
  EXPECT_EQ(cells(text, "  MB gathered in the whole run"), (Words{"2.5", "0.0"})) << text;
  EXPECT_NE(table({round_of("step3_paged",
                            {entry("shared_prefix/prefix:9/requests:2", 2, {{"cached_tokens", 0}})})})
                .find("cached tokens"),
            std::string::npos);
}

TEST_F(BenchmarkTable, FlagsWhatFailedOrWasPreemptedInAnyRound) {
  const auto round = [](double failed, double preemptions) {
    return round_of("step3_paged",
                    {entry("decode/context:8", 1,
                           {{"failed", failed}, {"preemptions", preemptions}, {"extra_passes", 0}})});
  };
  const std::string clean = table({round(0, 0), round(0, 0)});
  EXPECT_EQ(clean.find('!'), std::string::npos) << clean;
  const std::string text = table({round(0, 0), round(2, 0), round(0, 3)});
  EXPECT_EQ(cells(text, "! requests that failed"), Words{"2"}) << text;
  EXPECT_EQ(cells(text, "! preemptions"), Words{"3"}) << text;
  EXPECT_EQ(text.find("! passes because"), std::string::npos) << text;
  EXPECT_NE(text.find("! not what the workload is meant to measure"), std::string::npos);
}

TEST_F(BenchmarkTable, FitsTheExponentOfTheTimePerTokenAgainstTheContext) {
  // Step 1 takes 0.1 ms per token of context, step 2 the same at every one.
  std::vector<Json> without, with;
  for (const double context : {10, 20, 40, 80}) {
    const std::string name = "decode/context:" + std::to_string(static_cast<int>(context) - 1);
    without.push_back(entry(name, context / 10, {{"context", context}, {"tokens_per_s", 1e4 / context}}));
    with.push_back(entry(name, 0.5, {{"context", context}, {"tokens_per_s", 2000}}));
  }
  const std::string text = table({round_of("step1_no_cache", without), round_of("step2_flat_cache", with)});
  EXPECT_EQ(cells(text, "decode/context: ms per token"), (Words{"^", "1.00", "^", "0.00"})) << text;
  EXPECT_EQ(cells(text, "  10"), (Words{"1.000", "0.5000"})) << text;
  EXPECT_EQ(cells(text, "  80"), (Words{"8.000", "0.5000"})) << text;
}

TEST_F(BenchmarkTable, GivesTheExponentASpreadOverTheRounds) {
  const auto round = [](double exponent) {
    std::vector<Json> entries;
    for (const double context : {10, 20, 40, 80}) {
      entries.push_back(entry("decode/context:" + std::to_string(static_cast<int>(context)), 1,
                              {{"context", context}, {"tokens_per_s", std::pow(context, -exponent)}}));
    }
    return round_of("step1_no_cache", entries);
  };
  const std::string text = table({round(1.2), round(0.9), round(1.0)});
  EXPECT_EQ(cells(text, "decode/context: ms per token"), (Words{"^", "1.00", "±0.15"})) << text;
  EXPECT_EQ(cells(table({round(-0.001), round(0.001)}), "decode/context: ms per token"),
            (Words{"^", "0.00", "±0.00"}));
}

TEST_F(BenchmarkTable, CallsThePointsOfAPromptMsPerPrompt) {
  std::vector<Json> entries;
  for (const int prompt : {64, 128, 256, 512}) {
    entries.push_back(entry("time_to_first_token/prompt:" + std::to_string(prompt), prompt,
                            {{"context", prompt}, {"tokens_per_s", 1e3 / prompt}}));
  }
  const std::string text = table({round_of("step1_no_cache", entries)});
  EXPECT_EQ(cells(text, "time_to_first_token/prompt: ms per prompt"), (Words{"^", "1.00"})) << text;
  EXPECT_EQ(text.find("ms per token"), std::string::npos) << text;
}

TEST_F(BenchmarkTable, SaysWhereAndWhenItWasMeasured) {
  Json round = round_of("step1_no_cache", {entry("a:1", 1)});
  round["context"].update({{"date", "2026-11-28T10:39:17+00:00"},
                           {"load_avg", {0.44, 1, 1}},
                           {"processor", "A Processor 9000"},
                           {"gpu", "A GPU"},
                           {"commit", "1a2b3c4"}});
  EXPECT_TRUE(
      table({round}).starts_with("random:tiny, cpu f32, 2 threads, A GPU, A Processor 9000\n"
                                 "2026-11-28T10:39:17+00:00, commit 1a2b3c4, load 0.4 at the start\n"))
      << table({round});
  Json elsewhere = round;
  elsewhere["context"]["processor"] = "Another";
  EXPECT_THROW(table({round, elsewhere}), InputError);
}

TEST_F(BenchmarkTable, ShowsTheGpusTimeAndWhatItIs) {
  const std::string text =
      table({round_of("step1_no_cache", {entry("decode/context:8", 2, {{"gpu_ms", 1.5}})})});
  EXPECT_EQ(cells(text, "  ms on the GPU, waits for the host in it"), Words{"1.500"}) << text;
}

TEST_F(BenchmarkTable, ANumberThatRoundsUpHasTheDigitsOfWhatItRoundsTo) {
  for (const auto& [ms, text] : {std::pair(0.99994, "0.9999"),
                                 {0.99996, "1.000"},
                                 {9.9994, "9.999"},
                                 {9.9996, "10.00"},
                                 {99.996, "100.0"},
                                 {999.96, "1000"}})
    EXPECT_EQ(cells(table({round_of("step1_no_cache", {entry("a:1", ms)})}), "a:1")[0], text);
  const auto ratio = [&](double times) {
    return cells(table({round_of("step1_no_cache", {entry("a:1", 1)}),
                        round_of("step2_flat_cache", {entry("a:1", times)})}),
                 "a:1")[3];
  };
  EXPECT_EQ(ratio(9.994), "x9.99");
  EXPECT_EQ(ratio(9.996), "x10.0");
  EXPECT_EQ(ratio(999.97), "x1000");
}

TEST_F(BenchmarkTable, FitsNothingToThreeSizesOrToOtherWorkloads) {
  const Counters counters{{"context", 9}, {"tokens_per_s", 5}};
  const std::string text = table({round_of(
      "step1_no_cache", {entry("decode/context:1", 1, counters), entry("decode/context:2", 1, counters),
                         entry("decode/context:3", 1, counters),
                         entry("decode/context:4/sequences:8", 1, counters), entry("warm", 1, counters)})});
  EXPECT_EQ(text.find('^'), std::string::npos) << text;
}

// ---- the files ----

TEST_F(BenchmarkTable, RoundsAreKeptAsRepetitionsOfOneProgram) {
  const Json round = round_of("step3_paged", {entry("a:1", 1), entry("b:1", 2)});
  Json gather = round;
  gather["context"]["attention"] = "gather";
  const std::filesystem::path kept = folder_ / "bench";
  const ProgramResult result = run_step(
      "compare_benchmarks", {"--keep", kept.string(), file(round), file(gather), file(round), file(gather)});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("step3_paged_gather"), std::string::npos);
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(kept)) names.insert(file.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"step3_paged.json", "step3_paged_gather.json"}));

  const Json merged = Json::parse(read_file(kept / "step3_paged.json"));
  EXPECT_EQ(merged["context"], round["context"]);
  ASSERT_EQ(merged["benchmarks"].size(), 4U);
  const Words order{"a:1", "a:1", "b:1", "b:1"};
  for (std::size_t n = 0; n < 4; ++n) {
    const Json& run = merged["benchmarks"][n];
    EXPECT_EQ(run["name"], order[n] + "/iterations:1/manual_time");
    EXPECT_EQ(run["repetitions"], 2);
    EXPECT_EQ(run["repetition_index"], n % 2);
    EXPECT_EQ(run["run_type"], "iteration");
  }
  // The kept rounds can be read again.
  const ProgramResult again = run_step("compare_benchmarks", {(kept / "step3_paged.json").string(),
                                                              (kept / "step3_paged_gather.json").string()});
  EXPECT_EQ(again.out, result.out);
}

TEST_F(BenchmarkTable, AggregatesAreNotRuns) {
  Json mean = entry("a:1", 1000);
  mean["run_type"] = "aggregate";
  mean["aggregate_name"] = "mean";
  EXPECT_EQ(cells(table({round_of("step1_no_cache", {entry("a:1", 1), entry("a:1", 3), mean})}), "a:1"),
            (Words{"2.000", "100%"}));
}

TEST_F(BenchmarkTable, ReadsEveryUnitOfTime) {
  for (const auto& [unit, ms] :
       {std::pair("ns", "0.0070"), {"us", "7.000"}, {"ms", "7000"}, {"s", "7000000"}}) {
    Json run = entry("a:1", 7000);
    run["time_unit"] = unit;
    EXPECT_EQ(cells(table({round_of("step1_no_cache", {run})}), "a:1")[0], ms);
  }
}

TEST_F(BenchmarkTable, DamagedFilesAreRefusedInOneLineAndNothingIsKept) {
  const Json whole = round_of("step1_no_cache", {entry("a:1", 1)});
  std::vector<std::pair<std::string, std::string>> damaged;  // the file, what is said of it
  damaged.emplace_back(whole.dump().substr(0, 300), "not whole JSON");
  damaged.emplace_back("", "not whole JSON");
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  damaged.emplace_back(R"({"context":)" + deep + "}", "nested more than 64 levels deep");
  damaged.emplace_back("[1, 2]", "context is missing");
  damaged.emplace_back(round_of("step1_no_cache", std::vector<Json>{}).dump(), "no benchmark has run");
  Json changed = whole;
  changed["benchmarks"][0]["run_type"] = "aggregate";
  damaged.emplace_back(changed.dump(),
                       " holds aggregates alone, and not the time of each repetition; "
                       "leave out --benchmark_report_aggregates_only");
  changed = whole;
  changed["benchmarks"][0]["real_time"] = "fast";
  damaged.emplace_back(changed.dump(), "real_time is \"fast\"");
  changed["benchmarks"][0]["real_time"] = 0;
  damaged.emplace_back(changed.dump(), "a:1 took no time");
  changed = whole;
  changed["benchmarks"][0]["time_unit"] = "days";
  damaged.emplace_back(changed.dump(), "days");
  changed = whole;
  changed["benchmarks"][0].erase("run_name");
  damaged.emplace_back(changed.dump(), "run_name is missing");
  changed = whole;
  changed["benchmarks"][0].erase("name");  // which --keep alone reads
  damaged.emplace_back(changed.dump(), "name is missing");
  changed = whole;
  changed["context"]["load_avg"] = "high";
  damaged.emplace_back(changed.dump(), "load_avg is \"high\"");
  changed = whole;
  changed["context"].erase("step");
  damaged.emplace_back(changed.dump(), "step is missing");
  changed = whole;
  changed["benchmarks"][0]["error_occurred"] = true;
  changed["benchmarks"][0]["error_message"] = "out of memory";
  damaged.emplace_back(changed.dump(), "a:1 failed: out of memory");
  for (const auto& [text, reason] : damaged) {
    const std::string bad = file_of(text);
    expect_refusal("compare_benchmarks", {"--keep", (folder_ / "bench").string(), file(whole), bad}, 2,
                   {bad, reason});
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "bench"));
  expect_refusal("compare_benchmarks", {(folder_ / "absent.json").string()}, 2,
                 {"absent.json", "No such file"});
  expect_refusal("compare_benchmarks", {"/"}, 2, {"/: this is a folder"});
  expect_refusal("compare_benchmarks", {}, 2, {"compare_benchmarks [--keep FOLDER] FILE.json"});
  expect_refusal("compare_benchmarks", {"--keep", "somewhere"}, 2, {"compare_benchmarks [--keep FOLDER]"});
}

TEST_F(BenchmarkTable, AnOptionInTheWrongPlaceIsNoFile) {
  const std::string round = file(round_of("step1_no_cache", {entry("a:1", 1)}));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--keep"}, {round, "--keep", "somewhere"}, {"--kep", "somewhere", round}})
    expect_refusal("compare_benchmarks", words, 2,
                   {"stands where a file should; compare_benchmarks [--keep"});
}

TEST_F(BenchmarkTable, UnlikeRunsAreNotCompared) {
  const Json cpu = round_of("step1_no_cache", {entry("a:1", 1)});
  Json cuda = round_of("step2_flat_cache", {entry("a:1", 1)});
  cuda["context"]["device"] = "cuda";
  EXPECT_THROW(table({cpu, cuda}), InputError);
  EXPECT_THROW(table({cpu, round_of("step1_no_cache", {entry("a:1", 1), entry("b:1", 1)})}), InputError);
}

TEST_F(BenchmarkTable, WhatIsNoFolderIsRefusedBeforeTheTable) {
  const std::string in_the_way = file_of("a file"),
                    round = file(round_of("step1_no_cache", {entry("a:1", 1)}));
  const std::filesystem::path link = folder_ / "link";
  std::filesystem::create_symlink("nowhere", link);
  for (const std::string& name : {in_the_way, in_the_way + "/bench", link.string()})
    expect_refusal("compare_benchmarks", {"--keep", name, round}, 2,
                   {"error: cannot write in --keep " + name + ": ", "give another folder"});
}

// The table stands before the error: minutes of measuring are not lost.
TEST_F(BenchmarkTable, KeepsAllFilesOrLeavesThoseThatWereThere) {
  const std::filesystem::path kept = folder_ / "bench";
  std::filesystem::create_directories(kept / "step2_flat_cache.json");  // a folder in the way of the second
  write_file(kept / "step1_no_cache.json", "what was there");
  const ProgramResult result = run_step(
      "compare_benchmarks", {"--keep", kept.string(), file(round_of("step1_no_cache", {entry("a:1", 1)})),
                             file(round_of("step2_flat_cache", {entry("a:1", 1)}))});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(cells(result.out, "a:1")[0], "1.000") << result.out;
  EXPECT_NE(result.err.find("step2_flat_cache.json: a folder stands in its place"), std::string::npos)
      << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_EQ(read_file(kept / "step1_no_cache.json"), "what was there");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(kept), {}), 2) << "a draft is left";
}

}  // namespace
}  // namespace kvcache
