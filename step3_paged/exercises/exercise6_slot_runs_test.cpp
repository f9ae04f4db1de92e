// Exercise 6: the runs name the slot of every position, and there are no more of them than needed.
#include "step3_paged/exercises/exercise6_slot_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace kvcache {
namespace {

using Blocks = std::vector<std::int32_t>;
using Runs = std::vector<SlotRun>;

TEST(Exercise6, JoinsNeighbouringBlocksThatFollowEachOther) {
  EXPECT_EQ(slot_runs(Blocks{3, 4, 5}, 4, 10), (Runs{{12, 10}}));
  EXPECT_EQ(slot_runs(Blocks{5, 3, 4}, 4, 10), (Runs{{20, 4}, {12, 6}}));
  EXPECT_EQ(slot_runs(Blocks{2, 1, 0}, 4, 12), (Runs{{8, 4}, {4, 4}, {0, 4}}));
}

TEST(Exercise6, StopsAtTheContext) {
  EXPECT_EQ(slot_runs(Blocks{7}, 4, 0), Runs{});
  EXPECT_EQ(slot_runs(Blocks{7, 2, 3}, 4, 4), (Runs{{28, 4}}));
  EXPECT_EQ(slot_runs(Blocks{7, 2, 3}, 4, 5), (Runs{{28, 4}, {8, 1}}));
}

TEST(Exercise6, CountsSlotsInSixtyFourBits) {
  EXPECT_EQ(slot_runs(Blocks{1 << 30}, 16, 3), (Runs{{std::int64_t{1} << 34, 3}}));
}

TEST(Exercise6, NamesTheSlotOfEveryPositionInFewRuns) {
  std::mt19937 random(6);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t block_size = 1 + round % 5;
    Blocks blocks(12);
    std::iota(blocks.begin(), blocks.end(), 0);
    for (int swap = 0; swap < round % 7; ++swap) std::swap(blocks[random() % 12], blocks[random() % 12]);
    const auto context =
        static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(12 * block_size + 1));
    std::vector<std::int64_t> slots, right;
    std::int64_t end = -1;
    for (const SlotRun& run : slot_runs(blocks, block_size, context)) {
      EXPECT_NE(run.first_slot, end) << "two runs that are one";
      end = run.first_slot + run.tokens;
      for (std::int64_t slot = run.first_slot; slot < end; ++slot) slots.push_back(slot);
    }
    for (std::int64_t position = 0; position < context; ++position) {
      right.push_back(blocks[static_cast<std::size_t>(position / block_size)] * block_size +
                      position % block_size);
    }
    ASSERT_EQ(slots, right) << "blocks of " << block_size << ", context " << context;
  }
}

}  // namespace
}  // namespace kvcache
