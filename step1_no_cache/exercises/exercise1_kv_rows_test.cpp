// Exercise 1: the rows that are counted are those of step 1's plans.
#include "step1_no_cache/exercises/exercise1_kv_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "step1_no_cache/no_cache.h"

namespace kvcache {
namespace {

/// The same run, pass by pass.
KvRowsReport played(std::int64_t prompt, std::int64_t new_tokens) {
  NoCacheManager manager;
  KvRowsReport rows;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(prompt), 7);
  std::int64_t computed_before = 0;  // positions
  for (std::int64_t pass = 0; pass < std::max<std::int64_t>(new_tokens, 1); ++pass) {
    const std::vector<Work> work{{0, ids}};
    const PassPlan plan = manager.plan(work).value();
    rows.computed += plan.tokens();
    for (const std::int32_t position : plan.positions) rows.recomputed += position < computed_before ? 1 : 0;
    computed_before = static_cast<std::int64_t>(ids.size());
    ids.push_back(7);
  }
  return rows;
}

TEST(Exercise1, SolvesTheExampleOfItsStatement) {
  EXPECT_EQ(kv_rows_of_run(3, 3).computed, 12);
  EXPECT_EQ(kv_rows_of_run(3, 3).recomputed, 7);
}

TEST(Exercise1, CountsTheRowsThatStep1Plans) {
  for (const std::int64_t prompt : {1, 2, 9, 30}) {
    for (const std::int64_t new_tokens : {1, 2, 3, 20}) {
      const KvRowsReport counted = kv_rows_of_run(prompt, new_tokens), right = played(prompt, new_tokens);
      EXPECT_EQ(counted.computed, right.computed) << prompt << " tokens and " << new_tokens << " new ones";
      EXPECT_EQ(counted.recomputed, right.recomputed)
          << prompt << " tokens and " << new_tokens << " new ones";
    }
  }
}

TEST(Exercise1, ComputesAPromptOnceThoughNothingFollowsIt) {
  EXPECT_EQ(kv_rows_of_run(9, 0).computed, 9);
  EXPECT_EQ(kv_rows_of_run(9, 0).recomputed, 0);
}

TEST(Exercise1, CountsInSixtyFourBits) {
  EXPECT_EQ(kv_rows_of_run(100'000, 1'000'000).computed, 599'999'500'000);
  EXPECT_EQ(kv_rows_of_run(100'000, 1'000'000).recomputed, 599'998'400'001);
}

}  // namespace
}  // namespace kvcache
