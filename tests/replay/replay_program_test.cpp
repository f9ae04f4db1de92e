// The program of ./steps replay as a user meets it: its reports, and one line for every mistake.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/report_of.h"

namespace kvcache {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Json = nlohmann::json;

class ReplayProgram : public testing::Test {
 protected:
  ReplayProgram() {
    const ProgramResult made =
        run_step("replay", {"--make", "chat", "--requests", "40", "--longest", "3000"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    EXPECT_EQ(made.err, "");
    write_file(trace_, made.out);
  }

  static ProgramResult run(const std::vector<std::string>& arguments) {
    ProgramResult result = run_step("replay", arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  ProgramResult replay(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {trace_, "--shape", "fairytale"});
    return run(more);
  }
  Json json(std::vector<std::string> more = {}) const {
    more.emplace_back("--json");
    const std::string out = replay(more).out;
    EXPECT_THAT(out, StartsWith("{"));
    EXPECT_EQ(out.back(), '\n');
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
    return Json::parse(out);
  }
  /// Exit code 2, nothing on stdout, one line.
  static void expect_refused(const std::vector<std::string>& arguments,
                             const std::vector<std::string>& parts) {
    expect_refusal("replay", arguments, 2, parts);
  }

  const TemporaryFolder folder_;
  const std::string trace_ = (folder_ / "trace.jsonl").string();
};

constexpr const char* kSteps[] = {"step2_flat_cache", "step3_paged", "step4_prefix_cache"};

// Reports

TEST_F(ReplayProgram, SaysWhatItDoesAndTakes) {
  const std::string help = run({"--help"}).out;
  EXPECT_THAT(help, StartsWith("Usage: replay TRACE [OPTIONS]"));
  for (
      const char* option :
      {"--trace-block N",      "--shape NAME",   "--model DIR",        "--dtype",         "--kv-memory SIZE",
       "--num-blocks N",       "--block-size N", "--host-memory SIZE", "--max-seq-len N", "--max-sequences N",
       "--max-batch-tokens N", "--card NAME",    "--cost FILE",        "--engines N",     "--router NAME",
       "--sweep RANGE",        "--slo TIME",     "--serial ",          "--json ",         "--make KIND",
       "--requests N",         "--longest N",    "--seed N",           "-h, --help"})
    EXPECT_THAT(help, HasSubstr(std::string("\n  ") + option));
  EXPECT_EQ(run({"-h"}).out, help);
  EXPECT_EQ(run({"--frob", "--help"}).out, help);
}

TEST_F(ReplayProgram, PrintsATableWithAColumnForEachStep) {
  const ProgramResult result = replay();
  EXPECT_THAT(result.out, StartsWith(trace_ + ": 40 requests in "));
  EXPECT_THAT(result.out, HasSubstr("fairytale, bf16: 4,096 bytes of K and V a token, 40.0 GB an engine"));
  EXPECT_THAT(result.out, HasSubstr("the roofline of h100"));
  EXPECT_THAT(result.out, ContainsRegex("\n +step2_flat_cache +step3_paged +step4_prefix_cache\n"));
  for (const char* row : {"pool of an engine",
                          "when the last request came",
                          "when all had ended",
                          "  requests done",
                          "    refused",
                          "    waiting",
                          "    running",
                          "  sequences at a time, mean",
                          "  passes",
                          "  outputs per second",
                          "  first token: mean",
                          "    median / 90% / 99%",
                          "  next tokens: median / 90% / 99%",
                          "  found, of the input tokens",
                          "    of their full blocks",
                          "  evicted blocks",
                          "  swapped blocks, out and in",
                          "  preemptions",
                          "    tokens computed again",
                          "memory, once a second",
                          "  reserved: mean / most",
                          "  used: mean / most",
                          "  wasted, of the reserved"})
    EXPECT_THAT(result.out, HasSubstr(std::string("\n") + row));
  EXPECT_THAT(result.out, ContainsRegex("requests done +40 +40 +40\n"));
}

TEST_F(ReplayProgram, RealTimeIsOnStderrAlone) {
  const ProgramResult result = replay();
  for (const char* step : kSteps)
    EXPECT_THAT(result.err,
                ContainsRegex(std::string(step) + ", 1 engine: [0-9]+ passes in .* s of real time"));
  EXPECT_THAT(result.out, Not(HasSubstr("real time")));
}

TEST_F(ReplayProgram, PrintsTheReportAsOneJsonObject) {
  const Json report = json();
  EXPECT_EQ(report["schema"], 1);
  EXPECT_EQ(report["trace"], trace_);
  EXPECT_EQ(report["requests"], 40);
  EXPECT_EQ(report["model"], "fairytale");
  EXPECT_EQ(report["dtype"], "bf16");
  EXPECT_EQ(report["bytes_per_token"], 4096);
  EXPECT_EQ(report["block_size"], 16);
  EXPECT_EQ(report["max_sequences"], 256);
  EXPECT_EQ(report["max_batch_tokens"], 2048);
  EXPECT_EQ(report["pool_bytes"], 40'000'000'000);
  EXPECT_EQ(report["engines"], 1);
  EXPECT_EQ(report["router"], "least-loaded");
  EXPECT_EQ(report["serial"], false);
  EXPECT_EQ(report["cost"]["from"], "h100");
  ASSERT_EQ(report["steps"].size(), 3U);
  for (std::size_t n = 0; n < 3; ++n) {
    const Json& step = report["steps"][n];
    EXPECT_EQ(step["step"], kSteps[n]);
    for (const char* moment : {"at_last_arrival", "drained"}) {
      const Json& figures = step[moment];
      EXPECT_EQ(figures["done"].get<int>() + figures["refused"].get<int>() + figures["waiting"].get<int>() +
                    figures["running"].get<int>(),
                40);
      for (const char* field :
           {"at_ms",           "most_requests",     "passes",           "most_sequences",
            "mean_sequences",  "busy_share",        "generated_tokens", "generated_tokens_per_s",
            "computed_tokens", "recomputed_tokens", "input_tokens",     "found_tokens",
            "found_share",     "input_blocks",      "found_blocks",     "found_block_share",
            "evictions",       "preemptions",       "swaps_out",        "swaps_in"})
        EXPECT_TRUE(figures[field].is_number()) << field;
      for (const char* spread : {"first_token_ms", "output_token_ms"}) {
        for (const char* field : {"count", "mean", "median", "p90", "p99"})
          EXPECT_TRUE(figures[spread][field].is_number()) << spread << " " << field;
      }
    }
    EXPECT_EQ(step["drained"]["done"], 40);
    EXPECT_EQ(step["drained"]["generated_tokens"], report["output_tokens"]);
    EXPECT_EQ(step["drained"]["input_tokens"], report["input_tokens"]);
    EXPECT_EQ(step["at_last_arrival"]["at_ms"], report["last_arrival_ms"]);
    EXPECT_LE(step["at_last_arrival"]["busy_share"], 1);
    const Json& memory = step["memory"];
    EXPECT_EQ(memory["samples"], memory["over_time"].size()) << "a short replay shows all";
    EXPECT_LE(memory["most_used_bytes"], memory["most_reserved_bytes"]);
    EXPECT_LE(memory["most_reserved_bytes"], memory["pool_bytes"]);
  }
  EXPECT_EQ(report["steps"][0]["drained"]["found_share"], 0);
  EXPECT_EQ(report["steps"][1]["drained"]["found_share"], 0);
  EXPECT_GT(report["steps"][2]["drained"]["found_share"], 0.2);
  EXPECT_LT(report["steps"][1]["memory"]["wasted_percent"], report["steps"][0]["memory"]["wasted_percent"]);
}

TEST_F(ReplayProgram, TextAndJsonSayTheSame) {
  const Json report = json({"--kv-memory", "16MB"});
  const std::string text = replay({"--kv-memory", "16MB"}).out;
  std::string evicted = "evicted blocks";
  for (const Json& step : report["steps"]) {
    std::string number = std::to_string(step["drained"]["evictions"].get<int>());
    if (number.size() > 3) number.insert(number.size() - 3, ",");
    evicted += " +" + number;
  }
  EXPECT_GT(report["steps"][2]["drained"]["evictions"], 0);
  EXPECT_THAT(text, ContainsRegex(evicted + "\n"));
}

TEST_F(ReplayProgram, EqualRunsAreEqualToTheByte) {
  const std::vector<std::vector<std::string>> lines = {
      {"--kv-memory", "16MB"},
      {"--kv-memory", "16MB", "--json"},
      {"--engines", "3", "--router", "longest-prefix", "--num-blocks", "500"}};
  for (const std::vector<std::string>& line : lines) EXPECT_EQ(replay(line).out, replay(line).out);
}

TEST_F(ReplayProgram, GivesEachStepTheSameMemory) {
  const Json report = json({"--num-blocks", "500", "--block-size", "32", "--host-memory", "1MB"});
  EXPECT_EQ(report["pool_bytes"], 500 * 32 * 4096);
  EXPECT_EQ(report["steps"][1]["blocks"], 500);
  EXPECT_EQ(report["steps"][2]["blocks"], 500);
  EXPECT_EQ(report["steps"][2]["host_blocks"], 1'000'000 / (32 * 4096));
  const std::int64_t longest = report["steps"][0]["max_seq_len"];
  EXPECT_EQ(report["steps"][0]["reservations"], 500 * 32 / longest);
  const Json shorter =
      json({"--num-blocks", "500", "--block-size", "32", "--max-seq-len", "1000"})["steps"][0];
  EXPECT_EQ(shorter["max_seq_len"], 1000);
  EXPECT_EQ(shorter["reservations"], 16);
  EXPECT_GT(shorter["drained"]["refused"], 0) << "they exceed a reservation";
  EXPECT_EQ(shorter["drained"]["refused"].get<int>() + shorter["drained"]["done"].get<int>(), 40);
}

TEST_F(ReplayProgram, TheLongestRequestFillsAReservation) {
  write_file(trace_, R"({"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]})"
                     "\n"
                     R"({"timestamp": 0, "input_length": 12, "output_length": 1, "hash_ids": [1]})");
  EXPECT_EQ(json()["steps"][0]["max_seq_len"], 14) << "the last output is not stored";
}

TEST_F(ReplayProgram, RefusesEveryRequestWhereNotOneReservationFits) {
  const ProgramResult result = replay({"--num-blocks", "20"});
  EXPECT_THAT(result.out, ContainsRegex("pool of an engine +0 x "));
  const Json step = json({"--num-blocks", "20"})["steps"][0];
  EXPECT_EQ(step["reservations"], 0);
  EXPECT_EQ(step["drained"]["refused"], 40);
  EXPECT_EQ(step["drained"]["done"], 0);
}

TEST_F(ReplayProgram, SerialFindsWithoutGeneratingAnything) {
  const Json report = json({"--serial", "--block-size", "512", "--num-blocks", "10000"});
  EXPECT_EQ(report["serial"], true);
  const Json& drained = report["steps"][2]["drained"];
  EXPECT_EQ(drained["generated_tokens"], 0);
  EXPECT_EQ(drained["most_sequences"], 1);
  EXPECT_EQ(drained["done"], 40);
  EXPECT_GT(drained["found_share"], 0.2);
  EXPECT_THAT(replay({"--serial"}).out, HasSubstr("one request after the other, nothing generated"));
}

TEST_F(ReplayProgram, ReadsTheModelTheTypeAndTheCostFromTheLine) {
  EXPECT_EQ(json({"--dtype", "f32"})["bytes_per_token"], 8192);
  EXPECT_EQ(json({"--card", "a100"})["cost"]["from"], "a100");
  const Json by_folder =
      Json::parse(run({trace_, "--model", checkpoint_folder("fairytale").string(), "--json"}).out);
  EXPECT_EQ(by_folder["bytes_per_token"], 4096);
  const std::string cost = (folder_ / "cost.json").string();
  write_file(cost, R"({"constant_ms": 7, "row_ms": 0, "pair_ms": 0, "context_ms": 0})");
  const Json report = json({"--cost", cost});
  EXPECT_EQ(report["cost"]["from"], cost);
  EXPECT_EQ(report["cost"]["constant_ms"], 7);
  EXPECT_FALSE(report["cost"].contains("fitted_on"));
  EXPECT_EQ(report["steps"][2]["drained"]["output_token_ms"]["p99"], 7);
}

TEST_F(ReplayProgram, SaysWhatItsCostWasFittedOn) {
  const std::string cost = (folder_ / "cost.json").string();
  const std::string parts = R"("constant_ms": 7, "row_ms": 0, "pair_ms": 0, "context_ms": 0})";
  write_file(cost, R"({"fitted_on": "a model,\n\u001b[1m a machine", )" + parts);
  EXPECT_THAT(replay({"--cost", cost}).out,
              HasSubstr("passes take what " + cost + R"(, fitted on "a model,\n\u001b[1m a machine", says)"));
  EXPECT_EQ(json({"--cost", cost})["cost"]["fitted_on"], "a model,\n\x1b[1m a machine");
  write_file(cost, R"({"fitted_on": [1], )" + parts);
  EXPECT_THAT(replay({"--cost", cost}).out, HasSubstr("passes take what " + cost + " says"));
}

TEST_F(ReplayProgram, SharesTheRequestsAmongEngines) {
  for (const char* router : {"round-robin", "least-loaded", "longest-prefix"}) {
    const Json report = json({"--engines", "4", "--router", router, "--kv-memory", "40MB"});
    EXPECT_EQ(report["engines"], 4);
    EXPECT_EQ(report["router"], router);
    for (const Json& step : report["steps"]) EXPECT_EQ(step["drained"]["done"], 40);
    EXPECT_THAT(replay({"--engines", "4", "--router", router, "--kv-memory", "40MB"}).out,
                HasSubstr(std::string("4 engines, ") + router));
  }
  const auto found = [this](const char* router) {
    return json({"--engines", "4", "--router", router, "--kv-memory",
                 "40MB"})["steps"][2]["drained"]["found_tokens"]
        .get<int>();
  };
  EXPECT_GT(found("longest-prefix"), found("round-robin"));
}

TEST_F(ReplayProgram, SweepsThePoolAndTheRate) {
  const Json pools = json({"--sweep", "kv-memory=8MB..40MB"});
  ASSERT_EQ(pools["points"].size(), 3U) << "8, 16, 32";
  EXPECT_FALSE(pools.contains("pool_bytes"));
  double before = -1;
  for (std::size_t n = 0; n < 3; ++n) {
    EXPECT_EQ(pools["points"][n]["value"], 8'000'000 << n);
    ASSERT_EQ(pools["points"][n]["steps"].size(), 3U);
    const double found = pools["points"][n]["steps"][2]["drained"]["found_share"];
    EXPECT_GE(found, before);
    before = found;
    EXPECT_EQ(pools["points"][n]["steps"][2]["blocks"], (8'000'000 << n) / (16 * 4096));
  }
  const Json rates = json({"--sweep", "rate=0.5..2"});
  ASSERT_EQ(rates["points"].size(), 3U);
  const double last = rates["last_arrival_ms"];
  for (const Json& point : rates["points"])
    EXPECT_DOUBLE_EQ(point["steps"][1]["at_last_arrival"]["at_ms"], last / point["value"].get<double>());
  EXPECT_THAT(replay({"--sweep", "rate=1..1"}).out, ContainsRegex("\nrate .*\n.*found.*\n1 +0.0%"));
  EXPECT_THAT(replay({"--sweep", "kv-memory=20MB..20MB"}).out,
              ContainsRegex("\nkv-memory .*\n.*\n20.0 MB +0.0%"));
}

TEST_F(ReplayProgram, FindsTheFewestEnginesThatKeepTheSlo) {
  const std::string cost = (folder_ / "cost.json").string();
  write_file(cost, R"({"constant_ms": 300, "row_ms": 0, "pair_ms": 0, "context_ms": 0})");
  const std::vector<std::string> line = {"--cost", cost, "--max-sequences", "1", "--kv-memory", "20MB"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), line.begin(), line.end());
    return more;
  };
  const Json report = json(with({"--slo", "2s"}));
  EXPECT_FALSE(report.contains("engines"));
  for (std::size_t n = 0; n < 3; ++n) {
    const std::int64_t engines = report["steps"][n]["engines"];
    ASSERT_GT(engines, 1);
    // With so many it is kept, and with one less it is not.
    for (const std::int64_t fewer : {0, 1}) {
      const Json first =
          json(with({"--engines", std::to_string(engines - fewer)}))["steps"][n]["drained"]["first_token_ms"];
      EXPECT_EQ(first["p99"] > 2000, fewer == 1) << kSteps[n] << ", " << engines - fewer;
      EXPECT_EQ(first["count"], 40);
    }
  }
  EXPECT_EQ(report, json(with({"--slo", "2000ms"})));
  EXPECT_THAT(replay(with({"--slo", "2s"})).out,
              ContainsRegex("engines that give 99% of the requests their first token within 2.00 s, router "
                            "least-loaded\n.*\nstep2_flat_cache +[0-9]+ "));
}

TEST_F(ReplayProgram, SaysThatNoNumberOfEnginesKeepsTheSloOfRefusedRequests) {
  const Json report = json({"--slo", "10s", "--max-seq-len", "20"});
  EXPECT_EQ(report["steps"][0]["engines"], nullptr) << "no request fits in a reservation";
  EXPECT_FALSE(report["steps"][0].contains("drained"));
  EXPECT_EQ(report["steps"][1]["engines"], 1);
  EXPECT_THAT(replay({"--slo", "10s", "--max-seq-len", "20"}).out,
              ContainsRegex("step2_flat_cache +none +[0-9,]+ engines are too few\nstep3_paged +1 "));
}

TEST_F(ReplayProgram, ReadsAPipe) {
  const std::string program = (std::filesystem::path(BINARY_DIR) / "replay").string();
  const ProgramResult piped =
      run_program("/bin/sh", {"-c", program + " --make chat --requests 40 --longest 3000 | " + program +
                                        " /dev/stdin --shape fairytale"});
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  const std::string out = replay().out;
  EXPECT_EQ(piped.out.substr(piped.out.find(':')), out.substr(out.find(':')));
}

TEST_F(ReplayProgram, OptionsMayStandBeforeTheTraceAndTakeAnEqualsSign) {
  EXPECT_EQ(run({"--shape=fairytale", "--kv-memory=16MB", trace_}).out, replay({"--kv-memory", "16MB"}).out);
}

// Made-up traces

TEST_F(ReplayProgram, WritesMadeUpTracesThatItReads) {
  for (const char* kind : {"chat", "system", "agents"}) {
    const ProgramResult made =
        run({"--make", kind, "--requests", "25", "--longest", "2000", "--trace-block", "32", "--seed", "4"});
    EXPECT_EQ(made.err, "");
    EXPECT_EQ(std::count(made.out.begin(), made.out.end(), '\n'), 25);
    const std::string trace = (folder_ / kind).string();
    write_file(trace, made.out);
    EXPECT_THAT(run({trace, "--trace-block", "32"}).out, ContainsRegex("requests done +25 +25 +25\n"));
    EXPECT_EQ(
        run({"--make", kind, "--requests", "25", "--longest", "2000", "--trace-block", "32", "--seed", "4"})
            .out,
        made.out);
    EXPECT_NE(run({"--make", kind, "--requests", "25", "--longest", "2000", "--trace-block", "32"}).out,
              made.out);
  }
  const std::string usual = run({"--make", "chat"}).out;
  EXPECT_EQ(std::count(usual.begin(), usual.end(), '\n'), 200);
}

// Refusals

TEST_F(ReplayProgram, RefusesOptionsThatItDoesNotKnow) {
  expect_refused({trace_, "--blok-size", "16"},
                 {"unknown option \"--blok-size\"", "did you mean --block-size?"});
  expect_refused({trace_, "--frobnicate"},
                 {"unknown option \"--frobnicate\"", "--help lists the options of replay"});
  expect_refused({trace_, "-x"}, {"unknown option \"-x\""});
  expect_refused({trace_, "--serve"}, {"unknown option \"--serve\""});
}

TEST_F(ReplayProgram, RefusesAnOptionThatIsGivenTwice) {
  expect_refused({trace_, "--engines", "2", "--engines=2"}, {"--engines is given twice"});
  expect_refused({trace_, "--json", "--json"}, {"--json is given twice"});
}

TEST_F(ReplayProgram, RefusesAMissingValueAndOneTooMany) {
  for (const char* option : {"--trace-block",
                             "--shape",
                             "--model",
                             "--dtype",
                             "--kv-memory",
                             "--num-blocks",
                             "--block-size",
                             "--host-memory",
                             "--max-seq-len",
                             "--max-sequences",
                             "--max-batch-tokens",
                             "--card",
                             "--cost",
                             "--engines",
                             "--router",
                             "--sweep",
                             "--slo",
                             "--make",
                             "--requests",
                             "--longest",
                             "--seed"}) {
    expect_refused({trace_, option}, {std::string(option) + " needs a value"});
    expect_refused({option, "--json", trace_}, {std::string(option) + " needs a value", "\"--json\""});
    expect_refused({trace_, std::string(option) + "="}, {option});
  }
  expect_refused({trace_, "--serial=1"}, {"--serial takes no value"});
  expect_refused({trace_, "--json=yes"}, {"--json takes no value"});
  expect_refused({trace_, "--help=1"}, {"--help takes no value"});
}

TEST_F(ReplayProgram, NamesTheWrongValueOfEachOption) {
  struct {
    std::string option, value, right;
  } const wrong[] = {
      {"--trace-block", "0", "a whole number from 1 to 1048576"},
      {"--trace-block", "1048577", "a whole number from 1 to 1048576"},
      {"--shape", "llama-9", "llama-3.1-8b"},
      {"--dtype", "f8", "one of f32, f16, bf16"},
      {"--kv-memory", "40GBs", "a whole number of bytes above 0"},
      {"--kv-memory", "0", "a whole number of bytes above 0"},
      {"--kv-memory", "1.5GB", "a whole number of bytes above 0"},
      {"--num-blocks", "0", "a whole number from 1 to 2147483647"},
      {"--num-blocks", "2147483648", "a whole number from 1 to 2147483647"},
      {"--block-size", "-1", "a whole number from 1 to 1048576"},
      {"--host-memory", "much", "a whole number of bytes above 0"},
      {"--max-seq-len", "0", "a whole number from 1 to 2147483647"},
      {"--max-sequences", "65537", "a whole number from 1 to 65536"},
      {"--max-batch-tokens", "1e3", "a whole number from 1 to 2147483647"},
      {"--card", "h300", "one of a100, h100, h200"},
      {"--engines", "0", "a whole number from 1 to 4096"},
      {"--engines", "4097", "a whole number from 1 to 4096"},
      {"--router", "random", "one of round-robin, least-loaded, longest-prefix"},
      {"--sweep", "10GB..20GB", "kv-memory=10GB..320GB or rate=0.5..8"},
      {"--sweep", "kv-memory=10GB", "kv-memory=10GB..320GB or rate=0.5..8"},
      {"--sweep", "rate=8", "kv-memory=10GB..320GB or rate=0.5..8"},
      {"--sweep", "rate=8..4", "a range whose first value is above 0 and not above its last"},
      {"--sweep", "rate=0..4", "a range whose first value is above 0 and not above its last"},
      {"--sweep", "kv-memory=2GB..1GB", "a range whose first value is above 0 and not above its last"},
      {"--slo", "5", "a time above 0, as 5s or 800ms"},
      {"--slo", "0s", "a time above 0, as 5s or 800ms"},
      {"--slo", "-1s", "a time above 0, as 5s or 800ms"},
      {"--slo", "fives", "a time above 0, as 5s or 800ms"},
      {"--slo", "nanms", "a time above 0, as 5s or 800ms"},
      {"--slo", "s", "a time above 0, as 5s or 800ms"},
  };
  for (const auto& [option, value, right] : wrong)
    expect_refused({trace_, fmt::format("{}={}", option, value)}, {right, fmt::format("\"{}\"", value)});
  expect_refused({trace_, "--sweep", "rate=a..4"}, {"--sweep", "\"a\""});
  expect_refused({trace_, "--sweep", "rate=1..2000"}, {"--sweep", "\"2000\""});
  expect_refused({trace_, "--sweep", "kv-memory=1GB..x"}, {"--sweep", "\"x\""});
  expect_refused({"--make", "talk"}, {"--make", "one of chat, system, agents", "\"talk\""});
  expect_refused({"--make", "chat", "--requests", "0"}, {"--requests", "a whole number from 1 to 10000000"});
  expect_refused({"--make", "chat", "--longest", "63"}, {"--longest", "a whole number from 64 to 10000000"});
  expect_refused({"--make", "chat", "--seed", "-1"}, {"--seed", "a whole number from 0 to "});
}

TEST_F(ReplayProgram, RefusesOptionsThatExcludeEachOther) {
  const std::vector<std::vector<std::string>> pairs = {
      {"--shape=tiny", "--model=" + checkpoint_folder("fairytale").string()},
      {"--kv-memory=1GB", "--num-blocks=10"},
      {"--card=h100", "--cost=c.json"},
      {"--slo=5s", "--engines=2"},
      {"--slo=5s", "--sweep=rate=1..2"},
      {"--slo=5s", "--serial"},
      {"--serial", "--engines=2"},
      {"--sweep=kv-memory=1GB..2GB", "--kv-memory=1GB"},
      {"--sweep=kv-memory=1GB..2GB", "--num-blocks=10"},
      {"--sweep=rate=1..2", "--serial"}};
  for (const std::vector<std::string>& pair : pairs) {
    const auto name = [](const std::string& word) { return word.substr(0, word.find('=')); };
    for (const bool reversed : {false, true})
      expect_refused({trace_, pair[reversed ? 1 : 0], pair[reversed ? 0 : 1]},
                     {name(pair[0]), name(pair[1]), "exclude each other"});
  }
}

TEST_F(ReplayProgram, RefusesWhatCannotWorkTogether) {
  expect_refused({trace_, "--block-size", "48"}, {"--block-size 48 does not divide --trace-block 512"});
  expect_refused({trace_, "--trace-block", "8"}, {"--block-size 16 does not divide --trace-block 8"});
  expect_refused({trace_, "--kv-memory", "1MB"}, {"--kv-memory 1000000", "2097152 bytes", "--block-size 16"});
  expect_refused({trace_, "--sweep", "kv-memory=1MB..8MB"},
                 {"kv-memory", "2097152 bytes", "--block-size 16"});
  expect_refused({trace_, "--max-batch-tokens", "100"}, {"--max-batch-tokens 100", "--max-sequences 256"});
  expect_refused(
      {trace_, "--num-blocks", "2147483647", "--block-size", "1048576", "--trace-block", "1048576"},
      {"--num-blocks 2147483647", "2^63"});
  expect_refused({trace_, "--kv-memory", "9000000000GB", "--shape", "tiny"}, {"blocks", "32 bits"});
}

TEST_F(ReplayProgram, RefusesAMissingTraceAndASecondOne) {
  expect_refused({}, {"no trace is given", "--make chat"});
  expect_refused({"--json"}, {"no trace is given"});
  expect_refused({""}, {"the trace's name is empty"});
  expect_refused({trace_, "other.jsonl"}, {"unexpected word \"other.jsonl\""});
  expect_refused({(folder_ / "none.jsonl").string()}, {"none.jsonl", "No such file"});
  expect_refused({folder_.path().string()}, {folder_.path().string(), "folder"});
}

TEST_F(ReplayProgram, RefusesToMakeATraceAndReplayIt) {
  expect_refused({"--make", "chat", trace_}, {"--make writes a trace and reads none", trace_});
  expect_refused({"--make", "chat", "--json"}, {"--make replays nothing; leave out --json"});
  expect_refused({"--make", "chat", "--engines", "2"}, {"leave out --engines"});
  for (const char* option : {"--requests", "--longest", "--seed"})
    expect_refused({trace_, option, "100"}, {std::string(option) + " needs --make"});
}

TEST_F(ReplayProgram, NamesTheLineThatIsWrong) {
  const std::string good = R"({"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]})"
                           "\n";
  const auto with = [&](const std::string& line) {
    write_file(trace_, good + good + line);
    return std::vector<std::string>{trace_};
  };
  expect_refused(with("oh"), {"trace.jsonl, line 3: parse error at column 1"});
  expect_refused(with(R"({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1]})"),
                 {"trace.jsonl, line 3: ", "\"hash_ids\" has 1 numbers", "needs 2", "--trace-block"});
  expect_refused(with(R"({"timestamp": -1, "input_length": 6, "output_length": 5, "hash_ids": [1]})"),
                 {"trace.jsonl, line 3: \"timestamp\" is -1; it must be a number from 0"});
  write_file(trace_, "\n\n");
  expect_refused({trace_}, {"trace.jsonl holds no request"});
  write_file(trace_, "\x1f\x8b\x08 packed");
  expect_refused({trace_}, {"trace.jsonl is compressed; unpack it"});
}

