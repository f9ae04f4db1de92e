// External fragmentation on a memory small enough to follow by hand, and on the trace of docs/articles.md.
#include "docs/numbers/fragmentation.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "docs/numbers/contiguous_allocator.h"

namespace kvcache {
namespace {

TEST(ContiguousAllocator, TakesTheLowestHoleThatIsLargeEnough) {
  ContiguousAllocator memory(10);
  EXPECT_EQ(memory.allocate(3), 0);
  EXPECT_EQ(memory.allocate(3), 3);
  EXPECT_EQ(memory.allocate(4), 6);
  EXPECT_EQ(memory.allocate(1), std::nullopt);
  memory.free(0, 3);
  EXPECT_EQ(memory.allocate(2), 0);
  EXPECT_EQ(memory.allocate(1), 2);
}

TEST(ContiguousAllocator, TakesTheSmallestOrTheLargestHoleIfAskedTo) {
  const auto place_of_two = [](Fit fit) {
    ContiguousAllocator memory(20, fit);
    for (const std::int64_t size : {3, 1, 2, 1, 5, 8}) memory.allocate(size);
    for (const auto& [first, size] : {std::pair(0, 3), std::pair(4, 2), std::pair(7, 5)})
      memory.free(first, size);
    return memory.allocate(2);
  };
  EXPECT_EQ(place_of_two(Fit::first), 0);
  EXPECT_EQ(place_of_two(Fit::best), 4);
  EXPECT_EQ(place_of_two(Fit::worst), 7);
}

TEST(ContiguousAllocator, RefusesWhatTheSumOfItsHolesWouldHold) {
  ContiguousAllocator memory(12);
  for (int piece = 0; piece < 4; ++piece) memory.allocate(3);
  memory.free(0, 3);
  memory.free(6, 3);
  EXPECT_EQ(memory.holes(), 2);
  EXPECT_EQ(memory.free_slots(), 6);
  EXPECT_EQ(memory.largest_hole(), 3);
  EXPECT_EQ(memory.allocate(4), std::nullopt);
}

TEST(ContiguousAllocator, JoinsHolesThatTouch) {
  ContiguousAllocator memory(9);
  for (int piece = 0; piece < 3; ++piece) memory.allocate(3);
  memory.free(0, 3);
  memory.free(6, 3);
  memory.free(3, 3);  // closes the gap on both sides
  EXPECT_EQ(memory.holes(), 1);
  EXPECT_EQ(memory.largest_hole(), 9);
}

TEST(ContiguousAllocator, RefusesToFreeWhatIsFreeOrForeign) {
  ContiguousAllocator memory(8);
  memory.allocate(4);
  EXPECT_THROW(memory.free(4, 2), std::logic_error);
  EXPECT_THROW(memory.free(2, 4), std::logic_error);
  EXPECT_THROW(memory.free(-1, 2), std::logic_error);
  EXPECT_THROW(memory.free(0, 9), std::logic_error);
  memory.free(0, 4);
  EXPECT_THROW(memory.free(0, 4), std::logic_error);
  EXPECT_EQ(memory.free_slots(), 8);
}

/// Four of 4 tokens fill 16 slots; the first and the third leave; one of 6 comes.
const std::vector<Visit> kAlternating = {{4, 0, 5}, {4, 1, 9}, {4, 2, 5}, {4, 3, 9}, {6, 6, 9}};

TEST(Fragmentation, ContiguousPiecesRefuseASequenceForWhichThereIsRoom) {
  const ReplayResult result = replay_contiguous(kAlternating, 16);
  EXPECT_EQ(result.refused, 1);
  EXPECT_EQ(result.refused_in_spite_of_room, 1);
  EXPECT_EQ(result.most_free_when_refused, 8);
  EXPECT_EQ(result.most_holes, 2);
  EXPECT_EQ(result.most_wasted, 0);
}

/// Holes of 6 and 4 when one of 4 comes, then one of 6: only best fit keeps room for the second.
TEST(Fragmentation, TheChoiceOfTheHoleDecidesWhatFitsLater) {
  const std::vector<Visit> visits = {{6, 0, 5}, {3, 1, 9}, {4, 2, 5}, {3, 3, 9}, {4, 6, 9}, {6, 7, 9}};
  EXPECT_EQ(replay_contiguous(visits, 16, Fit::first).refused, 1);
  EXPECT_EQ(replay_contiguous(visits, 16, Fit::best).refused, 0);
  EXPECT_EQ(replay_contiguous(visits, 16, Fit::worst).refused, 1);
}

TEST(Fragmentation, OnTheTraceOfThePageFirstFitRefusesTheFewest) {
  const std::vector<Visit> visits = made_up_visits(2'000, 1);
  EXPECT_EQ(replay_contiguous(visits, 28'672, Fit::first).refused, 62);
  EXPECT_EQ(replay_contiguous(visits, 28'672, Fit::best).refused, 70);
  EXPECT_EQ(replay_contiguous(visits, 28'672, Fit::worst).refused, 149);
}

TEST(Fragmentation, BlocksTakeItAndWasteLessThanABlockOfIt) {
  const ReplayResult result = replay_paged(kAlternating, 16, 4);
  EXPECT_EQ(result.refused, 0);
  EXPECT_EQ(result.most_wasted, 2);
}

TEST(Fragmentation, BothRefuseWhatIsReallyTooMuch) {
  const std::vector<Visit> visits = {{12, 0, 9}, {8, 1, 9}};
  for (const ReplayResult& result : {replay_contiguous(visits, 16), replay_paged(visits, 16, 4)}) {
    EXPECT_EQ(result.refused, 1);
    EXPECT_EQ(result.refused_in_spite_of_room, 0);
  }
}

TEST(Fragmentation, APoolNeverRefusesInSpiteOfRoomHoweverSequencesComeAndGo) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<Visit> visits = made_up_visits(500, seed);
    const ReplayResult pieces = replay_contiguous(visits, 16'384);
    const ReplayResult blocks = replay_paged(visits, 16'384, 16);
    EXPECT_GT(pieces.refused_in_spite_of_room, 0) << seed;
    EXPECT_EQ(blocks.refused_in_spite_of_room, 0) << seed;
    EXPECT_LT(blocks.most_wasted, 80 * 16) << seed;  // at most 79 sequences are there at a time
  }
}

TEST(Fragmentation, TheTraceIsTheSameOnEveryMachine) {
  const std::vector<Visit> visits = made_up_visits(3, 1);
  EXPECT_EQ(visits[1].arrival, 1);
  EXPECT_EQ(visits[0].tokens, 1'102);
  EXPECT_EQ(visits[2].departure, 18);
}

}  // namespace
}  // namespace kvcache
