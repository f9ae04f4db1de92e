// The curves of docs/plots: the memory that managers account for, times of a run of a tiny model, and
// pictures, which are drawn from complete records only.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <regex>
#include <span>
#include <sstream>
#include <tuple>
#include <utility>

#include "common/base/error.h"
#include "docs/numbers/experiments.h"
#include "docs/numbers/formulas.h"
#include "docs/plots/record.h"
#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "tests/support/files.h"
#include "tests/support/report_of.h"

namespace kvcache {
namespace {

using Bytes = std::vector<std::int64_t>;

// ---- memory ----

TEST(OneSequence, At200TokensFillsAFortiethOfItsReservation) {
  const GrowthCurves growth = one_sequence_grows();
  const std::int64_t token = 131'072;  // bytes
  const auto at = std::ranges::find(growth.tokens, 200) - growth.tokens.begin();
  ASSERT_LT(at, std::ssize(growth.tokens));
  const auto moment = static_cast<std::size_t>(at);
  EXPECT_EQ(growth.flat.reserved[moment], 8192 * token);
  EXPECT_EQ(growth.flat.used[moment], 200 * token);
  EXPECT_EQ(growth.paged.reserved[moment], 208 * token);  // 13 blocks
  EXPECT_EQ(growth.paged.used[moment], 200 * token);
  EXPECT_NEAR(wasted_share(growth.flat.reserved[moment], growth.flat.used[moment]), 0.9756, 1e-4);
}

TEST(OneSequence, GrowsUntilItsReservationIsFull) {
  const GrowthCurves growth = one_sequence_grows();
  EXPECT_EQ(growth.tokens.front(), 1);
  EXPECT_EQ(growth.tokens.back(), 8192);
  EXPECT_EQ(growth.paged.reserved.front(), 16 * growth.sizes.bytes_per_token);
  EXPECT_EQ(growth.paged.reserved.back(), growth.flat.reserved.back());
  EXPECT_EQ(growth.flat.used.back(), growth.flat.reserved.back());
}

/// Two visitors whose prompts begin with the same 4 tokens. The first comes in pass 0 and stays for three,
/// the second comes in pass 1 and stays for two.
std::vector<Visitor> two_visitors() {
  return {{0, {1, 2, 3, 4, 5}, 3}, {1, {1, 2, 3, 4, 6, 7, 8}, 2}};
}

TEST(Trace, VisitorsArriveGrowAndLeave) {
  FlatCacheManager flat({2, 10, 1});
  const MemoryCurve curve = play(flat, two_visitors(), 4);
  EXPECT_EQ(curve.used, (Bytes{6, 7 + 8, 8 + 9, 0}));
  EXPECT_EQ(curve.reserved, (Bytes{20, 20, 20, 20}));
}

TEST(Trace, BlocksFollowWhatIsStored) {
  PagedManager paged({10, 4, 1});
  const MemoryCurve curve = play(paged, two_visitors(), 4);
  EXPECT_EQ(curve.used, (Bytes{6, 7 + 8, 8 + 9, 0}));
  EXPECT_EQ(curve.reserved, (Bytes{8, 8 + 8, 8 + 12, 0}));
}

TEST(Trace, WhatTwoShareIsThereOnce) {
  PrefixCachingManager shared({10, 4, 1});
  const MemoryCurve curve = play(shared, two_visitors(), 4);
  EXPECT_EQ(curve.used, (Bytes{6, 7 + 4, 8 + 5, 0}));
  EXPECT_EQ(curve.reserved, (Bytes{8, 8 + 4, 8 + 8, 0}));
}

TEST(Trace, CountsTheMostThatAreThereAtOnce) {
  EXPECT_EQ(most_at_once(two_visitors(), 4), 2);
  EXPECT_EQ(most_at_once({{{0, {1}, 3}, {3, {1}, 2}}}, 9), 1);  // one leaves as the other comes
}

TEST(Trace, RefusesToPlayWithoutRoomForAll) {
  FlatCacheManager flat({1, 10, 1});
  EXPECT_THROW(play(flat, two_visitors(), 4), RunError);
}

TEST(Trace, OnThePictureStepsStoreTheSameAndReserveLessAndLess) {
  const TraceCurves trace = requests_come_and_go();
  const auto& [token, max_seq_len, block_size] = trace.sizes;
  EXPECT_EQ(trace.paged.used, trace.flat.used);
  for (std::size_t moment = 0; moment < trace.pass.size(); ++moment) {
    EXPECT_EQ(trace.flat.reserved[moment], trace.most_at_once * max_seq_len * token);
    const std::int64_t empty = trace.paged.reserved[moment] - trace.paged.used[moment];
    EXPECT_GE(empty, 0);
    EXPECT_LT(empty, trace.most_at_once * block_size * token);
    EXPECT_LE(trace.shared.reserved[moment], trace.paged.reserved[moment]);
    EXPECT_LE(trace.shared.used[moment], trace.shared.reserved[moment]);
  }
  EXPECT_LT(std::ranges::max(trace.shared.reserved), std::ranges::max(trace.paged.reserved));
}

TEST(Budget, HoldsWhatTheArithmeticSays) {
  const BudgetCurves budget = sequences_in_a_budget();
  const std::int64_t blocks = budget.budget_bytes / (16 * budget.sizes.bytes_per_token);
  for (std::size_t point = 0; point < budget.length.size(); ++point) {
    const std::int64_t each = blocks_that_hold(budget.length[point], 16);
    const std::int64_t in_common = shareable_blocks(budget.length[point] / 2, 16);
    const std::int64_t room = blocks - blocks / 100;  // above the watermark
    EXPECT_EQ(budget.flat[point], 43);
    EXPECT_EQ(budget.paged[point], room / each);
    EXPECT_EQ(budget.shared[point], (room - in_common) / (each - in_common));
  }
}

TEST(BlockSizes, WasteIsThatOfTheLastBlocks) {
  const BlockSizeWaste curve = waste_by_block_size();
  ASSERT_EQ(curve.block_size, (Bytes{1, 2, 4, 8, 16, 32, 64, 128, 256}));
  EXPECT_EQ(curve.waste[0], 0);
  for (std::size_t point = 0; point < curve.waste.size(); ++point) {
    std::int64_t reserved = 0;
    for (const auto& ids : mixed_requests().sequences)
      reserved += curve.block_size[point] * blocks_that_hold(std::ssize(ids), curve.block_size[point]);
    EXPECT_EQ(curve.waste[point], wasted_share(reserved, curve.tokens));
  }
}

// ---- times ----

/// A small plan, which takes about a second.
TimingPlan small_plan() {
  return {.weights = "tiny",
          .turns = 2,
          .contexts = {24, 40},
          .prompt = 4,
          .generated = 16,
          .prefixes = {16, 40},
          .own = 8,
          .block_sizes = {1, 16},
          .sequences = 2,
          .context = 32};
}

const TimeCurves& small_times() {
  static const TimeCurves times = [] {
    Program program = load_for_timing(small_plan(), DeviceChoice::cpu);
    return time_curves(program, small_plan());
  }();
  return times;
}

void expect_points(const Spread& spread, std::size_t points) {
  ASSERT_EQ(spread.median.size(), points);
  ASSERT_EQ(spread.least.size(), points);
  ASSERT_EQ(spread.most.size(), points);
  for (std::size_t point = 0; point < points; ++point) {
    EXPECT_GT(spread.least[point], 0);
    EXPECT_LE(spread.least[point], spread.median[point]);
    EXPECT_LE(spread.median[point], spread.most[point]);
  }
}

TEST(Times, EveryCurveHasItsPoints) {
  const TimeCurves& times = small_times();
  for (const Spread& spread : {times.decode.no_cache, times.decode.flat, times.decode.gather,
                               times.decode.paged, times.decode.shared, times.first_token.cold,
                               times.first_token.warm, times.block_sizes.ms, times.block_sizes.ratio})
    expect_points(spread, 2);
}

TEST(Times, AGenerationIsTimedTokenByToken) {
  const GenerationCurves& generation = small_times().generation;
  EXPECT_EQ(generation.tokens, (Bytes{1, 8, 16}));
  for (const Spread& spread : {generation.no_cache, generation.flat, generation.paged, generation.shared}) {
    expect_points(spread, 3);
    EXPECT_TRUE(std::ranges::is_sorted(spread.median));
  }
}

TEST(Times, TheSecondPromptFindsTheFullBlocksOfThePrefix) {
  EXPECT_EQ(small_times().first_token.cached, (Bytes{16, 32}));
}

// ---- pictures ----

const char* const kPictures[] = {"time_per_token", "one_sequence", "generation",  "trace",
                                 "budget",         "first_token",  "block_sizes", "gather"};
const std::filesystem::path kPassRecord = std::filesystem::path("h200") / "decode_pass.json";
const char* const kSweeps[] = {"memory", "rate"};  // of replays: their records and their pictures
const std::filesystem::path kPlots = std::filesystem::path(SOURCE_DIR) / "docs/plots";

/// A Python that has matplotlib, as draw.py needs it; empty if this machine has none.
std::string python() {
  for (const char* path : {"/usr/bin/python3", "/usr/local/bin/python3"}) {
    if (std::filesystem::exists(path) && run_program(path, {"-c", "import matplotlib.pyplot"}).exit_code == 0)
      return path;
  }
  return "";
}

/// What a replay of 100 requests could print of its steps at one point of a sweep.
nlohmann::ordered_json swept_steps(double found_share, std::int64_t refused_by_step2, std::int64_t refused) {
  const auto step = [](const char* name, double found, std::int64_t refused_here, double ms) {
    const double served_ms = refused_here == 100 ? 0 : ms;
    return nlohmann::ordered_json{
        {"step", name},
        {"drained",
         {{"found_share", found},
          {"refused", refused_here},
          {"first_token_ms",
           {{"count", 100 - refused_here}, {"median", served_ms}, {"p99", 20 * served_ms}}}}}};
  };
  return {step("step2_flat_cache", 0, refused_by_step2, 400), step("step3_paged", 0, refused, 200),
          step("step4_prefix_cache", found_share, refused, 100)};
}

/// A sweep of the pools' size. With a size of the pools it would be one of the rate.
nlohmann::ordered_json small_sweep() {
  return {{"schema", 1},
          {"trace", "<a & b>.jsonl"},
          {"requests", 100},
          {"model", "tiny"},
          {"dtype", "bf16"},
          {"engines", 1},
          {"router", "least-loaded"},
          {"cost", {{"from", "h100"}}},
          {"points",
           {{{"value", 5e8}, {"steps", swept_steps(0.125, 100, 3)}},
            {{"value", 1e9}, {"steps", swept_steps(0.25, 0, 0)}},
            {{"value", 2e9}, {"steps", swept_steps(0.5, 0, 0)}}}}};
}

nlohmann::ordered_json small_sweep_of_rates() {
  nlohmann::ordered_json sweep = small_sweep();
  sweep["pool_bytes"] = 1'000'000'000;
  for (nlohmann::ordered_json& point : sweep["points"]) point["value"] = point["value"].get<double>() / 2e9;
  return sweep;
}

/// For a fixture whose tests draw.
class Pictures : public testing::Test {
 protected:
  void SetUp() override {
    if (python_.empty()) GTEST_SKIP() << "no Python here has matplotlib (package python3-matplotlib)";
  }

