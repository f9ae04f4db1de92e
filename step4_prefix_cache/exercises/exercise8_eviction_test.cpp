// Exercise 8: two policies, with the misses that they are known for.
#include "step4_prefix_cache/exercises/exercise8_eviction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <vector>

namespace kvcache {
namespace {

using Contents = std::vector<std::int32_t>;
using enum Eviction;

/// The policy on a plain list, the next to go in front.
std::int64_t misses_of_a_list(Eviction eviction, const Contents& contents, std::size_t blocks) {
  std::list<std::int32_t> cached;
  std::int64_t count = 0;
  for (const std::int32_t content : contents) {
    const auto found = std::find(cached.begin(), cached.end(), content);
    if (found == cached.end()) {
      if (cached.size() == blocks) cached.pop_front();
      cached.push_back(content);
      ++count;
    } else if (eviction == least_recently_used) {
      cached.splice(cached.end(), cached, found);
    }
  }
  return count;
}

TEST(Exercise8, AHitKeepsABlockOnlyIfTheLeastRecentlyUsedGoes) {
  const Contents contents{1, 2, 3, 1, 4, 1};
  EXPECT_EQ(misses(first_in_first_out, contents, 3), 5);
  EXPECT_EQ(misses(least_recently_used, contents, 3), 4);
}

// Belady, Nelson and Shedler, "An anomaly in space-time characteristics of certain programs" (1969).
TEST(Exercise8, MoreBlocksCanMissMoreIfTheFirstInGoesFirst) {
  const Contents contents{1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5};
  EXPECT_EQ(misses(first_in_first_out, contents, 3), 9);
  EXPECT_EQ(misses(first_in_first_out, contents, 4), 10);
  EXPECT_EQ(misses(least_recently_used, contents, 3), 10);
  EXPECT_EQ(misses(least_recently_used, contents, 4), 8);
}

TEST(Exercise8, MissesEverythingOnceIfAllOfItFits) {
  EXPECT_EQ(misses(first_in_first_out, Contents{}, 1), 0);
  for (const Eviction eviction : {first_in_first_out, least_recently_used}) {
    EXPECT_EQ(misses(eviction, Contents{7, 7, 0, 7, 0}, 2), 2);
  }
}

TEST(Exercise8, AgreesWithAPlainListOnManyRequests) {
  std::mt19937 random(8);
  Contents contents(2000);
  for (std::int32_t& content : contents) content = static_cast<std::int32_t>(random() % 10);
  for (const std::size_t blocks : {1U, 2U, 5U, 9U, 20U}) {
    for (const Eviction eviction : {first_in_first_out, least_recently_used}) {
      EXPECT_EQ(misses(eviction, contents, static_cast<std::int64_t>(blocks)),
                misses_of_a_list(eviction, contents, blocks))
          << blocks << " blocks";
    }
  }
}

}  // namespace
}  // namespace kvcache
