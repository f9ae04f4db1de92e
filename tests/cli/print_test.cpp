/// @file
/// The report: the JSON contract to the letter, floats that read back as the same floats, and the text for
/// people.

#include "common/cli/print.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace kvcache {
namespace {

Report small_report() {
  SequenceReport sequence;
  sequence.prompt_ids = {1, 2};
  sequence.output_ids = {3, 4};
  sequence.text = "Once";
  sequence.finish_reason = "length";
  sequence.cached_tokens = 1;
  sequence.block_table = {5, 2};
  sequence.ttft_ms = 1.5;

  Report report;
  report.step = "step3_paged";
  report.model = "fairytale";
  report.device = "cpu";
  report.dtype = "f32";
  report.threads = 2;
  report.sequences = {sequence};
  report.timing = {.prefill_ms = 1.5,
                   .decode_ms = 2.5,
                   .prefill_tokens = 2,
                   .decode_tokens = 1,
                   .ms_per_token = 0.5,
                   .prefill_tokens_per_s = 1333.25,
                   .decode_tokens_per_s = 40.5,
                   .decode_pass_ms = {0.5}};
  report.kv_memory = {
      .bytes_per_token = 512, .reserved_bytes = 1 << 20, .used_bytes = 1536, .pool_bytes = 3 << 20};
  report.kv_rows = {.computed = 8, .recomputed = 2};
  report.blocks = {.block_size = 16, .total = 1200, .free = 1100, .cached = 100, .in_use = 0};
  report.counters = {.prefix_hits = 1,
                     .evictions = 2,
                     .preemptions = 3,
                     .copies = 1,
                     .swaps_out = 5,
                     .swaps_in = 6,
                     .gathered_bytes = 2048};
  return report;
}

nlohmann::json parsed(const Report& report) {
  return nlohmann::json::parse(to_json(report));
}

Report report_with_logits(const std::vector<float>& logits) {
  Report report;
  report.sequences.emplace_back().logits = logits;
  return report;
}

std::string line_with(const std::string& text, const std::string& beginning) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(beginning)) return line;
  }
  return "no such line";
}

// ---- JSON ----

TEST(JsonReport, HasTheNamesAndTheOrderOfTheContract) {
  EXPECT_EQ(
      to_json(small_report()),
      R"({"schema":1,"step":"step3_paged","model":"fairytale","device":"cpu","dtype":"f32","threads":2,)"
      R"("sequences":[{"prompt_ids":[1,2],"output_ids":[3,4],"text":"Once","finish_reason":"length",)"
      R"("cached_tokens":1,"block_table":[5,2],"ttft_ms":1.5}],)"
      R"("timing":{"prefill_ms":1.5,"decode_ms":2.5,"prefill_tokens":2,"decode_tokens":1,"ms_per_token":0.5,)"
      R"("prefill_tokens_per_s":1333.25,"decode_tokens_per_s":40.5,"decode_pass_ms":[0.5]},)"
      R"("kv_memory":{"bytes_per_token":512,"reserved_bytes":1048576,"used_bytes":1536,"waste_percent":99.853515625,)"
      R"("pool_bytes":3145728},)"
      R"("kv_rows":{"computed":8,"recomputed":2},)"
      R"("blocks":{"block_size":16,"total":1200,"free":1100,"cached":100,"in_use":0},)"
      R"("counters":{"prefix_hits":1,"evictions":2,"preemptions":3,"copies":1,"swaps_out":5,"swaps_in":6,)"
      R"("gathered_bytes":2048}})"
      "\n");
}

TEST(JsonReport, HasEmptyArraysWhereThereIsNothing) {
  Report report;
  EXPECT_TRUE(parsed(report)["sequences"].is_array());
  report.sequences.emplace_back();
  for (const char* const name : {"prompt_ids", "output_ids", "block_table"}) {
    EXPECT_EQ(parsed(report)["sequences"][0][name], nlohmann::json::array()) << name;
  }
}

TEST(JsonReport, HasLogitsOnlyIfThereAreAny) {
  EXPECT_FALSE(parsed(report_with_logits({}))["sequences"][0].contains("logits"));
  EXPECT_EQ(parsed(report_with_logits({1.0F}))["sequences"][0]["logits"].size(), 1U);
}