TEST_F(ReplayProgram, NamesAWrongModelAndAWrongCost) {
  expect_refused({trace_, "--model", (folder_ / "none").string()}, {"none", "no such folder"});
  expect_refused({trace_, "--cost", (folder_ / "none.json").string()}, {"none.json"});
  write_file(folder_ / "cost.json", R"({"constant_ms": 7})");
  expect_refused({trace_, "--cost", (folder_ / "cost.json").string()},
                 {"cost.json", "\"row_ms\" is missing"});
  expect_refused({(folder_ / "none.jsonl").string(), "--cost", (folder_ / "cost.json").string()},
                 {"\"row_ms\" is missing"});
}

TEST_F(ReplayProgram, APoolInBlocksNeedsNoKvMemory) {
  write_file(trace_, R"({"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]})");
  const std::vector<std::string> large = {trace_, "--trace-block", "1048576", "--block-size", "1048576"};
  std::vector<std::string> line = large;
  line.insert(line.end(), {"--num-blocks", "3"});
  EXPECT_EQ(run_step("replay", line).exit_code, 0);
  line = large;
  line.insert(line.end(), {"--sweep", "kv-memory=200GB..200GB"});
  EXPECT_EQ(run_step("replay", line).exit_code, 0);
  expect_refused(large, {"--kv-memory 40000000000: a block takes 137438953472 bytes"});
}