  /// A record as it would be written, of the small plan.
  static nlohmann::ordered_json record() {
    const Machine machine{"2026-01-31", "cpu", "<A & B> \"$x_1$\" processor", 2, "tiny", "f32"};
    return record_json(machine, memory_curves(), small_times());
  }
  /// Draws what is in the folder as record.json.
  ProgramResult draw() const { return run_program(python_, {kPlots / "draw.py", folder_ / "record.json"}); }
  /// Draws each of the damaged `records`, pairs of a text and what the refusal must say of it. One Python
  /// does it for all, because its start with matplotlib takes a second.
  void expect_damages(const std::vector<std::pair<std::string, std::string>>& records) const {
    std::vector<std::string> arguments = {"-B", "-c", R"(import contextlib, io, json, sys
sys.path.insert(0, sys.argv[1])
import draw
for record in sys.argv[2:]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            draw.main([record])
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
)",
                                          kPlots};
    for (const auto& [text, what] : records) {
      arguments.push_back(folder_ / (std::to_string(arguments.size()) + ".json"));
      write_file(arguments.back(), text);
    }
    const ProgramResult result = run_program(python_, arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::istringstream lines(result.out);
    auto record = arguments.begin() + 4;
    for (const auto& [text, what] : records) {
      std::string line;
      ASSERT_TRUE(std::getline(lines, line)) << what;
      const auto& [code, out, err] =
          nlohmann::json::parse(line).get<std::tuple<int, std::string, std::string>>();
      EXPECT_EQ(code, 2) << what;
      EXPECT_EQ(out, "") << what;
      EXPECT_EQ(std::ranges::count(err, '\n'), 1) << err;
      for (const std::string& part : {"error: " + *record++, what})
        EXPECT_NE(err.find(part), std::string::npos) << part << " in: " << err;
    }
    EXPECT_EQ(files_in_folder(), std::ssize(records)) << "no picture was drawn";
  }
  std::ptrdiff_t files_in_folder() const {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), {});
  }
  std::filesystem::path svg(const std::string& name) const { return folder_ / (name + ".svg"); }

