// The order in which free blocks leave the queue, and how a block is taken out of the middle.
#include "step4_prefix_cache/free_block_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>

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

// ---- What it refuses, naming the block; nothing has changed then ----

/// `change` is refused with a message that names `block`, and leaves the queue as it is.
void expect_refused(const FreeBlockQueue& queue, std::int32_t block, const std::function<void()>& change) {
  const Ids before = queue.in_order();
  try {
    change();
    ADD_FAILURE() << "block " << block;
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("block " + std::to_string(block)));
  }
  EXPECT_EQ(queue.in_order(), before);
}

TEST(FreeBlockQueue, RefusesToQueueABlockTwiceOrWhatIsNoBlock) {
  FreeBlockQueue queue(3);
  for (const std::int32_t block : {0, 2, -1, 3, 4}) {
    expect_refused(queue, block, [&] { queue.push_back(block); });
    expect_refused(queue, block, [&] { queue.push_front(block); });
  }
}

TEST(FreeBlockQueue, RefusesToRemoveWhatIsNotQueued) {
  FreeBlockQueue queue(3);
  queue.remove(1);
  for (const std::int32_t block : {1, -1, 3, 4}) {
    EXPECT_FALSE(queue.contains(block));
    expect_refused(queue, block, [&] { queue.remove(block); });
  }
}

TEST(FreeBlockQueue, RefusesToUndoARemovalOutOfTurn) {
  FreeBlockQueue queue(4);
  for (const std::int32_t block : {0, -1, 4}) expect_refused(queue, block, [&] { queue.undo_remove(block); });
  queue.remove(1);
  queue.remove(2);
  expect_refused(queue, 1, [&] { queue.undo_remove(1); });  // 2 went after it and is to come back before
  queue.push_back(2);
  expect_refused(queue, 1, [&] { queue.undo_remove(1); });
}

TEST(FreeBlockQueue, RefusesToNameTheFrontOfNothing) {
  FreeBlockQueue queue(1);
  queue.remove(0);
  EXPECT_THROW(static_cast<void>(queue.front()), std::logic_error);
  EXPECT_THROW(static_cast<void>(FreeBlockQueue(0).front()), std::logic_error);
}

}  // namespace
}  // namespace kvcache
