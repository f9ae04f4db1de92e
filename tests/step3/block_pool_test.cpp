// The pool of blocks: the order in which blocks are used again. An empty pool, a second free and a foreign
// free have defined results.
#include "step3_paged/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvcache {
namespace {

using testing::HasSubstr;

/// The message of the std::logic_error that `call` throws; "" if it throws none.
template <typename Call>
std::string fault_of(const Call& call) {
  try {
    call();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

/// The ids of `count` allocations.
std::vector<std::int32_t> take(BlockPool& pool, int count) {
  std::vector<std::int32_t> ids;
  for (int n = 0; n < count; ++n) ids.push_back(pool.allocate().value());
  return ids;
}

TEST(BlockPool, HandsOutBlocksThatWereNeverUsedInOrderOfTheirId) {
  BlockPool pool(5);
  EXPECT_EQ(take(pool, 5), (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
}

TEST(BlockPool, HandsOutTheBlockFreedLastFirst) {
  BlockPool pool(6);
  take(pool, 4);
  for (const std::int32_t id : {1, 3, 0}) pool.free(id);
  EXPECT_EQ(take(pool, 5), (std::vector<std::int32_t>{0, 3, 1, 4, 5}));
}

TEST(BlockPool, FreeingInTheReverseOrderOfAllocationRestoresThePoolExactly) {
  BlockPool pool(6);
  take(pool, 2);
  pool.free(0);
  const std::vector<std::int32_t> before = take(pool, 4);
  for (auto id = before.rbegin(); id != before.rend(); ++id) pool.free(*id);
  EXPECT_EQ(take(pool, 4), before);
}

TEST(BlockPool, SaysThatItIsExhaustedAsOftenAsItIsAskedAndChangesNothing) {
  BlockPool pool(2);
  take(pool, 2);
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(pool.allocate(), std::nullopt);
    EXPECT_EQ(pool.free_count(), 0);
    EXPECT_EQ(pool.in_use_count(), 2);
    pool.check_invariants();
  }
  pool.free(1);
  EXPECT_EQ(pool.allocate(), 1);
}

TEST(BlockPool, APoolOfNoBlocksIsExhaustedFromTheStart) {
  BlockPool pool(0);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  EXPECT_THROW(pool.free(0), std::logic_error);
  EXPECT_EQ(pool.total(), 0);
  pool.check_invariants();
}

// Pitfall 15: a set or a clamp would accept the second free in silence, and two sequences would get one
// block.
TEST(BlockPool, RefusesASecondFreeOfTheSameBlock) {
  BlockPool pool(3);
  take(pool, 2);
  pool.free(1);
  EXPECT_THROW(pool.free(1), std::logic_error);
  EXPECT_EQ(pool.free_count(), 2);
  pool.check_invariants();
  EXPECT_EQ(take(pool, 2), (std::vector<std::int32_t>{1, 2}));
}

TEST(BlockPool, RefusesToFreeABlockThatWasNeverTaken) {
  BlockPool pool(3);
  EXPECT_THROW(pool.free(2), std::logic_error);
  EXPECT_EQ(pool.free_count(), 3);
  pool.check_invariants();
}

TEST(BlockPool, RefusesToFreeWhatItNeverHad) {
  BlockPool pool(3);
  take(pool, 3);
  for (const std::int32_t id :
       {-1, 3, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()}) {
    EXPECT_THROW(pool.free(id), std::logic_error) << id;
  }
  EXPECT_EQ(pool.in_use_count(), 3);
  pool.check_invariants();
}

// A refusal is a fault of the caller's tables: its message says which block.
TEST(BlockPool, FreeingWhatIsNotInUseNamesTheBlockAndChangesNothing) {
  BlockPool pool(3);
  take(pool, 2);
  pool.free(1);
  for (const std::int32_t id : {1, 2, 3, -1})
    EXPECT_THAT(fault_of([&] { pool.free(id); }), HasSubstr("block " + std::to_string(id)));
  EXPECT_EQ(pool.in_use_count(), 1);
  pool.check_invariants();
}

TEST(BlockPool, AskingForABlockThatItNeverHadNamesTheBlock) {
  BlockPool pool(3);
  for (const std::int32_t id :
       {-1, 3, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()}) {
    EXPECT_THAT(fault_of([&] { static_cast<void>(pool.in_use(id)); }),
                HasSubstr("block " + std::to_string(id)));
  }
  EXPECT_FALSE(pool.in_use(2));
}

TEST(BlockPool, HasNoFewerBlocksThanNoneAndNoMoreThanIdsOf32BitsCount) {
  for (const std::int64_t total : {std::int64_t{-1}, std::int64_t{1} << 31})
    EXPECT_THAT(fault_of([&] { BlockPool pool(total); }), HasSubstr(std::to_string(total)));
}

TEST(BlockPool, CountsAndMarksEveryBlockOnce) {
  std::mt19937 random(7);
  constexpr std::int32_t kTotal = 17;
  BlockPool pool(kTotal);
  std::vector<bool> taken(kTotal, false);
  for (int operation = 0; operation < 20'000; ++operation) {
    const auto id = static_cast<std::int32_t>(random() % (kTotal + 2)) - 1;
    if (random() % 2 == 0) {
      const std::optional<std::int32_t> given = pool.allocate();
      const bool all_taken = std::count(taken.begin(), taken.end(), false) == 0;
      ASSERT_EQ(given.has_value(), !all_taken);
      if (!given) continue;
      ASSERT_FALSE(taken[static_cast<std::size_t>(*given)]) << "block " << *given << " was handed out twice";
      taken[static_cast<std::size_t>(*given)] = true;
    } else if (id < 0 || id >= kTotal) {
      ASSERT_THROW(pool.free(id), std::logic_error);
    } else if (taken[static_cast<std::size_t>(id)]) {
      pool.free(id);
      taken[static_cast<std::size_t>(id)] = false;
    } else {
      ASSERT_THROW(pool.free(id), std::logic_error);
    }
    pool.check_invariants();
    ASSERT_EQ(pool.in_use_count(), std::count(taken.begin(), taken.end(), true));
    ASSERT_EQ(pool.free_count() + pool.in_use_count(), kTotal);
    for (std::int32_t block = 0; block < kTotal; ++block)
      ASSERT_EQ(pool.in_use(block), taken[static_cast<std::size_t>(block)]);
  }
}

}  // namespace
}  // namespace kvcache