TEST_F(ReplayProgram, NoRouterLooksForARequestThatNoEngineHolds) {
  std::string blocks = "1";  // ids of this request would take 8 GB
  for (int n = 2; n <= 2048; ++n) blocks += ", " + std::to_string(n);
  write_file(trace_, R"({"timestamp": 0, "input_length": 2147483647, "output_length": 0, "hash_ids": [)" +
                         blocks + "]}\n" +
                         R"({"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]})");
  for (const char* router : {"round-robin", "least-loaded", "longest-prefix"}) {
    const ProgramResult result =
        run_program("/bin/sh", {"-c", "ulimit -v 4000000; exec \"$0\" \"$@\"",
                                (std::filesystem::path(BINARY_DIR) / "replay").string(), trace_,
                                "--trace-block", "1048576", "--engines", "2", "--router", router, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const Json& step : Json::parse(result.out)["steps"]) EXPECT_EQ(step["drained"]["refused"], 1);
  }
}

TEST_F(ReplayProgram, ATraceMayHaveANameThatIsNoUtf8) {
  const std::string name = (folder_ / "no\xff.jsonl").string();
  std::filesystem::copy(trace_, name);
  const ProgramResult result = run_step("replay", {name, "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(Json::parse(result.out)["trace"], testing::EndsWith("no\xef\xbf\xbd.jsonl"));
}

TEST_F(ReplayProgram, AFittedCostNeedsTheTimeOfASwapForAHostTier) {
  const std::string cost = (folder_ / "cost.json").string();
  const std::string parts = R"({"constant_ms": 1, "row_ms": 0, "pair_ms": 0, "context_ms": 0)";
  write_file(cost, parts + "}");
  expect_refused({trace_, "--cost", cost, "--host-memory", "1GB"}, {cost, "has no \"swap_ms\"", "--card"});
  write_file(cost, parts + R"(, "swap_ms": 0.5})");
  EXPECT_EQ(run_step("replay", {trace_, "--cost", cost, "--host-memory", "1GB"}).exit_code, 0);
}

TEST_F(ReplayProgram, JsonSaysWhatIsSweptAndWhichTimeIsKept) {
  EXPECT_EQ(json({"--sweep", "rate=1..1"})["sweep"], "rate");
  EXPECT_EQ(json({"--sweep", "kv-memory=1GB..1GB"})["sweep"], "kv-memory");
  EXPECT_EQ(json({"--slo", "5s"})["slo_ms"], 5000);
}

}  // namespace
}  // namespace kvcache
