/// @file
/// The sampler: arg max, temperature, top-k and top-p, seeds, and what is refused.

#include "common/model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/error.h"

namespace kvcache {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

std::vector<std::int32_t> picks(const SamplingParams& params, const std::vector<float>& logits, int count) {
  Sampler sampler(params);
  std::vector<std::int32_t> ids;
  for (int pick = 0; pick < count; ++pick) ids.push_back(sampler.pick(logits).id);
  return ids;
}

std::set<std::int32_t> picked_set(const SamplingParams& params, const std::vector<float>& logits, int count) {
  const std::vector<std::int32_t> ids = picks(params, logits, count);
  return {ids.begin(), ids.end()};
}

/// Pearson's statistic of `count` picks against the probabilities of the ids; an id that is not expected at
/// all makes it infinite.
double chi_square(const SamplingParams& params, const std::vector<float>& logits,
                  const std::map<std::int32_t, double>& expected, int count) {
  std::map<std::int32_t, int> observed;
  for (const std::int32_t id : picks(params, logits, count)) ++observed[id];
  double statistic = 0;
  for (const auto& [id, times] : observed) {
    if (!expected.contains(id)) return std::numeric_limits<double>::infinity();
  }
  for (const auto& [id, probability] : expected) {
    const double difference = observed[id] - probability * count;
    statistic += difference * difference / (probability * count);
  }
  return statistic;
}

std::string refusal_of(const SamplingParams& params) {
  try {
    const Sampler checks_its_parameters(params);
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing thrown";
}

/// The logits 1..16 halves, shuffled: no two equal.
std::vector<float> sixteen_logits() {
  std::vector<float> logits;
  for (int id = 0; id < 16; ++id) logits.push_back(0.5F * static_cast<float>(7 * id % 16) - 3);
  return logits;
}

TEST(Sampler, IsGreedyByDefault) {
  EXPECT_EQ(picks({}, {1.0F, 3.0F, 2.0F}, 3), (std::vector<std::int32_t>{1, 1, 1}));
}

TEST(Sampler, GreedyTiesGoToTheLowestId) {
  EXPECT_EQ(picks({}, {1.0F, 3.0F, 3.0F}, 1), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(picks({}, {-0.0F, 0.0F}, 1), (std::vector<std::int32_t>{0}));
}

TEST(Sampler, FindsTheLargestAndTheFirstFaultInALargeVocabulary) {
  for (const std::size_t count : {255U, 256U, 257U, 1000U, 1024U}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{254}, count / 2, count - 1}) {
      std::vector<float> logits(count);
      for (std::size_t id = 0; id < count; ++id) logits[id] = -1.0F / static_cast<float>(1 + id * 7 % 311);
      logits[at] = 2;
      const auto place = static_cast<std::int32_t>(at);
      EXPECT_EQ(picks({}, logits, 1).front(), place) << "of " << count;
      logits.back() = 2;  // an equal one, later
      EXPECT_EQ(picks({}, logits, 1).front(), place) << "of " << count;
      for (const float fault : {infinity, not_a_number}) {
        logits.front() = 3;  // a larger one before does not hide it
        logits[at] = fault;
        logits.back() = fault;
        const Picked picked = Sampler({}).pick(logits);
        EXPECT_FALSE(picked.ok());
        EXPECT_EQ(picked.logits, place) << "of " << count;
        logits.front() = -1;
      }
      std::ranges::fill(logits, -infinity);
      EXPECT_EQ(Sampler({}).pick(logits).problem, Picked::Problem::nothing);
      for (std::size_t id = 0; id < count; ++id) logits[id] = static_cast<float>(id);  // each above the last
      EXPECT_EQ(picks({}, logits, 1).front(), static_cast<std::int32_t>(count - 1));
    }
  }
}

TEST(Sampler, TinyTemperaturesAreArgMaxWithTheTieRuleOfGreedy) {
  for (const double temperature : {1e-6, 1e-30, 1e-300, 5e-324}) {
    SCOPED_TRACE(temperature);
    EXPECT_EQ(picked_set({.temperature = temperature}, {1.0F, 3.0F, 3.0F, 2.9999F}, 200),
              (std::set<std::int32_t>{1}));
  }
}

TEST(Sampler, ALowTemperatureNearlyAlwaysPicksTheLargest) {
  EXPECT_EQ(picked_set({.temperature = 1e-4}, {1.0F, 3.0F, 2.99F}, 200), (std::set<std::int32_t>{1}));
}

TEST(Sampler, AHugeTemperatureIsUniform) {
  const std::vector<float> logits = {-100.0F, 0.0F, 100.0F, 50.0F};
  const std::map<std::int32_t, double> uniform = {{0, 0.25}, {1, 0.25}, {2, 0.25}, {3, 0.25}};
  for (const double temperature : {1e30, std::numeric_limits<double>::max()}) {
    EXPECT_LT(chi_square({.temperature = temperature}, logits, uniform, 20000), 16.3);  // 0.1% for 3 degrees
  }
}

TEST(Sampler, FollowsTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits = sixteen_logits();
  for (const double temperature : {0.5, 1.0, 3.0}) {
    double total = 0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    std::map<std::int32_t, double> softmax;
    for (std::int32_t id = 0; id < 16; ++id) {
      softmax[id] = std::exp(logits[static_cast<std::size_t>(id)] / temperature) / total;
    }
    EXPECT_LT(chi_square({.temperature = temperature, .seed = 1}, logits, softmax, 200000),
              37.7);  // 0.1%, 15
  }
}

TEST(Sampler, KnowsProbabilitiesToTenDigits) {
  // Of two candidates the first alone is enough for top-p up to its probability, and not beyond.
  for (const float difference : {0.01F, 0.3F, 0.34F, 0.35F, 0.6F, 1.0F, 2.0F, 3.3F, 5.0F}) {
    const std::vector<float> logits = {0.0F, -difference};
    const double probability = 1 / (1 + std::exp(-static_cast<double>(difference)));
    const auto kept = [&](double p) {
      return picked_set({.temperature = 1, .top_p = p}, logits, 3000).size();
    };
    EXPECT_EQ(kept(probability * (1 - 1e-11)), 1U) << difference;
    EXPECT_EQ(kept(probability * (1 + 1e-11)), 2U) << difference;
  }
}

TEST(Sampler, TopPWorksOnTheProbabilitiesThatTopKLeft) {
  // Probabilities 0.4, 0.3, 0.2, 0.1. Among the first two alone, 0.4 becomes 4/7, which is enough for p =
  // 0.55. Among all four, 0.4 is not enough.
  const std::vector<float> logits = {std::log(0.4F), std::log(0.3F), std::log(0.2F), std::log(0.1F)};
  EXPECT_EQ(picked_set({.temperature = 1, .top_k = 2, .top_p = 0.55}, logits, 500),
            (std::set<std::int32_t>{0}));
  EXPECT_EQ(picked_set({.temperature = 1, .top_p = 0.55}, logits, 500), (std::set<std::int32_t>{0, 1}));
}

TEST(Sampler, TemperatureComesBeforeTopP) {
  // 0.4, 0.3, 0.2, 0.1 at temperature 0.5 become 16/30, 9/30, 4/30, 1/30.
  const std::vector<float> logits = {std::log(0.4F), std::log(0.3F), std::log(0.2F), std::log(0.1F)};
  EXPECT_EQ(picked_set({.temperature = 0.5, .top_p = 0.8}, logits, 2000), (std::set<std::int32_t>{0, 1}));
  EXPECT_LT(chi_square({.temperature = 0.5, .top_p = 0.8}, logits, {{0, 16.0 / 25}, {1, 9.0 / 25}}, 20000),
            10.8);
}

TEST(Sampler, TopKKeepsTheKLargest) {
  const std::vector<float> logits = {0.3F, 0.1F, 0.4F, 0.2F};
  const auto kept = [&](std::int64_t k) { return picked_set({.temperature = 1, .top_k = k}, logits, 500); };
  EXPECT_EQ(kept(1), (std::set<std::int32_t>{2}));
  EXPECT_EQ(kept(2), (std::set<std::int32_t>{0, 2}));
  EXPECT_EQ(kept(3), (std::set<std::int32_t>{0, 2, 3}));
}

TEST(Sampler, TopKOfTheVocabularyOrMoreAndTopKZeroChangeNothing) {
  const std::vector<float> logits = sixteen_logits();
  const std::vector<std::int32_t> all = picks({.temperature = 2, .seed = 7}, logits, 300);
  for (const std::int64_t k : {std::int64_t{0}, std::int64_t{16}, std::int64_t{17},
                               std::int64_t{1'000'000'000}, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(picks({.temperature = 2, .top_k = k, .seed = 7}, logits, 300), all) << k;
  }
}

TEST(Sampler, TopKOneIsGreedyAtAnyTemperature) {
  EXPECT_EQ(picked_set({.temperature = 1e30, .top_k = 1}, {1.0F, 3.0F, 3.0F}, 100),
            (std::set<std::int32_t>{1}));
}

TEST(Sampler, TiesAtTheBorderOfTopKGoToTheLowestIds) {
  EXPECT_EQ(picked_set({.temperature = 1, .top_k = 3}, {5.0F, 5.0F, 5.0F, 5.0F, 6.0F}, 500),
            (std::set<std::int32_t>{0, 1, 4}));
}

TEST(Sampler, TopKFindsTheSameIdsAsASortInALargeVocabulary) {
  // Rising, falling and mixed logits with many ties, so that the selection has to thin out again and again.
  for (const int factor : {1, -1, 7919}) {
    std::vector<float> logits;
    for (int id = 0; id < 1000; ++id)
      logits.push_back(static_cast<float>(((factor * id) % 97 + 97) % 97) / 97);
    std::vector<std::int32_t> sorted;
    for (std::int32_t id = 0; id < 1000; ++id) sorted.push_back(id);
    std::stable_sort(sorted.begin(), sorted.end(), [&](std::int32_t left, std::int32_t right) {
      return logits[static_cast<std::size_t>(left)] > logits[static_cast<std::size_t>(right)];
    });
    for (const std::int64_t k : {2, 10, 100}) {
      EXPECT_EQ(picked_set({.temperature = 1e30, .top_k = k}, logits, 2500),
                std::set<std::int32_t>(sorted.begin(), sorted.begin() + k));
    }
  }
}

TEST(Sampler, TopPKeepsTheFewestThatReachP) {
  const std::vector<float> equal(4, 1.0F);  // each 1/4; ties are kept in the order of ids
  const auto kept = [&](double p) { return picked_set({.temperature = 1, .top_p = p}, equal, 500).size(); };
  EXPECT_EQ(kept(0.0), 1U);
  EXPECT_EQ(kept(1e-300), 1U);
  EXPECT_EQ(kept(0.25), 1U);
  EXPECT_EQ(kept(0.2501), 2U);
  EXPECT_EQ(kept(0.5), 2U);
  EXPECT_EQ(kept(0.7501), 4U);
  EXPECT_EQ(kept(1.0), 4U);
  EXPECT_EQ(picked_set({.temperature = 1, .top_p = 0.5}, equal, 500), (std::set<std::int32_t>{0, 1}));
}

TEST(Sampler, TopPZeroPicksTheLargest) {
  EXPECT_EQ(picked_set({.temperature = 1e30, .top_p = 0}, {1.0F, 3.0F, 3.0F}, 100),
            (std::set<std::int32_t>{1}));
}

TEST(Sampler, TopPFindsTheSameNucleusAsASortInALargeVocabulary) {
  std::vector<float> logits;
  for (int id = 0; id < 1000; ++id)
    logits.push_back(static_cast<float>((7919 * id) % 1000) / 120);  // a permutation
  for (const double p : {0.01, 0.3, 0.9}) {
    std::vector<float> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    double total = 0;
    for (const float logit : sorted) total += std::exp(static_cast<double>(logit));
    double cumulated = 0;
    std::size_t kept = 0;
    while (cumulated < p * total) cumulated += std::exp(static_cast<double>(sorted[kept++]));
    float lowest = infinity;
    for (const std::int32_t id : picks({.temperature = 1, .top_p = p}, logits, 5000)) {
      lowest = std::min(lowest, logits[static_cast<std::size_t>(id)]);
    }
    EXPECT_GE(lowest, sorted[kept - 1]) << p;          // nothing outside,
    EXPECT_LT(lowest, sorted[kept - 1] + 0.05F) << p;  // and the border itself within reach
  }
}

TEST(Sampler, NeverPicksALogitOfMinusInfinity) {
  const std::vector<float> logits = {-infinity, 0.0F, -infinity, 1.0F};
  EXPECT_EQ(picks({}, {-infinity, -infinity, -100.0F}, 1), (std::vector<std::int32_t>{2}));
  EXPECT_EQ(picked_set({.temperature = 1}, logits, 500), (std::set<std::int32_t>{1, 3}));
  EXPECT_EQ(picked_set({.temperature = 1e308}, logits, 500), (std::set<std::int32_t>{1, 3}));
  EXPECT_EQ(picked_set({.temperature = 1, .top_k = 3}, logits, 500), (std::set<std::int32_t>{1, 3}));
}

TEST(Sampler, SurvivesTheLargestLogits) {
  constexpr float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(picked_set({.temperature = 1}, {-largest, largest, 0.0F}, 100), (std::set<std::int32_t>{1}));
}

TEST(Sampler, EqualSeedsGiveEqualPicksAndOthersDiffer) {
  const std::vector<float> logits = sixteen_logits();
  EXPECT_EQ(picks({.temperature = 1, .seed = 42}, logits, 100),
            picks({.temperature = 1, .seed = 42}, logits, 100));
  EXPECT_NE(picks({.temperature = 1, .seed = 42}, logits, 100),
            picks({.temperature = 1, .seed = 43}, logits, 100));
}

TEST(Sampler, TwoSamplersDoNotShareTheirDraws) {
  const std::vector<float> logits = sixteen_logits();
  const std::vector<std::int32_t> alone = picks({.temperature = 1, .seed = 42}, logits, 50);
  Sampler sampler({.temperature = 1, .seed = 42});
  Sampler neighbour({.temperature = 1, .seed = 5});
  for (const std::int32_t id : alone) {
    static_cast<void>(neighbour.pick(logits));
    EXPECT_EQ(sampler.pick(logits).id, id);
  }
}

TEST(Sampler, EveryPickTakesOneDrawWhateverTheLogits) {
  // After picks with a single possible id, the next picks are those of a sampler that had a choice.
  const std::vector<float> logits = sixteen_logits();
  const std::vector<std::int32_t> all = picks({.temperature = 1, .seed = 3}, logits, 20);
  Sampler sampler({.temperature = 1, .seed = 3});
  for (int pick = 0; pick < 10; ++pick) EXPECT_EQ(sampler.pick(std::vector<float>{0.0F}).id, 0);
  for (std::size_t pick = 10; pick < 20; ++pick) EXPECT_EQ(sampler.pick(logits).id, all[pick]);
}

TEST(Sampler, TakesItsDrawFromLogitsThatGiveNoIdToo) {
  const std::vector<float> logits = sixteen_logits();
  const std::vector<std::int32_t> all = picks({.temperature = 1, .seed = 3}, logits, 20);
  Sampler sampler({.temperature = 1, .seed = 3});
  for (int pick = 0; pick < 10; ++pick)
    EXPECT_FALSE(sampler.pick(std::vector<float>{0.0F, pick % 2 == 0 ? not_a_number : infinity}).ok());
  for (std::size_t pick = 10; pick < 20; ++pick) EXPECT_EQ(sampler.pick(logits).id, all[pick]);
}

// These ids were computed by other code with 60-digit arithmetic, so they hold on every platform.
TEST(Sampler, PicksThePinnedIdsOfASeed) {
  const std::vector<float> logits = sixteen_logits();
  EXPECT_EQ(
      picks({.temperature = 1, .seed = 42}, logits, 24),
      (std::vector<std::int32_t>{9, 2, 4, 6, 2, 11, 2, 11, 6, 9, 2, 9, 9, 9, 9, 2, 2, 9, 2, 9, 13, 2, 9, 9}));
  EXPECT_EQ(
      picks({.temperature = 0.7, .top_k = 8, .top_p = 0.9, .seed = 0xFFFF'FFFF'FFFF'FFFF}, logits, 24),
      (std::vector<std::int32_t>{11, 11, 2, 9, 9, 9, 11, 2, 9, 2, 2, 9, 2, 9, 2, 9, 9, 2, 2, 9, 9, 9, 9, 2}));
  EXPECT_EQ(picks({.temperature = 1, .seed = 0}, std::vector<float>(1000, 0.0F), 12),
            (std::vector<std::int32_t>{883, 431, 26, 970, 106, 327, 173, 771, 245, 952, 396, 761}));
}

TEST(Sampler, RefusesParametersOutOfRange) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(refusal_of({.temperature = nan}), "temperature must be a finite number >= 0, not nan");
  EXPECT_EQ(refusal_of({.temperature = inf}), "temperature must be a finite number >= 0, not inf");
  EXPECT_EQ(refusal_of({.temperature = -1}), "temperature must be a finite number >= 0, not -1");
  EXPECT_EQ(refusal_of({.top_k = -1}), "top-k must be a whole number >= 0 (0 is off), not -1");
  EXPECT_EQ(refusal_of({.top_p = nan}), "top-p must be a number from 0 to 1 (1 is off), not nan");
  EXPECT_EQ(refusal_of({.top_p = 1.5}), "top-p must be a number from 0 to 1 (1 is off), not 1.5");
  EXPECT_EQ(refusal_of({.top_p = -0.1}), "top-p must be a number from 0 to 1 (1 is off), not -0.1");
}

TEST(Sampler, SaysWhichLogitIsTheFirstThatIsNotFinite) {
  for (const double temperature : {0.0, 1.0}) {
    const auto message_for = [temperature](const std::vector<float>& logits) {
      const Picked picked = Sampler({.temperature = temperature}).pick(logits);
      return picked.ok() ? "an id" : message_of(picked);
    };
    EXPECT_EQ(message_for({0.0F, not_a_number, not_a_number}),
              "logit 1 is NaN, not a finite number: a sum left the range of the type (try --dtype bf16 or "
              "f32), or the weights are damaged");
    EXPECT_EQ(message_for({0.0F, 1.0F, infinity}),
              "logit 2 is +infinity, not a finite number: a sum left the range of the type (try --dtype bf16 "
              "or f32), or the weights are damaged");
    EXPECT_EQ(message_for({-infinity, -infinity}),
              "none of the 2 logits is above -infinity: no token can be picked");
    EXPECT_EQ(message_for({}), "none of the 0 logits is above -infinity: no token can be picked");
  }
}

}  // namespace
}  // namespace kvcache
