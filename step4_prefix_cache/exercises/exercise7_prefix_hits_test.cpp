// Exercise 7: the count is what PrefixCachingManager finds.
#include "step4_prefix_cache/exercises/exercise7_prefix_hits.h"

#include <gtest/gtest.h>

#include <random>

#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {
namespace {

using Prompts = std::vector<std::vector<std::int32_t>>;
using Counts = std::vector<std::int64_t>;

/// The same prompts through step 4's bookkeeping.
Counts played(const Prompts& prompts, std::int64_t block_size) {
  PrefixCachingManager manager({.blocks = 1000, .block_size = block_size, .bytes_per_token = 1});
  Counts cached;
  std::int32_t sequence = 0;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    const std::vector<Work> work{{sequence, prompt}};
    manager.commit(manager.plan(work).value());
    cached.push_back(manager.cached_tokens(sequence++));
  }
  return cached;
}

TEST(Exercise7, SolvesTheExampleOfItsStatement) {
  const Prompts prompts{{1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4, 5}, {9, 9, 3, 4, 5}};
  EXPECT_EQ(cached_tokens_of(prompts, 2), (Counts{0, 2, 4, 0}));
  EXPECT_EQ(played(prompts, 2), (Counts{0, 2, 4, 0}));
}

TEST(Exercise7, FindsNothingInAnEmptyCache) {
  EXPECT_EQ(cached_tokens_of(Prompts{{1, 2, 3, 4, 5}}, 2), Counts{0});
}

TEST(Exercise7, LeavesOneTokenOfAKnownPromptToBeComputed) {
  EXPECT_EQ(cached_tokens_of(Prompts{{1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4, 5}}, 2), (Counts{0, 2, 4}));
}

TEST(Exercise7, DoesNotFindABlockWhoseBeginningIsAnother) {
  EXPECT_EQ(cached_tokens_of(Prompts{{1, 2, 3, 4, 5}, {9, 9, 3, 4, 5}, {3, 4, 3, 4, 5}}, 2),
            (Counts{0, 0, 0}));
}

TEST(Exercise7, DoesNotFindAPartlyFilledBlock) {
  EXPECT_EQ(cached_tokens_of(Prompts{{1, 2, 3}, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}}, 2), (Counts{0, 2, 4}));
}

TEST(Exercise7, AgreesWithTheManagerOnManyPrompts) {
  std::mt19937 random(7);
  for (const std::int64_t block_size : {1, 2, 4}) {
    Prompts prompts(60);
    for (std::vector<std::int32_t>& prompt : prompts) {
      prompt.resize(1 + random() % 12);
      for (std::int32_t& id : prompt) id = static_cast<std::int32_t>(random() % 2);
    }
    EXPECT_EQ(cached_tokens_of(prompts, block_size), played(prompts, block_size))
        << "blocks of " << block_size;
  }
}

}  // namespace
}  // namespace kvcache