  const std::string python_ = python();
  const TemporaryFolder folder_;
};

TEST_F(Pictures, EightAreDrawnFromARecord) {
  write_file(folder_ / "record.json", record().dump());
  const ProgramResult result = draw();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out + result.err, "");
  std::vector<std::string> parse = {
      "-c", "import sys, xml.dom.minidom\nfor p in sys.argv[1:]: xml.dom.minidom.parse(p)"};
  for (const char* name : kPictures) {
    const std::string text = read_file(svg(name));
    EXPECT_LT(text.size(), 100'000U) << name;
    for (const char* part : {"prefers-color-scheme: dark", "<title id=", "<desc id=", "sans-serif"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << name;
    parse.push_back(svg(name));
  }
  const ProgramResult parsed = run_program(python_, parse);
  EXPECT_EQ(parsed.exit_code, 0) << parsed.err;
  EXPECT_EQ(files_in_folder(), 1 + std::ssize(kPictures));
}

TEST_F(Pictures, ADamagedRecordIsRefusedInOneLine) {
  const nlohmann::ordered_json whole = record();
  const auto with = [&](const char* place, const nlohmann::ordered_json& value) {
    nlohmann::ordered_json changed = whole;
    changed[nlohmann::ordered_json::json_pointer(place)] = value;
    return changed.dump();
  };
  std::vector<std::pair<std::string, std::string>> records = {
      {whole.dump().substr(0, 5000), "not JSON"},
      {"[]", "schema is missing"},
      {"\xff", "not JSON"},
      {std::string(100'000, '['), "not JSON"},
      {with("/schema", 2), "schema"},
      {with("/times/decode", {{"context", {1, 2}}}), "times.decode.no_cache.median is missing"},
      {with("/times/decode/flat/median", {1.0}), "times.decode.flat.median"},
      {with("/times/decode/flat/median", {1.0, 0.0}), "times.decode.flat.median"},
      {with("/times/decode/flat/median", {1.0, 2.0, 3.0}), "times.decode.flat.median"},
      {with("/times/decode/context", {2, 1}), "times.decode.context"},
      {with("/memory/block_sizes/waste/3", "0.1"), "memory.block_sizes.waste"},
      {with("/memory/block_sizes/waste/3", -0.1), "memory.block_sizes.waste"},
      {with("/machine/processor", "two\nlines"), "machine.processor"},
      {with("/machine/threads", true), "machine.threads"},
      {with("/times/block_sizes/ratio/least/1", 1e9), "times.block_sizes.ratio.least"},
      {with("/times/first_token/warm/most/0", 1e-9), "times.first_token.warm.median"},
      {with("/memory/trace/paged/used/7", 1e14), "memory.trace.paged.used"},
      {with("/memory/growth/flat/reserved/7", 0), "memory.growth.flat.reserved[7]"},
      {with("/memory/growth/sizes/bytes_per_token", 0), "memory.growth.sizes.bytes_per_token"},
      {with("/memory/budget/flat/2", 0), "memory.budget.flat[2]"},
      {with("/memory/block_sizes/block_size/0", 0), "memory.block_sizes.block_size[0]"},
      {with("/memory/block_sizes/waste/8", 1.5), "memory.block_sizes.waste"},
  };
  for (const std::string& number : {std::string("NaN"), std::string("1e999"), std::string(400, '9')}) {
    std::string text = with("/times/generation/prompt", 12345);
    text.replace(text.find("12345"), 5, number);
    records.emplace_back(text, "times.generation.prompt");
  }
  expect_damages(records);
}

TEST_F(Pictures, ADamagedRecordOfADecodePassIsRefusedInOneLine) {
  const auto whole = nlohmann::ordered_json::parse(read_file(kPlots / kPassRecord));
  std::vector<std::pair<std::string, std::string>> records;
  const auto damaged = [&](const std::string& place, const nlohmann::ordered_json& value, const char* what) {
    nlohmann::ordered_json changed = whole;
    changed[nlohmann::ordered_json::json_pointer("/decode_pass" + place)] = value;
    records.emplace_back(changed.dump(), what);
  };
  damaged("", 1, "decode_pass.sequences is missing");
  damaged("/read_gb_per_s", 0, "decode_pass.read_gb_per_s");
  damaged("/after/parts", nlohmann::ordered_json::array(), "decode_pass.after.parts");
  damaged("/after/parts/2", {{"work", "attention"}}, "decode_pass.after.parts[2]");
  damaged("/before/parts/2/work", "lunch", "decode_pass.before.parts[2].work");
  damaged("/before/parts/2/work", nlohmann::ordered_json::array({1}), "decode_pass.before.parts[2].work");
  damaged("/before/parts/2/kernel", "two\nlines", "decode_pass.before.parts[2].kernel");
  damaged("/before/parts/2/gone", 1, "decode_pass.before.parts[2].gone");
  damaged("/before/parts/2/kernels", -28, "decode_pass.before.parts[2].kernels");
  damaged("/before/kernels_and_copies", 338, "decode_pass.before.kernels_and_copies");
  damaged("/after/rest_us", nullptr, "decode_pass.after.rest_us");
  expect_damages(records);
}

TEST_F(Pictures, ASweepOfPoolSizesHasOneWithWhatIsFoundAndRefused) {
  write_file(folder_ / "record.json", small_sweep().dump());
  const ProgramResult result = draw();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out + result.err, "");
  EXPECT_EQ(files_in_folder(), 2);
  const std::string text = read_file(svg("memory"));
  for (const char* part :
       {"In pools of 0.5 GB step 4 finds 12.5% of the prompts&#x27; tokens, in pools of 2 GB 50.0%</title>",
        ">step 2: all refused<", "Open markers: some requests are refused", "fill: #ffffff; stroke: #a23b7f",
        "step 2, flat: 400 ms and 8 s at 1 GB",
        "step 2 refuses all at 0.5 GB; step 3 refuses 3 at 0.5 GB; step 4 refuses 3 at 0.5 GB",
        "100 requests of &lt;a &amp; b&gt;.jsonl in virtual time; 1 engine, router least-loaded; tiny, bf16"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST_F(Pictures, ASweepOfRatesHasOneWithTheFirstTokens) {
  nlohmann::ordered_json sweep = small_sweep_of_rates();
  write_file(folder_ / "record.json", sweep.dump());
  ASSERT_EQ(draw().exit_code, 0);
  EXPECT_EQ(files_in_folder(), 2);
  std::string text = read_file(svg("rate"));
  for (const char* part : {"<title id=\"title\">Median first token at the trace&#x27;s own pace: 400 ms in "
                           "step 2, 200 ms in step 3, 100 ms in step 4</title>",
                           ">step 2: all refused<", ">0.25<", "1 engine with 1 GB"})
    EXPECT_NE(text.find(part), std::string::npos) << part;

  for (nlohmann::ordered_json& point : sweep["points"]) point["steps"] = swept_steps(0.5, 0, 0);
  write_file(folder_ / "record.json", sweep.dump());
  ASSERT_EQ(draw().exit_code, 0);
  text = read_file(svg("rate"));
  EXPECT_NE(text.find("no request is refused"), std::string::npos);
  for (const char* part : {"all refused", "Open: some"})
    EXPECT_EQ(text.find(part), std::string::npos) << part;

  for (nlohmann::ordered_json& point : sweep["points"]) point["steps"] = swept_steps(0.5, 100, 0);
  write_file(folder_ / "record.json", sweep.dump());
  ASSERT_EQ(draw().exit_code, 0);
  text = read_file(svg("rate"));
  for (const char* part :
       {"pace: never in step 2, 200 ms in step 3", "step 2, flat: none; step 3, paged: 200 ms"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST_F(Pictures, ADamagedRecordOfASweepIsRefusedInOneLine) {
  std::vector<std::pair<std::string, std::string>> records;
  const auto damaged = [&](const char* place, const nlohmann::ordered_json& value, const char* what) {
    nlohmann::ordered_json changed = small_sweep_of_rates();
    changed[nlohmann::ordered_json::json_pointer(place)] = value;
    records.emplace_back(changed.dump(), what);
  };
  const auto without = [&](const char* place, const char* key, const char* what) {
    nlohmann::ordered_json changed = small_sweep_of_rates();
    changed[nlohmann::ordered_json::json_pointer(place)].erase(key);
    records.emplace_back(changed.dump(), what);
  };
  damaged("/schema", 2, "schema");
  without("", "points", "machine.date is missing");
  damaged("/points", nlohmann::ordered_json::array(), "points must be a list of two or more points");
  damaged("/points", 3, "points must be a list of two or more points");
  damaged("/points", nlohmann::ordered_json::array({nullptr, 1}), "points[0].value is missing");
  without("", "requests", "requests is missing");
  damaged("/requests", "100", "requests must be a number");
  damaged("/engines", 0, "engines must be greater than 0");
  damaged("/pool_bytes", nullptr, "pool_bytes must be a number");
  damaged("/trace", "two\nlines", "trace must be a text");
  damaged("/cost", 1, "cost.from is missing");
  damaged("/points/0/value", 0, "points[0].value must be greater than 0");
  damaged("/points/1/value", 0.25, "points[1].value must be greater than the one before");
  without("/points/1", "steps", "points[1].steps is missing");
  damaged("/points/1/steps", {{"step", "step2_flat_cache"}}, "points[1].steps must be a list of 3 steps");
  damaged("/points/1/steps", 3, "points[1].steps must be a list of 3 steps");
  damaged("/points/1/steps/3", 1, "points[1].steps must be a list of 3 steps");
  damaged("/points/1/steps/0", 1, "points[1].steps[0].step is missing");
  damaged("/points/1/steps/0/step", "step3_paged", "points[1].steps[0].step must be step2_flat_cache");
  without("/points/2/steps/1", "drained", "points[2].steps[1].drained is missing");
  damaged("/points/2/steps/1/drained", 1, "points[2].steps[1].drained.found_share is missing");
  damaged("/points/2/steps/1/drained/found_share", 0.1, "points[2].steps[1].drained.found_share");
  damaged("/points/2/steps/2/drained/found_share", 1.1, "points[2].steps[2].drained.found_share");
  damaged("/points/2/steps/2/drained/refused", 101, "points[2].steps[2].drained.refused");
  damaged("/points/2/steps/2/drained/refused", -1, "points[2].steps[2].drained.refused");
  damaged("/points/2/steps/2/drained/refused", 100,
          "points[2].steps[2].drained.refused must be less than all requests");
  without("/points/2/steps/1/drained/first_token_ms", "p99",
          "points[2].steps[1].drained.first_token_ms.p99 is missing");
  damaged("/points/2/steps/1/drained/first_token_ms/p99", "9",
          "points[2].steps[1].drained.first_token_ms.p99 must be a number");
  damaged("/points/2/steps/1/drained/first_token_ms/p99", 1,
          "points[2].steps[1].drained.first_token_ms.median must not be greater than p99");
  damaged("/points/2/steps/1/drained/first_token_ms/count", 0,  // as with --serial
          "points[2].steps[1].drained.first_token_ms.count must be greater than 0");
  expect_damages(records);
}

TEST_F(Pictures, WithoutARecordThereIsOneLine) {
  expect_refusal(python_, {kPlots / "draw.py"}, 2, {"record"});
  expect_refusal(python_, {kPlots / "draw.py", "--help-me"}, 2, {"--help-me", "record"});
  expect_refusal(python_, {kPlots / "draw.py", "/no/such/record.json"}, 2, {"/no/such/record.json"});
}

TEST_F(Pictures, IfOneCannotBeWrittenNoneIsReplaced) {
  write_file(folder_ / "record.json", record().dump());
  write_file(svg("time_per_token"), "as it was");
  std::filesystem::create_directory(svg("generation"));
  expect_refusal(python_, {kPlots / "draw.py", folder_ / "record.json"}, 1, {"generation.svg"});
  EXPECT_EQ(read_file(svg("time_per_token")), "as it was");
  EXPECT_EQ(files_in_folder(), 3);
}

TEST_F(Pictures, IfOneOfTwoRecordsIsDamagedNoneIsReplaced) {
  write_file(folder_ / "record.json", record().dump());
  write_file(folder_ / "other.json", "{}");
  expect_refusal(python_, {kPlots / "draw.py", folder_ / "record.json", folder_ / "other.json"}, 2,
                 {"other.json", "schema"});
  EXPECT_EQ(files_in_folder(), 2);
}

TEST_F(Pictures, ASignalLeavesNothingBehind) {
  write_file(folder_ / "record.json", record().dump());
  write_file(folder_ / "interrupted.py", R"(import os, signal, sys
sys.path.insert(0, sys.argv[1])
import draw
write, written = draw.Path.write_text, []
def write_and_be_told_to_end(path, *text, **more):
    write(path, *text, **more)
    written.append(path)
    if len(written) == 3:
        os.kill(os.getpid(), signal.SIGTERM)
draw.Path.write_text = write_and_be_told_to_end
draw.main(sys.argv[2:])
)");
  const ProgramResult result =
      run_program(python_, {"-B", folder_ / "interrupted.py", kPlots, folder_ / "record.json"});
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_EQ(result.out + result.err, "");
  EXPECT_EQ(files_in_folder(), 2);
}

TEST_F(Pictures, NumbersAreRoundedAsAReaderOfTheRecordWouldDoIt) {
  const ProgramResult result = run_program(python_, {"-B", "-c", R"(import sys
sys.path.insert(0, sys.argv[1])
import draw
for number, shown in {13.45: "13.5", 1.255: "1.26", 402.5: "403", 99.96: "100", 12345: "12,345", 0.17: "0.17", 0: "0"}.items():
    assert draw.short(number) == shown, (number, draw.short(number))
assert draw.ms(1235) == "1.24 s" and draw.ms(13.45) == "13.5 ms"
)",
                                                     kPlots});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

/// Contrast as WCAG 2 defines it; for lines and areas it asks for 3 to 1.
TEST_F(Pictures, LinesAreSeenOnLightAndOnDarkPaper) {
  const ProgramResult result = run_program(python_, {"-B", "-c", R"(import sys
sys.path.insert(0, sys.argv[1])
import draw
def luminance(colour):
    parts = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))
def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
dark = draw.IN_THE_DARK
looks = [look for look in vars(draw).values() if isinstance(look, draw.Look)]
for look in looks:
    assert contrast(look.colour, draw.PAPER) >= 4.5, look
    assert contrast(look.colour, dark[draw.PAPER]) >= 3, look  # where nothing follows the reader's choice
    assert contrast(dark[look.colour], dark[draw.PAPER]) >= 4.5, look
for text in (draw.INK, draw.SOFT):
    assert contrast(text, draw.PAPER) >= 4.5 and contrast(dark[text], dark[draw.PAPER]) >= 4.5, text
assert len(looks) == len({look.marker for look in looks}) == len({look.line for look in looks}) == 5
)",
                                                     kPlots});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

/// The folders of docs/plots that hold a record and its pictures.
std::vector<std::filesystem::path> committed() {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(kPlots)) {
    if (std::filesystem::exists(entry.path() / "record.json")) folders.push_back(entry.path());
  }
  return folders;
}

/// What an SVG file is called: its <title>, in plain text.
std::string title_of(const std::filesystem::path& file) {
  const std::string text = read_file(file), start = "<title id=\"title\">";
  const std::size_t from = text.find(start) + start.size();
  return std::regex_replace(text.substr(from, text.find("</title>") - from), std::regex("&#x27;"), "'");
}

/// A reader who does not see a picture is told what it shows, not only its subject.
TEST(CommittedPictures, AreDescribedByTheirResultsWhereverTheyAreShown) {
  const std::filesystem::path root = SOURCE_DIR;
  std::vector<std::filesystem::path> pages = {root / "README.md", kPlots / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (entry.path().filename().string().starts_with("step") && entry.is_directory())
      pages.push_back(entry.path() / "README.md");
  }
  int shown = 0;
  for (const std::filesystem::path& page : pages) {
    const std::string text = read_file(page);
    const std::regex image(R"(!\[([^\]]*)\]\(([^)]*\.svg)\))");
    for (std::sregex_iterator match(text.begin(), text.end(), image), end; match != end; ++match, ++shown) {
      const std::string title = title_of(page.parent_path() / (*match)[2].str());
      EXPECT_TRUE((*match)[1].str().starts_with(title))
          << page << ": the words for " << (*match)[2] << " must begin with its title: " << title;
    }
  }
  EXPECT_GE(shown, 16);
}

TEST(CommittedRecords, AreShownRoundedOnce) {
  // 1.1503%, which is 1.2%, and once was kept as 1.150% and shown as 1.1%.
  for (const std::filesystem::path& folder : committed())
    EXPECT_TRUE(title_of(folder / "block_sizes.svg").starts_with("Blocks of 16 leave 1.2% empty;")) << folder;
}

/// If this fails and the change is meant, `build/bin/plot_data` measures the record anew.
TEST(CommittedRecords, HaveTheMemoryThatTheManagersAccountForToday) {
  const std::string today = memory_json(memory_curves()).dump();
  EXPECT_FALSE(committed().empty());
  for (const std::filesystem::path& folder : committed())
    EXPECT_EQ(nlohmann::ordered_json::parse(read_file(folder / "record.json"))["memory"].dump(), today)
        << folder;
}

TEST(CommittedRecords, HaveTheBytesOfTheWeightsThatADecodePassReads) {
  const auto record = nlohmann::ordered_json::parse(read_file(kPlots / kPassRecord));
  EXPECT_EQ(record["machine"]["dtype"], "bf16");
  EXPECT_EQ(record["decode_pass"]["weight_bytes"],  // the output head is the embedding
            2 * parameters(named_config(record["machine"]["weights"].get<std::string>())));
}

/// If this fails and the change is meant, the notes of docs/plots/README.md have the commands of the sweeps.
TEST(CommittedSweeps, HaveTheCostsThatReplaysHaveToday) {
  const TemporaryFolder folder;
  const std::string trace = folder / "trace.jsonl";
  write_file(trace, run_step("replay", {"--make", "chat", "--requests", "2"}).out);
  for (const char* name : kSweeps) {
    const auto record =
        nlohmann::ordered_json::parse(read_file(kPlots / "replay" / (std::string(name) + ".json")));
    const ProgramResult result = run_step("replay", {trace, "--card", record["cost"]["from"], "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto today = nlohmann::ordered_json::parse(result.out);
    for (const char* same : {"schema", "model", "dtype", "bytes_per_token", "block_size", "max_sequences"})
      EXPECT_EQ(record[same], today[same]) << same << " of " << name;
    ASSERT_EQ(record["cost"].size(), today["cost"].size()) << name;
    for (const auto& [part, cost] : today["cost"].items()) {
      if (cost.is_number())
        EXPECT_DOUBLE_EQ(record["cost"][part], cost) << part << " of " << name;
      else
        EXPECT_EQ(record["cost"][part], cost) << part << " of " << name;
    }
  }
}

/// If this fails and the change is meant, `./steps plots docs/plots/*/*.json` draws them anew.
TEST_F(Pictures, CommittedOnesAreDrawnFromTheRecordsBesideThem) {
  const std::string version =
      run_program(python_, {"-c", "import matplotlib; print(matplotlib.__version__, end='')"}).out;
  const auto expect_drawn = [&](const std::filesystem::path& record, std::span<const char* const> names) {
    write_file(folder_ / "record.json", read_file(record));
    ASSERT_EQ(draw().exit_code, 0) << record;
    for (const char* name : names) {
      const std::string committed_one = read_file(record.parent_path() / (std::string(name) + ".svg"));
      if (committed_one.find("Matplotlib v" + version + ",") == std::string::npos)
        GTEST_SKIP() << name << " of " << record << " was drawn with another matplotlib than " << version;
      EXPECT_EQ(read_file(svg(name)), committed_one) << name << " of " << record;
    }
  };
  for (const std::filesystem::path& folder : committed()) expect_drawn(folder / "record.json", kPictures);
  const char* const of_a_pass[] = {"decode_pass"};
  expect_drawn(kPlots / kPassRecord, of_a_pass);
  for (const char* const& sweep : kSweeps)
    expect_drawn(kPlots / "replay" / (std::string(sweep) + ".json"), {&sweep, 1});
}

TEST(PlotData, RefusesWhatItDoesNotKnowInOneLine) {
  expect_refusal("plot_data", {"--device", "abacus"}, 2, {"abacus", "cuda"});
  expect_refusal("plot_data", {"--help=1"}, 2, {"--help takes no value, and \"1\" is given"});
}

}  // namespace
}  // namespace kvcache
