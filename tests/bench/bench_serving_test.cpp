// The program of ./steps serve-bench: it measures every step that serves, and refuses options that it sets
// itself. No test looks at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/checkpoint_builder.h"
#include "tests/support/report_of.h"

namespace kvcache {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

TEST(BenchServing, MeasuresEveryStepThatServes) {
  const std::string model = checkpoint_folder("llama-gqa").string();  // of 512 positions
  const ProgramResult result = run_step("bench_serving", {"--model", model, "--threads", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("8 streams and a prompt of 511 tokens"))
      << "the context has no room for 1000";
  for (const char* step : {"step2_flat_cache", "step3_paged", "step4_prefix_cache"})
    EXPECT_THAT(result.out, ContainsRegex(std::string(step) + " .* t/s .* t/s .*%"));
  EXPECT_THAT(result.out, ContainsRegex("step2_flat_cache .* 8  ")) << "eight reservations are all there is";
  EXPECT_THAT(result.out, HasSubstr("prefix cache on against off"));
  for (const char* rows : {"256", "128", "64", "32"})
    EXPECT_THAT(result.out, ContainsRegex("\n" + std::string(rows) + " rows .* ms .* ms "));
  EXPECT_THAT(result.out, HasSubstr("left out: 64 and 256 long requests"));
}

TEST(BenchServing, RefusesWhatItSetsItselfAndWhatIsNotItsOwn) {
  for (const char* option :
       {"--num-blocks", "--kv-memory", "--prefix-cache", "--benchmark_filter", "--tokens", "--frob",
        "--prompt", "--serve", "--max-sequences", "--host-blocks", "--salt", "--quick"}) {
    const std::string line = std::string(option) + " has no use here";
    expect_refusal("bench_serving", {std::string(option) + "=1"}, 2, {line, "its options are --model, "});
    expect_refusal("bench_serving", {option, "1"}, 2, {line});
  }
}

TEST(BenchServing, NamesTheOptionWhoseValueIsMissingOrWrong) {
  expect_refusal("bench_serving", {"--device"}, 2, {"--device needs a value"});
  expect_refusal("bench_serving", {"--threads", "-1"}, 2, {"--threads", "-1"});
}

TEST(BenchServing, RefusesABlockThatIsLargerThanItsMemory) {
  for (const char* size : {"4097", "2147483647"})
    expect_refusal("bench_serving", {"--block-size", size}, 2, {"--block-size", size, "give at most 4096"});
}

TEST(BenchServing, SaysWhatItDoesAndTakes) {
  for (const char* option : {"--help", "-h"}) {
    const ProgramResult result = run_step("bench_serving", {option});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, testing::StartsWith("Usage: bench_serving [OPTIONS]"));
    EXPECT_THAT(result.out, testing::Not(HasSubstr("--prompt")));
  }
}

TEST(BenchServing, RefusesAModelWhoseContextIsTooShort) {
  const TemporaryFolder folder;
  test::TestCheckpoint("LlamaForCausalLM", {{"vocab_size", 768}}).save(folder.path());
  std::filesystem::copy(checkpoint_folder("llama-mha") / "tokenizer.json", folder / "tokenizer.json");
  expect_refusal("bench_serving", {"--model", folder.path()}, 2, {"context is 128", "512"});
}

// For replays

const std::string kSmallModel = checkpoint_folder("llama-gqa").string();  // of 512 positions

TEST(BenchServing, FitsACostThatAReplayReads) {
  const TemporaryFolder folder;
  const std::string file = (folder / "cost.json").string(), trace = (folder / "trace.jsonl").string();
  const ProgramResult fitted =
      run_step("bench_serving", {"--model", kSmallModel, "--threads", "1", "--cost", file});
  ASSERT_EQ(fitted.exit_code, 0) << fitted.err;
  const std::string written = read_file(file);
  EXPECT_THAT(fitted.out,
              ContainsRegex("^the cost of [0-9]+ passes is [0-9.]+% of their time; half of them lie "
                            "within [0-9.]+%, nine tenths within [0-9.]+%\n"));
  EXPECT_THAT(fitted.out, testing::EndsWith(written));
  EXPECT_THAT(fitted.out, testing::Not(HasSubstr("step2_flat_cache"))) << "instead of the measurements";
  const nlohmann::json cost = nlohmann::json::parse(written);
  EXPECT_THAT(cost["fitted_on"].get<std::string>(),
              testing::StartsWith(kSmallModel + ", f32, cpu, 1 threads, "));
  for (const char* part : {"constant_ms", "row_ms", "pair_ms", "context_ms"})
    EXPECT_GE(cost[part], 0) << part;
  write_file(trace, run_step("replay", {"--make", "chat", "--requests", "5"}).out);
  const nlohmann::json report =
      nlohmann::json::parse(run_step("replay", {trace, "--cost", file, "--json"}).out);
  EXPECT_EQ(report["cost"]["row_ms"], cost["row_ms"]);
  EXPECT_EQ(report["steps"][2]["drained"]["done"], 5);
}

/// The number before `what` in a text.
std::int64_t number_before(const std::string& what, const std::string& text) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(text, found, std::regex("([0-9]+) " + what))) << what << " in: " << text;
  return found.empty() ? -1 : std::stoll(found[1]);
}

