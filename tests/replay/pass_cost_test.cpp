// The cost of a pass: its work counted, its parts added, a roofline by hand, the fit, and its file.
#include "common/replay/pass_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/files.h"

namespace kvcache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const std::function<void()>& action) {
  std::string message = test::message_of<InputError>(action);
  EXPECT_NE(message, "");
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

// Work

TEST(PassWork, CountsRowsPairsAndContext) {
  const std::vector<std::int32_t> ids(9);
  PassPlan plan;
  plan.add(1, std::span(ids).first(5), 0);  // a whole prompt: 1 + 2 + 3 + 4 + 5 pairs
  plan.add(2, std::span(ids).first(7), 6);  // a token behind six: 7 pairs
  plan.add(3, std::span(ids).first(9), 6);  // a chunk of three: 7 + 8 + 9 pairs
  plan.swaps_in = {{0, 1}, {2, 3}};
  plan.swaps_out = {{4, 5}};
  plan.copies = {{6, 7}};
  const PassWork work = work_of(plan);
  EXPECT_EQ(work.rows, 5 + 1 + 3);
  EXPECT_EQ(work.pairs, 15 + 7 + 24);
  EXPECT_EQ(work.context, 5 + 7 + 9);
  EXPECT_EQ(work.swapped, 3);
}

TEST(PassWork, OfALongPromptExceedsNoNumber) {
  PassPlan plan;
  const std::vector<std::int32_t> ids(200'000);
  plan.add(1, ids, 0);
  EXPECT_EQ(work_of(plan).pairs, 200'000LL * 200'001 / 2);
}

// Parts

const PassCost kCost{
    .constant_ms = 1, .row_ms = 2, .weights_ms = 10, .pair_ms = 0.5, .context_ms = 0.25, .swap_ms = 4};
constexpr PassWork kWork{.rows = 6, .pairs = 22, .context = 12, .swapped = 3};

TEST(PassCost, AddsItsPartsAndTakesTheLongerOfRowsAndWeights) {
  EXPECT_DOUBLE_EQ(kCost.of(kWork), 1 + 2 * 6 + 0.5 * 22 + 0.25 * 12 + 4 * 3) << "rows: 12, weights: 10";
  PassCost cost = kCost;
  cost.weights_ms = 30;
  EXPECT_DOUBLE_EQ(cost.of(kWork), 1 + 30 + 0.5 * 22 + 0.25 * 12 + 4 * 3);
  cost.weights_ms = 0;
  EXPECT_DOUBLE_EQ(cost.of(kWork), kCost.of(kWork));
}

TEST(PassCost, IsLinearInLargeWork) {
  EXPECT_DOUBLE_EQ((PassCost{.pair_ms = 1e-6}.of({.pairs = 20'000'000'000})), 20'000);
}

// The roofline

TEST(Roofline, IsTheArithmeticOfTheModel) {
  ModelConfig model;
  model.layers = 2;
  model.hidden_size = 4;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 2;
  model.intermediate_size = 8;
  model.vocab_size = 10;
  const Card card{.name = "tiny", .matrix_flops = 2e6, .memory_bytes = 1e6, .host_bytes = 32e3};
  const PassCost cost = roofline(card, model, /*bytes_per_number=*/2, /*block_size=*/4);
  // A layer: q and o 4 x 4 each, k and v 2 x 4 each, three of 8 x 4 in the MLP.
  constexpr double kWeights = 2 * (16 + 16 + 8 + 8 + 3 * 32);
  EXPECT_DOUBLE_EQ(cost.constant_ms, kOverheadMs);
  EXPECT_DOUBLE_EQ(cost.row_ms, 2 * kWeights / (kMatrixShare * 2000)) << "2000 operations a millisecond";
  // A pair: two heads of two numbers, multiplied and added for q k and for p v, in two layers.
  EXPECT_DOUBLE_EQ(cost.pair_ms, 2.0 * 2 * 2 * 2 * 2 / (kAttentionShare * 2000));
  EXPECT_DOUBLE_EQ(cost.context_ms, 2 * 2 * 2 * 2 / (kMemoryShare * 1000))
      << "K and V of two numbers in two layers";
  EXPECT_DOUBLE_EQ(cost.swap_ms, 4 * 16 / 32.0) << "at the whole rate of the bus";
  EXPECT_DOUBLE_EQ(cost.weights_ms, (kWeights + 10 * 4) * 2 / (kMemoryShare * 1000))
      << "the head is read, too";
}

TEST(Roofline, KnowsItsCardsByName) {
  double before = 0;
  for (const char* name : {"a100", "h100", "h200"}) {
    const Card card = named_card(name);
    EXPECT_EQ(card.name, name);
    EXPECT_GT(card.memory_bytes, before);
    before = card.memory_bytes;
    EXPECT_GT(card.matrix_flops, 1e14);
    EXPECT_GT(card.host_bytes, 1e10);
  }
  for (const char* name : {"h300", "", "H100"})
    EXPECT_THAT(refusal([&] { static_cast<void>(named_card(name)); }),
                AllOf(HasSubstr("--card"), HasSubstr("a100, h100, h200"),
                      HasSubstr("\"" + std::string(name) + "\""), HasSubstr("--cost")));
}

// The fit

/// Passes of many kinds, timed by `ms`.
template <typename Ms>
std::vector<TimedPass> timed(const Ms& ms) {
  std::vector<TimedPass> passes;
  for (std::int64_t rows = 1; rows <= 256; rows *= 4) {
    for (std::int64_t context = rows; context <= 4096; context *= 4) {
      const PassWork work{.rows = rows, .pairs = rows * context - rows * (rows - 1) / 2, .context = context};
      passes.push_back({work, ms(work)});
    }
  }
  return passes;
}

void expect_near(const PassCost& fit, const PassCost& cost) {
  EXPECT_NEAR(fit.constant_ms, cost.constant_ms, 1e-9);
  EXPECT_NEAR(fit.row_ms, cost.row_ms, 1e-9);
  EXPECT_NEAR(fit.pair_ms, cost.pair_ms, 1e-12);
  EXPECT_NEAR(fit.context_ms, cost.context_ms, 1e-9);
}

TEST(FittedCost, FindsTheCostThatMadeTheTimes) {
  for (const PassCost& cost :
       {PassCost{.constant_ms = 2.5, .row_ms = 0.125, .pair_ms = 1e-5, .context_ms = 1e-3},
        PassCost{.constant_ms = 0.25, .row_ms = 3}, PassCost{.constant_ms = 1, .context_ms = 0.5}}) {
    const PassCost fit = fitted_cost(timed([&](const PassWork& work) { return cost.of(work); }));
    expect_near(fit, cost);
    EXPECT_EQ(fit.swap_ms, 0);
    EXPECT_EQ(fit.weights_ms, 0);
  }
}

TEST(FittedCost, LeavesOutAPartThatWouldBeNegative) {
  const std::vector<TimedPass> passes = timed([](const PassWork& work) {
    return 5 + 2 * static_cast<double>(work.rows) - 1e-3 * static_cast<double>(work.context);
  });
  const PassCost fit = fitted_cost(passes);
  EXPECT_EQ(fit.context_ms, 0);
  EXPECT_GE(fit.pair_ms, 0);
  EXPECT_GT(fit.constant_ms, 1);
  EXPECT_NEAR(fit.row_ms, 2, 0.2);
  // The parts that are left are fitted anew: no change of theirs is nearer to the times.
  const auto error = [&](double constant_ms, double row_ms) {
    PassCost cost = fit;
    cost.constant_ms = constant_ms;
    cost.row_ms = row_ms;
    double sum = 0;
    for (const TimedPass& pass : passes) sum += std::pow(cost.of(pass.work) - pass.ms, 2) / fit.of(pass.work);
    return sum;
  };
  for (const double factor : {0.99, 1.01}) {
    EXPECT_LT(error(fit.constant_ms, fit.row_ms), error(fit.constant_ms * factor, fit.row_ms));
    EXPECT_LT(error(fit.constant_ms, fit.row_ms), error(fit.constant_ms, fit.row_ms * factor));
  }
}

TEST(FittedCost, ASecondOfShortPassesCountsAsMuchAsASecondOfLongOnes) {
  // Passes of one row take 0.9 or 1.1 ms, passes of 1000 rows 400 or 600.
  std::vector<TimedPass> passes;
  for (int n = 0; n < 4; ++n) {
    passes.push_back({{.rows = 1}, n < 2 ? 0.9 : 1.1});
    passes.push_back({{.rows = 1000}, n < 2 ? 400.0 : 600.0});
  }
  const PassCost fit = fitted_cost(passes);
  // Each kind has a time of its own, the mean of its times.
  EXPECT_NEAR(fit.of({.rows = 1}), 1.0, 1e-9);
  EXPECT_NEAR(fit.of({.rows = 1000}), 500.0, 1e-6);
}

TEST(FittedCost, TakesAsLongAsNoisyPassesTogether) {
  const PassCost cost{.constant_ms = 2.5, .row_ms = 0.125, .pair_ms = 1e-5, .context_ms = 1e-3};
  std::mt19937 random(7);
  std::lognormal_distribution<double> noise(0.0, 0.5);
  std::vector<TimedPass> passes;
  for (int times = 0; times < 50; ++times) {
    for (const TimedPass& pass : timed([&](const PassWork& work) { return cost.of(work) * noise(random); }))
      passes.push_back(pass);
  }
  const PassCost fit = fitted_cost(passes);
  double real = 0, fitted = 0;
  for (const TimedPass& pass : passes) real += pass.ms, fitted += fit.of(pass.work);
  EXPECT_NEAR(fitted / real, 1, 0.01);
}

TEST(FittedCost, IsTheNearestOfAllWithoutNegativeParts) {
  // Times that no cost explains: each part alone, and each pair of parts, is no nearer.
  std::mt19937 random(8);
  std::uniform_real_distribution<double> some(0.5, 1.5);
  const std::vector<TimedPass> passes = timed([&](const PassWork& work) {
    return some(random) * (30 + 1e-2 * static_cast<double>(work.pairs)) /
           (1 + static_cast<double>(work.rows));
  });
  const PassCost fit = fitted_cost(passes);
  const auto error = [&](const PassCost& cost) {
    double sum = 0;
    for (const TimedPass& pass : passes)
      sum += std::pow(cost.of(pass.work) - pass.ms, 2) / std::max(fit.of(pass.work), pass.ms / 10);
    return sum;
  };
  constexpr double PassCost::*kAll[] = {&PassCost::constant_ms, &PassCost::row_ms, &PassCost::pair_ms,
                                        &PassCost::context_ms};
  const double least = error(fit);
  for (double PassCost::*const part : kAll) {
    for (const double step : {-1e-3, 1e-3}) {
      PassCost near = fit;
      near.*part = std::max(0.0, near.*part * (1 + step) + step * 1e-6);
      EXPECT_GE(error(near), least * (1 - 1e-6));
    }
  }
}

TEST(FittedCost, OfPassesThatAreAllAlikeIsTheirTime) {
  const std::vector<TimedPass> passes(8, {{.rows = 4, .pairs = 10, .context = 4}, 3.0});
  const PassCost fit = fitted_cost(passes);
  EXPECT_NEAR(fit.of(passes[0].work), 3, 1e-9);
  for (const double part : {fit.constant_ms, fit.row_ms, fit.pair_ms, fit.context_ms}) EXPECT_GE(part, 0);
}

TEST(FittedCost, NeedsEightPasses) {
  const std::vector<TimedPass> passes(8, {{.rows = 1, .pairs = 1, .context = 1}, 1.0});
  for (std::size_t count = 0; count < 8; ++count)
    EXPECT_THAT(refusal([&] { static_cast<void>(fitted_cost(std::span(passes).first(count))); }),
                AllOf(HasSubstr("at least 8"), HasSubstr("there are " + std::to_string(count))));
  EXPECT_NO_THROW(static_cast<void>(fitted_cost(passes)));
}

// Its file

class CostFile : public testing::Test {
 protected:
  PassCost read(const std::string& text) {
    write_file(folder_ / "cost.json", text);
    return read_cost(folder_ / "cost.json");
  }
  std::string wrong(const std::string& text) {
    std::string message = refusal([&] { read(text); });
    EXPECT_THAT(message, HasSubstr("cost.json"));
    return message;
  }

  TemporaryFolder folder_;
};

TEST_F(CostFile, IsReadAsItWasWritten) {
  const PassCost cost{.constant_ms = 0.1 + 0.2,
                      .row_ms = 1.0 / 3,
                      .pair_ms = 1.2345678901234567e-9,
                      .context_ms = 0,
                      .fitted_on = "a processor, \"a model\""};
  const std::string text = to_json(cost);
  EXPECT_THAT(text, HasSubstr("fitted_on"));
  EXPECT_THAT(text, HasSubstr(R"(a processor, \"a model\")"));
  const PassCost after = read(text);
  EXPECT_EQ(after.constant_ms, cost.constant_ms);
  EXPECT_EQ(after.row_ms, cost.row_ms);
  EXPECT_EQ(after.pair_ms, cost.pair_ms);
  EXPECT_EQ(after.context_ms, 0);
  EXPECT_EQ(after.swap_ms, 0);
  EXPECT_EQ(after.fitted_on, cost.fitted_on);
}

TEST_F(CostFile, MayHaveTheCostOfASwappedBlock) {
  const PassCost cost =
      read(R"({"constant_ms": 1, "row_ms": 0, "pair_ms": 0, "context_ms": 0, "swap_ms": 0.5, "note": []})");
  EXPECT_EQ(cost.swap_ms, 0.5);
  EXPECT_EQ(cost.constant_ms, 1);
}

TEST_F(CostFile, MayBeThatOfARoofline) {
  const PassCost cost = read(
      R"({"from": "h100", "constant_ms": 1, "row_ms": 2, "weights_ms": 30, "pair_ms": 0.5, "context_ms": 0.25,)"
      R"( "swap_ms": 4})");
  EXPECT_DOUBLE_EQ(cost.of(kWork), 1 + 30 + 0.5 * 22 + 0.25 * 12 + 4 * 3);
}

TEST_F(CostFile, NamesAPartThatIsMissing) {
  const std::string parts[] = {"constant_ms", "row_ms", "pair_ms", "context_ms"};
  for (const std::string& missing : parts) {
    std::string text = R"({"fitted_on": "x")";
    for (const std::string& part : parts) text += part == missing ? "" : ", \"" + part + "\": 1";
    EXPECT_THAT(wrong(text + "}"),
                AllOf(HasSubstr("\"" + missing + "\" is missing"), HasSubstr("./steps serve-bench --cost")));
  }
}

TEST_F(CostFile, NamesAPartThatIsNoTime) {
  for (const std::string value : {"-1", "-0.5", "\"1\"", "null", "true", "[1]", "{}"}) {
    EXPECT_THAT(
        wrong(R"({"constant_ms": 1, "row_ms": )" + value + R"(, "pair_ms": 0, "context_ms": 0})"),
        AllOf(HasSubstr("\"row_ms\" is " + value), HasSubstr("a number of milliseconds from 0 to 1000000")));
    EXPECT_THAT(
        wrong(R"({"constant_ms": 1, "row_ms": 1, "pair_ms": 0, "context_ms": 0, "swap_ms": )" + value + "}"),
        HasSubstr("\"swap_ms\" is " + value));
  }
}

TEST_F(CostFile, RefusesPassesThatTakeNoTime) {
  EXPECT_THAT(wrong(R"({"constant_ms": 0, "row_ms": 0, "pair_ms": 0, "context_ms": 0, "swap_ms": 1})"),
              HasSubstr("no time at all"));
}

TEST_F(CostFile, RefusesWhatIsNoCost) {
  EXPECT_THAT(wrong("[1, 2]"), HasSubstr("a cost is a JSON object"));
  wrong("");
  wrong("constant_ms: 1");
  wrong(R"({"constant_ms": 1e999, "row_ms": 1, "pair_ms": 0, "context_ms": 0})");
  wrong(R"({"constant_ms": 1, "constant_ms": 1, "row_ms": 1, "pair_ms": 0, "context_ms": 0})");
  EXPECT_THAT(refusal([&] { read_cost(folder_ / "none.json"); }), HasSubstr("none.json"));
  EXPECT_THAT(refusal([&] { read_cost(folder_.path()); }), HasSubstr(folder_.path().string()));
}

}  // namespace
}  // namespace kvcache