TEST(JsonReport, PrintsLogitsInTheirShortestForm) {
  const std::string json = to_json(report_with_logits({0.1F, -2.5F, 1.0F / 3, 0.0F, -0.0F, 16777216.0F}));
  EXPECT_NE(json.find(R"("logits":[0.1,-2.5,0.33333334,0.0,-0.0,16777216.0])"), std::string::npos) << json;
}

TEST(JsonReport, PrintsLogitsThatReadBackAsTheSameFloat) {
  std::vector<float> logits = {std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest(),
                               std::numeric_limits<float>::min(), std::numeric_limits<float>::denorm_min(),
                               7.038531e-26F};
  for (std::uint32_t step = 0; step < 200000; ++step) {  // bit patterns from all over the range
    const float logit = std::bit_cast<float>(step * 2654435761U);
    if (std::isfinite(logit)) logits.push_back(logit);
  }
  const nlohmann::json read = parsed(report_with_logits(logits))["sequences"][0]["logits"];
  ASSERT_EQ(read.size(), logits.size());
  for (std::size_t id = 0; id < logits.size(); ++id) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(read[id].get<double>())),
              std::bit_cast<std::uint32_t>(logits[id]))
        << logits[id];
  }
}

TEST(JsonReport, PrintsNullForWhatIsNotFinite) {
  Report report = report_with_logits(
      {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1.0F});
  report.timing.ms_per_token = std::numeric_limits<double>::quiet_NaN();
  report.timing.decode_tokens_per_s = std::numeric_limits<double>::infinity();
  const nlohmann::json json = parsed(report);
  EXPECT_TRUE(json["sequences"][0]["logits"][0].is_null());
  EXPECT_TRUE(json["sequences"][0]["logits"][1].is_null());
  EXPECT_EQ(json["sequences"][0]["logits"][2], 1.0);
  EXPECT_TRUE(json["timing"]["ms_per_token"].is_null());
  EXPECT_TRUE(json["timing"]["decode_tokens_per_s"].is_null());
}

TEST(JsonReport, PrintsNullForWhatWasNotMeasured) {
  Report report = small_report();
  report.timing = {};
  const nlohmann::json timing = parsed(report)["timing"];
  for (const char* const name : {"ms_per_token", "prefill_tokens_per_s", "decode_tokens_per_s"}) {
    ASSERT_TRUE(timing.contains(name)) << name;
    EXPECT_TRUE(timing[name].is_null()) << name;
  }
  EXPECT_EQ(timing["decode_ms"], 0) << "the sum of no passes";
}

TEST(JsonReport, ReplacesBytesThatAreNotUtf8) {
  Report report = small_report();
  report.sequences[0].text = "half a character: \xF0\x9F";
  report.model = "folder\xFF";
  const nlohmann::json json = parsed(report);
  EXPECT_EQ(json["sequences"][0]["text"], "half a character: \uFFFD");
  EXPECT_EQ(json["model"], "folder\uFFFD");
}

TEST(JsonReport, KeepsTextWithQuotesLinesAndNuls) {
  Report report = small_report();
  report.sequences[0].text = std::string("\"a\"\n\t\\ ") + '\0' + " \x1b\xC3\xA9";
  const std::string json = to_json(report);
  EXPECT_EQ(nlohmann::json::parse(json)["sequences"][0]["text"], report.sequences[0].text);
  EXPECT_EQ(json.find('\n'), json.size() - 1) << "one line";
}

// ---- text ----

TEST(TextReport, ShowsTheRunOfAPagedStep) {
  EXPECT_EQ(to_text(small_report(), false),
            "Once\n"
            "\n"
            "step      step3_paged, cpu f32, 2 threads\n"
            "model     fairytale\n"
            "\n"
            "sequence  prompt  cached  output  finish    time to first token\n"
            "       1       2       1       2  length                1.50 ms\n"
            "\n"
            "prefill   2 tokens in 1.50 ms, 1,333 tokens/s\n"
            "decode    1 token in 2.50 ms, 40.5 tokens/s, 0.500 ms per pass\n"
            "K/V rows  8 computed per layer, 2 of them again (25.0%)\n"
            "KV memory 1.0 MiB reserved, 1.5 KiB used, 99.9% waste; 512 B per token\n"
            "blocks    1,200 of 16 tokens (3.0 MiB): 1,100 free, 100 cached, 0 in use\n"
            "counters  1 prefix hit, 2 evictions, 3 preemptions, 1 copy\n"
            "swaps     5 out, 6 in\n"
            "gathered  2.0 KiB of K and V\n");
}