TEST(BenchServing, ServesATraceInThePassesOfItsReplay) {
  const TemporaryFolder folder;
  const std::string trace = (folder / "trace.jsonl").string();
  std::string lines =
      run_step("replay", {"--make", "chat", "--requests", "400", "--longest", "500", "--trace-block", "16"})
          .out;
  // All at once, so that no time decides which pass a request joins.
  lines = std::regex_replace(lines, std::regex("\"timestamp\": [0-9]+"), "\"timestamp\": 0");
  write_file(trace, lines);
  const std::string cost = (folder / "cost.json").string();
  const ProgramResult served =
      run_step("bench_serving", {"--model", kSmallModel, "--threads", "1", "--traffic", trace,
                                 "--trace-block", "16", "--max-batch-tokens", "48", "--cost", cost});
  ASSERT_EQ(served.exit_code, 0) << served.err;
  EXPECT_THAT(served.out, testing::StartsWith("400 requests served for real in "));
  EXPECT_THAT(served.out, ContainsRegex("\nfirst token: mean [0-9.]+, median [0-9.]+, 99% [0-9.]+ ms\n"));
  EXPECT_THAT(served.out, ContainsRegex("\nnext tokens: mean [0-9.]+, median [0-9.]+, 99% [0-9.]+ ms\n"));

  // The replay that it names, but for the cost.
  std::smatch found;
  ASSERT_TRUE(std::regex_search(served.out, found, std::regex("\\./steps replay (.*) --cost FILE\n")));
  std::istringstream words(found[1]);
  std::vector<std::string> line{std::istream_iterator<std::string>(words), {}};
  EXPECT_EQ(line[0], trace);
  EXPECT_THAT(served.out, HasSubstr(std::string(" --model ") + kSmallModel));
  line.emplace_back("--json");
  const ProgramResult replayed = run_step("replay", line);
  ASSERT_EQ(replayed.exit_code, 0) << replayed.err;
  const nlohmann::json drained = nlohmann::json::parse(replayed.out)["steps"][2]["drained"];
  EXPECT_EQ(drained["passes"], number_before("passes", served.out));
  EXPECT_EQ(drained["found_tokens"], number_before("tokens of prompts", served.out));
  EXPECT_EQ(drained["evictions"], number_before("evictions", served.out));
  EXPECT_EQ(drained["preemptions"], number_before("preemptions", served.out));
  EXPECT_THAT(served.out,
              HasSubstr("the cost of " + std::to_string(drained["passes"].get<int>()) + " passes is "))
      << "of the trace's own passes";
  EXPECT_THAT(served.out, testing::EndsWith(read_file(cost)));
  EXPECT_GT(drained["found_tokens"], 1000);
  EXPECT_GT(drained["evictions"], 50);
}

TEST(BenchServing, RefusesARequestThatIsTooLongBeforeItServesAny) {
  const TemporaryFolder folder;
  const std::string trace = (folder / "trace.jsonl").string();
  const auto refused = [&](const std::string& model, const std::string& lengths,
                           const std::vector<std::string>& parts) {
    // The second request comes after an hour. `timeout` ends a program that waits for it.
    write_file(trace, R"({"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]})"
                      "\n\n"
                      R"({"timestamp": 3600000, )" +
                          lengths + R"(, "hash_ids": [2]})");
    const std::string program = (std::filesystem::path(BINARY_DIR) / "bench_serving").string();
    expect_refusal("/usr/bin/timeout",
                   {"60", program, "--model", model, "--traffic", trace, "--trace-block", "65536"}, 2, parts);
  };
  refused(kSmallModel, R"("input_length": 500, "output_length": 13)",
          {"trace.jsonl, line 3: the request has 500 tokens in and 13 out", "context is 512",
           "give shorter ones"});
  refused(checkpoint_folder("fairytale").string(), R"("input_length": 4000, "output_length": 100)",
          {"trace.jsonl, line 3: the request has 4000 tokens in and 100 out", "give shorter ones"});
}

