// Exercise 2: one pass over the keys and values gives what the formula gives.
#include "step1_no_cache/exercises/exercise2_running_softmax.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/cpu/attention_plain.h"
#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

constexpr std::size_t head_dim = 4;  // its root is exact, and so are the large scores below

/// The formula in two passes, in double.
std::vector<float> formula(std::span<const float> q, std::span<const float> k, std::span<const float> v) {
  const auto positions = static_cast<std::int64_t>(k.size() / head_dim);
  std::vector<float> out(head_dim);
  cpu::attention_plain({1, 1, head_dim}, {DType::f32, std::as_bytes(k).data(), std::as_bytes(v).data()},
                       {0, 1, positions, {}}, q.data(), out.data(), head_dim);
  return out;
}

void expect_formula(std::span<const float> q, std::span<const float> k, std::span<const float> v) {
  std::vector<float> out(head_dim, -1.0F);
  KvStream kv(k, v, head_dim);
  attend_to_stream(q, kv, out);
  const std::vector<float> right = formula(q, k, v);
  for (std::size_t n = 0; n < head_dim; ++n) EXPECT_NEAR(out[n], right[n], 1e-5) << "number " << n;
}

/// Keys whose scores with a query of ones are `scores`.
std::vector<float> keys_for(const std::vector<float>& scores) {
  std::vector<float> k;
  for (const float score : scores) k.insert(k.end(), head_dim, score / std::sqrt(float{head_dim}));
  return k;
}

TEST(Exercise2, SolvesTheExampleOfItsStatement) {
  const std::vector<float> q{1}, k{0, std::log(3.0F)}, v{10, 20};
  std::vector<float> out{-1};
  KvStream kv(k, v, 1);
  attend_to_stream(q, kv, out);
  EXPECT_NEAR(out[0], 17.5F, 1e-5);
}

TEST(Exercise2, GivesWhatTheFormulaGives) {
  for (const std::size_t positions : {1U, 2U, 3U, 50U}) {
    SCOPED_TRACE(positions);
    expect_formula(random_numbers(head_dim, 1), random_numbers(positions * head_dim, 2),
                   random_numbers(positions * head_dim, 3));
  }
}

TEST(Exercise2, TakesLargeAndSmallScoresInAnyOrder) {
  const std::vector<float> ones(head_dim, 1.0F);
  for (const std::vector<float>& scores : {std::vector<float>{1000, 1001, 1002},
                                           {1002, 1001, 1000},
                                           {-1000, -1001, -999},
                                           {-1000, 0, 1000, 0},
                                           {0, 500, -500, 501}}) {
    SCOPED_TRACE(testing::PrintToString(scores));
    expect_formula(ones, keys_for(scores), random_numbers(scores.size() * head_dim, 4));
  }
}

}  // namespace
}  // namespace kvcache
