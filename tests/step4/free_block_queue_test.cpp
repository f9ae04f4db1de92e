// The order in which free blocks are given to someone else, and taking them out of the middle.
#include "step4_prefix_cache/free_block_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvcache {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(FreeBlockQueue, BlocksNeverUsedLeaveInTheOrderOfTheirIds) {
  const FreeBlockQueue queue(4);
  EXPECT_EQ(queue.in_order(), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(queue.front(), 0);
  EXPECT_EQ(queue.size(), 4);
}

TEST(FreeBlockQueue, WhatMayBeWantedAgainLeavesLastAndWhatIsWorthlessFirst) {
  FreeBlockQueue queue(4);
  queue.remove(0);
  queue.remove(1);
  queue.push_back(0);
  queue.push_front(1);
  EXPECT_EQ(queue.in_order(), (Ids{1, 2, 3, 0}));
}

TEST(FreeBlockQueue, ABlockLeavesFromAnywhere) {
  for (const std::int32_t taken : {0, 1, 2, 3, 4}) {
    FreeBlockQueue queue(5);
    queue.remove(taken);
    Ids others{0, 1, 2, 3, 4};
    others.erase(others.begin() + taken);
    EXPECT_EQ(queue.in_order(), others);
    EXPECT_FALSE(queue.contains(taken));
    EXPECT_EQ(queue.size(), 4);
  }
}

TEST(FreeBlockQueue, ItCanBeEmptiedAndFilledAgain) {
  FreeBlockQueue queue(3);
  for (const std::int32_t block : {1, 0, 2}) queue.remove(block);
  EXPECT_EQ(queue.size(), 0);
  EXPECT_TRUE(queue.in_order().empty());
  for (const std::int32_t block : {2, 0, 1}) queue.push_back(block);
  EXPECT_EQ(queue.in_order(), (Ids{2, 0, 1}));
}

TEST(FreeBlockQueue, AQueueOfNoBlocksIsEmpty) {
  const FreeBlockQueue queue(0);
  EXPECT_EQ(queue.size(), 0);
  EXPECT_TRUE(queue.in_order().empty());
}

TEST(FreeBlockQueue, UndoingRemovalsInReverseRestoresItExactly) {
  constexpr std::uint32_t seed = 7;
  std::mt19937 random(seed);
  FreeBlockQueue queue(20);
  for (int round = 0; round < 200; ++round) {
    // Some order, then some removals from anywhere, neighbours and both ends among them.
    const auto moved = static_cast<std::int32_t>(random() % 20);
    queue.remove(moved);
    random() % 2 == 0 ? queue.push_back(moved) : queue.push_front(moved);
    const Ids before = queue.in_order();
    Ids removed = before;
    std::shuffle(removed.begin(), removed.end(), random);
    removed.resize(random() % 21);
    for (const std::int32_t block : removed) queue.remove(block);
    ASSERT_EQ(queue.size(), 20 - static_cast<std::int64_t>(removed.size()));
    std::reverse(removed.begin(), removed.end());
    for (const std::int32_t block : removed) queue.undo_remove(block);
    ASSERT_EQ(queue.in_order(), before) << "seed " << seed << ", round " << round;
    ASSERT_EQ(queue.size(), 20);
  }
}

}  // namespace
}  // namespace kvcache
