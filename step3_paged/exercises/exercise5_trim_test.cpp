// Exercise 5: trim takes back the last tokens, and gives back their blocks and no others.
#include "step3_paged/exercises/exercise5_trim.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace kvcache {
namespace {

using Blocks = std::vector<std::int32_t>;

constexpr std::int64_t block_size = 4;

/// Lets a sequence grow to `length` tokens.
void grow(BlockTable& table, std::int64_t length, BlockPool& pool) {
  while (static_cast<std::int64_t>(table.blocks.size()) * block_size < length) {
    table.blocks.push_back(pool.allocate().value());
  }
  table.length = length;
}

struct Exercise5 : testing::Test {
  Exercise5() { grow(table, 10, pool); }

  BlockPool pool{6};
  BlockTable table;  // 0 1 2, of which the last holds 2 tokens
};

TEST_F(Exercise5, KeepsABlockThatStillHoldsATokenOfTheRest) {
  trim(table, 1, block_size, pool);
  EXPECT_EQ(table.length, 9);
  EXPECT_EQ(table.blocks, (Blocks{0, 1, 2}));
  EXPECT_EQ(pool.free_count(), 3);
}

TEST_F(Exercise5, GivesABlockBackWithItsFirstToken) {
  trim(table, 2, block_size, pool);
  EXPECT_EQ(table.length, 8);
  EXPECT_EQ(table.blocks, (Blocks{0, 1}));
  EXPECT_EQ(pool.free_count(), 4);
  trim(table, 3, block_size, pool);
  EXPECT_EQ(table.blocks, (Blocks{0, 1}));
  trim(table, 5, block_size, pool);
  EXPECT_TRUE(table.blocks.empty());
  EXPECT_EQ(pool.in_use_count(), 0);
  pool.check_invariants();
}

TEST_F(Exercise5, ChangesNothingWhenNothingIsTakenBack) {
  trim(table, 0, block_size, pool);
  EXPECT_EQ(table.length, 10);
  EXPECT_EQ(table.blocks, (Blocks{0, 1, 2}));
}

TEST_F(Exercise5, TakesTheSameBlocksWhenTheSequenceGrowsAgain) {
  trim(table, 9, block_size, pool);
  EXPECT_EQ(table.blocks, (Blocks{0}));
  grow(table, 12, pool);
  EXPECT_EQ(table.blocks, (Blocks{0, 1, 2}));
  pool.check_invariants();
}

TEST_F(Exercise5, RefusesToTakeBackMoreThanIsStored) {
  for (const std::int64_t tokens : {11, -1}) {
    EXPECT_THROW(trim(table, tokens, block_size, pool), std::invalid_argument) << tokens;
    EXPECT_EQ(table.length, 10);
    EXPECT_EQ(table.blocks, (Blocks{0, 1, 2}));
    EXPECT_EQ(pool.free_count(), 3);
  }
}

}  // namespace
}  // namespace kvcache