TEST(TextReport, HasADashForWhatWasNotMeasured) {
  Report report = small_report();
  report.timing.ms_per_token = report.timing.decode_tokens_per_s = {};
  report.timing.decode_ms = 0;
  report.timing.decode_tokens = 0;
  EXPECT_EQ(line_with(to_text(report, true), "prefill"), "prefill   2 tokens in 1.50 ms, 1,333 tokens/s");
  EXPECT_EQ(line_with(to_text(report, true), "decode"),
            "decode    0 tokens in 0.00 ms, - tokens/s, - ms per pass");
}

TEST(TextReport, SaysNothingOfGatheringWhereNothingWasGathered) {
  Report report = small_report();
  report.counters.gathered_bytes = 0;
  EXPECT_EQ(line_with(to_text(report, false), "gathered"), "no such line");
}

TEST(TextReport, HasNoBlocksAndNoCountersWithoutAPool) {
  Report report = small_report();
  report.blocks = {};
  const std::string text = to_text(report, false);
  EXPECT_EQ(line_with(text, "blocks"), "no such line");
  EXPECT_EQ(line_with(text, "counters"), "no such line");
  EXPECT_EQ(line_with(text, "swaps"), "no such line");
}

TEST(TextReport, DoesNotRepeatTextsThatWereShown) {
  EXPECT_TRUE(to_text(small_report(), true).starts_with("step      step3_paged"));
}

TEST(TextReport, NumbersTheTextsOfSeveralSequences) {
  Report report = small_report();
  report.sequences.push_back(report.sequences[0]);
  report.sequences[1].text = "upon a time";
  EXPECT_TRUE(to_text(report, false).starts_with("[1]\nOnce\n\n[2]\nupon a time\n\nstep "));
}

TEST(TextReport, ShowsIdsWhereThereIsNoText) {
  Report report = small_report();
  report.sequences[0].text = "";
  EXPECT_TRUE(to_text(report, false).starts_with("ids 3 4\n\nstep "));
}

TEST(TextReport, CountsNothingOfNothingAsNoRecomputation) {
  EXPECT_EQ(line_with(to_text({}, true), "K/V rows"),
            "K/V rows  0 computed per layer, 0 of them again (0.0%)");
}

TEST(TextReport, PrintsBytesInTheUnitThatFits) {
  const auto printed = [](std::int64_t bytes) {
    Report report;
    report.kv_memory.reserved_bytes = bytes;
    const std::string line = line_with(to_text(report, true), "KV memory");
    return line.substr(10, line.find(" reserved") - 10);
  };
  EXPECT_EQ(printed(0), "0 B");
  EXPECT_EQ(printed(1023), "1023 B");
  EXPECT_EQ(printed(1024), "1.0 KiB");
  EXPECT_EQ(printed((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(printed(3 << 19), "1.5 MiB");
  EXPECT_EQ(printed(9'400'000'000), "8.8 GiB");
  EXPECT_EQ(printed(std::int64_t{5} << 40), "5.0 TiB");
}

TEST(TextReport, StaysUnderAHundredColumns) {
  Report report = small_report();
  constexpr std::int64_t million = 1'000'000;
  report.step = "step4_prefix_cache";
  report.threads = 1024;
  report.timing = {.prefill_ms = 1e7,
                   .decode_ms = 1e7,
                   .prefill_tokens = 100 * million,
                   .decode_tokens = 100 * million,
                   .ms_per_token = 1e5,
                   .prefill_tokens_per_s = 1e7,
                   .decode_tokens_per_s = 1e7,
                   .decode_pass_ms = {}};
  report.kv_memory = {.bytes_per_token = million,
                      .reserved_bytes = 1000 * million,
                      .used_bytes = 1000 * million,
                      .pool_bytes = 1000 * million};
  report.kv_rows = {.computed = 1000 * million, .recomputed = 999 * million};
  report.blocks = {
      .block_size = 65536, .total = million, .free = million / 2, .cached = million / 2, .in_use = 0};
  report.counters = {.prefix_hits = million,
                     .evictions = million,
                     .preemptions = 1000,
                     .copies = 1000,
                     .swaps_out = million,
                     .swaps_in = million};
  report.sequences[0].text = "";
  report.sequences[0].output_ids.assign(100, 151935);
  std::istringstream lines(to_text(report, false));
  for (std::string line; std::getline(lines, line);) EXPECT_LT(line.size(), 100U) << line;
}

}  // namespace
}  // namespace kvcache