TEST(BenchServing, AFileOfACostStaysIfNoCostCanBeFitted) {
  const TemporaryFolder folder;
  const std::string trace = (folder / "trace.jsonl").string(), cost = (folder / "cost.json").string();
  write_file(trace, R"({"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [1]})");
  write_file(cost, "old");
  const std::vector<std::string> line = {"--model", kSmallModel, "--traffic", trace, "--cost", cost};
  const ProgramResult result = run_step("bench_serving", line);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("a cost is fitted to at least 8 passes, and there are 2"));
  EXPECT_EQ(read_file(cost), "old");
  std::filesystem::remove(cost);
  EXPECT_EQ(run_step("bench_serving", line).exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(cost)) << "nothing half-written";
}

TEST(BenchServing, APassThatFailsEndsTheMeasurement) {
  const TemporaryFolder folder;
  test::TestCheckpoint checkpoint("LlamaForCausalLM");
  for (float& number : checkpoint.tensors.at("model.norm.weight").values) number = std::nanf("");
  std::filesystem::create_directory(folder / "model");
  checkpoint.save(folder / "model");
  const std::string trace = (folder / "trace.jsonl").string(), cost = (folder / "cost.json").string();
  write_file(trace, R"({"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [1]})"
                    "\n"
                    R"({"timestamp": 3600000, "input_length": 10, "output_length": 2, "hash_ids": [2]})");
  const std::string model = (folder / "model").string();
  for (const std::vector<std::string>& line :
       {std::vector<std::string>{"--cost", cost}, {"--traffic", trace, "--cost", cost}}) {
    std::vector<std::string> words = {"60", (std::filesystem::path(BINARY_DIR) / "bench_serving").string(),
                                      "--model", model};
    words.insert(words.end(), line.begin(), line.end());
    const ProgramResult result = run_program("/usr/bin/timeout", words);  // the second request is not awaited
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, ContainsRegex("error: .*NaN"));
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(std::filesystem::exists(cost));
  }
}

TEST(BenchServing, ALinkToAFileOfACostStays) {
  const TemporaryFolder folder;
  const std::string trace = (folder / "trace.jsonl").string();
  write_file(trace, R"({"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [1]})");
  std::filesystem::create_symlink("later.json", folder / "cost.json");
  EXPECT_EQ(run_step("bench_serving",
                     {"--model", kSmallModel, "--traffic", trace, "--cost", (folder / "cost.json").string()})
                .exit_code,
            2);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "cost.json"));
}

TEST(BenchServing, RefusesWrongFilesAndOptionsForReplays) {
  const TemporaryFolder folder;
  const std::string trace = (folder / "trace.jsonl").string();
  write_file(trace, "\noh\n");
  const auto refused = [](const std::vector<std::string>& line, const std::vector<std::string>& parts) {
    std::vector<std::string> words = {"--model", kSmallModel};
    words.insert(words.end(), line.begin(), line.end());
    expect_refusal("bench_serving", words, 2, parts);
  };
  refused({"--cost", (folder / "none" / "cost.json").string()}, {"--cost", "cost.json", "No such file"});
  refused({"--cost", folder.path().string()}, {"--cost", "Is a directory"});
  for (const char* option : {"--cost", "--traffic", "--trace-block", "--max-batch-tokens"}) {
    refused({option}, {std::string(option) + " needs a value"});
    refused({option, "--threads", "1"}, {std::string(option) + " needs a value", "\"--threads\""});
    refused({std::string(option) + "="}, {option, "\"\""});
    refused({std::string(option) + "=16", option, "16"}, {std::string(option) + " is given twice"});
  }
  refused({"--traffic", trace, "--trace-block", "0"}, {"--trace-block", "a whole number from 1 to 1048576"});
  refused({"--trace-block", "16"}, {"--trace-block needs --traffic"});
  for (const auto& [block, trace_block] : {std::pair{"2", "16"}, {"1", "1"}, {"3", "16"}})
    refused({"--traffic", trace, "--block-size", block, "--trace-block", trace_block},
            {std::string("--block-size ") + block, "at least 3 tokens that divide --trace-block"});
  refused({"--traffic", trace, "--cost", trace}, {"--cost", trace, "is the trace", "give another file"});
  EXPECT_EQ(read_file(trace), "\noh\n");
  refused({"--max-batch-tokens", "64"}, {"--max-batch-tokens needs --cost or --traffic"});
  refused({"--traffic", trace, "--max-batch-tokens", "15"},
          {"--max-batch-tokens", "a whole number from 16 to 2147483647"});
  refused({"--traffic", (folder / "none.jsonl").string()}, {"none.jsonl", "No such file"});
  refused({"--traffic", trace}, {"trace.jsonl, line 2: "});
  const ProgramResult help = run_step("bench_serving", {"--help"});
  for (const char* option : {"--cost FILE", "--traffic TRACE", "--trace-block N", "--max-batch-tokens N"})
    EXPECT_THAT(help.out, HasSubstr(option));
}

}  // namespace
}  // namespace kvcache
