// What a pinned prefix adds to the hits of a new sequence: its own blocks, and its partly filled tail.
#include "step4_prefix_cache/pinned_prefix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Ids = std::vector<std::int32_t>;

/// Blocks 0 and 3 hold the tokens 1 2, block 1 holds 3 4 after them; blocks of two tokens.
PrefixIndex index_with_twins() {
  PrefixIndex index(8, 2);
  index.insert(0, {.hash = 7, .identity = 1}, Ids{1, 2});
  index.insert(3, {.hash = 7, .identity = 1}, Ids{1, 2});
  index.insert(1, {.hash = 8, .identity = 2, .parent_identity = 1}, Ids{3, 4});
  return index;
}

/// What a sequence of `token_ids` finds in the end, if it found `hits` by its hashes.
PrefixHits shared(PrefixHits hits, const Ids& table, const Ids& pinned, const Ids& token_ids) {
  share_pinned(hits, {table, pinned}, token_ids, index_with_twins());
  return hits;
}

TEST(SharePinned, SharesAllTokensButTheLastAlsoWhereNoBlockIsFound) {
  const Ids table{0, 5}, pinned{1, 2, 3};
  const PrefixHits longer = shared({}, table, pinned, {1, 2, 3, 4});
  EXPECT_EQ(longer.blocks, table);
  EXPECT_EQ(longer.tokens, 3);
  const PrefixHits same = shared({}, table, pinned, pinned);
  EXPECT_THAT(same.blocks, ElementsAre(0));
  EXPECT_EQ(same.tokens, 2);
}

TEST(SharePinned, LeavesSequencesThatBeginOtherwise) {
  for (const Ids& token_ids : {Ids{}, Ids{1}, Ids{1, 2}, Ids{1, 2, 9, 9}, Ids{9, 2, 3, 4}}) {
    const PrefixHits hits = shared({}, {0, 5}, {1, 2, 3}, token_ids);
    EXPECT_THAT(hits.blocks, IsEmpty());
    EXPECT_EQ(hits.tokens, 0);
  }
}

TEST(SharePinned, OfEqualBlocksTakesThePinnedOne) {
  for (const std::int32_t own : {0, 3}) {
    for (const std::int32_t found : {0, 3}) {
      const PrefixHits hits = shared({{found, 1}, {}, 4}, {own}, {1, 2}, {1, 2, 3, 4, 5});
      EXPECT_THAT(hits.blocks, ElementsAre(own, 1));
      EXPECT_EQ(hits.tokens, 4);
    }
  }
}

TEST(SharePinned, KeepsHitsThatReachFurther) {
  const PrefixHits hits = shared({{0}, {6}, 4}, {3, 5}, {1, 2, 3}, {1, 2, 3, 4, 5});
  EXPECT_THAT(hits.blocks, ElementsAre(3));
  EXPECT_THAT(hits.host_blocks, ElementsAre(6));
  EXPECT_EQ(hits.tokens, 4);
}

TEST(SharePinned, TakesNoPinnedBlockThatHoldsSomethingElse) {
  const PrefixHits hits = shared({{0, 1}, {}, 4}, {0, 4}, {1, 2, 9}, {1, 2, 3, 4, 5});
  EXPECT_THAT(hits.blocks, ElementsAre(0, 1));
}

}  // namespace
}  // namespace kvcache
