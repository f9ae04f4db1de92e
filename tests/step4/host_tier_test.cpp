// The host tier: which host block holds what, and which one is given up next.
#include "step4_prefix_cache/host_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <stdexcept>
#include <string>

namespace kvcache {
namespace {

using Ids = std::vector<std::int32_t>;
using HostBlock = std::optional<std::int32_t>;

/// Blocks of one token; a content's hash and identity follow from it.
BlockContent content_of(std::int32_t id) {
  return {static_cast<std::uint64_t>(id) * 100, static_cast<std::uint64_t>(id), 0};
}
HostBlock find(const HostTier& host, std::int32_t id) {
  return host.find(content_of(id).hash, 0, Ids{id});
}
/// Stores a block in `host_block`, as the plan that has set it aside.
void store_in(HostTier& host, std::int32_t host_block, std::int32_t id) {
  PrefixIndex evicted(1, 1);
  evicted.insert(0, content_of(id), Ids{id});
  host.store(std::array{BlockCopy{0, host_block}}, evicted);
}
/// Runs a whole plan that stores one block. Returns its host block.
std::int32_t store(HostTier& host, std::int32_t id) {
  const std::int32_t host_block = host.set_aside_oldest().value();
  store_in(host, host_block, id);
  host.settle({});
  host.check_invariants();
  return host_block;
}

TEST(HostTier, EmptyHostBlocksAreFilledBeforeAnythingIsGivenUp) {
  HostTier host(3, 1);
  for (const std::int32_t id : {1, 2, 3}) store(host, id);
  EXPECT_EQ(host.stored(), 3);
  for (const std::int32_t id : {1, 2, 3}) EXPECT_TRUE(find(host, id)) << id;
}

TEST(HostTier, TheLeastRecentlyStoredIsGivenUpFirst) {
  HostTier host(2, 1);
  const std::int32_t first = store(host, 1);
  store(host, 2);
  EXPECT_EQ(store(host, 3), first);
  EXPECT_FALSE(find(host, 1));
  EXPECT_TRUE(find(host, 2));
  EXPECT_EQ(host.stored(), 2);
}

TEST(HostTier, StoringTheSameAgainInItsHostBlockMakesItTheMostRecent) {
  HostTier host(2, 1);
  store(host, 1);
  store(host, 2);
  const std::int32_t host_block = find(host, 1).value();
  EXPECT_TRUE(host.set_aside(host_block));
  store_in(host, host_block, 1);
  host.settle({});
  store(host, 3);
  EXPECT_TRUE(find(host, 1));
  EXPECT_FALSE(find(host, 2));
}

TEST(HostTier, AHostBlockThatIsReadFromIsNotHandedOut) {
  HostTier host(2, 1);
  const std::int32_t first = store(host, 1), second = store(host, 2);
  EXPECT_TRUE(host.set_aside(first));
  EXPECT_FALSE(host.set_aside(first)) << "it is already";
  EXPECT_EQ(host.set_aside_oldest(), HostBlock(second));
  EXPECT_EQ(host.set_aside_oldest(), std::nullopt) << "all are set aside";
}

TEST(HostTier, ARemovedHostBlockIsEmptyAndTheNextToBeFilled) {
  HostTier host(3, 1);
  store(host, 1);
  store(host, 2);
  const std::int32_t host_block = find(host, 2).value();
  host.set_aside(host_block);
  host.settle(
      std::array{BlockCopy{host_block, 0}, BlockCopy{host_block, 1}});  // by two sequences of one plan
  host.check_invariants();
  EXPECT_FALSE(find(host, 2));
  EXPECT_EQ(host.stored(), 1);
  EXPECT_EQ(store(host, 3), host_block);
}

TEST(HostTier, PuttingBackRestoresTheOrderExactly) {
  HostTier host(3, 1);
  for (const std::int32_t id : {1, 2, 3}) store(host, id);
  host.set_aside(find(host, 2).value());
  EXPECT_TRUE(host.set_aside_oldest());
  EXPECT_TRUE(host.set_aside_oldest());
  host.put_back();
  host.check_invariants();
  for (const std::int32_t id : {1, 2, 3}) {
    EXPECT_TRUE(find(host, id)) << "nothing was overwritten";
    EXPECT_EQ(host.set_aside_oldest(), find(host, id)) << "in the order of storing";
  }
}

TEST(HostTier, ATierOfNoHostBlocksTakesNothing) {
  HostTier host(0, 4);
  EXPECT_EQ(host.set_aside_oldest(), std::nullopt);
  EXPECT_EQ(host.stored(), 0);
}

// ---- The moves of a plan ----

/// A pool of `total` blocks. The first of them are findable as 1, 2, ..., and no sequence uses them.
SharedBlockPool pool_with_cached(std::int64_t total, std::int32_t cached) {
  SharedBlockPool pool(total, 1);
  for (std::int32_t n = 0; n < cached; ++n) static_cast<void>(pool.allocate());
  pool.settle();
  for (std::int32_t block = 0; block < cached; ++block) {
    pool.publish(block, content_of(block + 1), Ids{block + 1});
    pool.release(Ids{block});
  }
  return pool;
}

TEST(HostTierMoves, WhatWasUsedLastIsKeptAndStoredLast) {
  SharedBlockPool pool = pool_with_cached(3, 3);
  HostTier host(2, 1);
  for (int n = 0; n < 3; ++n) static_cast<void>(pool.allocate());
  const std::vector<BlockCopy> moves = host.swap_out(pool);
  ASSERT_EQ(moves.size(), 2U);
  EXPECT_EQ(moves[0].from, 1);
  EXPECT_EQ(moves[1].from, 2);
  host.store(moves, pool.index());
  host.settle({});
  host.check_invariants();
  EXPECT_FALSE(find(host, 1)) << "there was no room";
  EXPECT_TRUE(find(host, 2) && find(host, 3));
  store(host, 9);
  EXPECT_FALSE(find(host, 2)) << "it was used before 3";
}

TEST(HostTierMoves, NothingGoesWhereThePlanReads) {
  SharedBlockPool pool = pool_with_cached(1, 1);
  HostTier host(1, 1);
  EXPECT_TRUE(host.set_aside(store(host, 7)));
  static_cast<void>(pool.allocate());
  EXPECT_TRUE(host.swap_out(pool).empty());
  host.put_back();
  EXPECT_TRUE(find(host, 7));
  host.check_invariants();
}

TEST(HostTierMoves, WhatIsForgottenIsTheNextPlaceToBeFilled) {
  HostTier host(3, 1);
  for (const std::int32_t id : {1, 2}) store(host, id);
  const std::int32_t gone = find(host, 2).value();
  host.forget(gone);
  host.check_invariants();
  EXPECT_FALSE(find(host, 2));
  EXPECT_EQ(store(host, 3), gone);
}

TEST(HostTier, RefusesToChangeAHostBlockThatIsNotSetAside) {
  HostTier host(2, 1);
  const std::int32_t host_block = store(host, 1);
  for (const auto& change :
       {std::function<void()>([&] { store_in(host, host_block, 2); }), std::function<void()>([&] {
          host.settle(std::array{BlockCopy{host_block, 0}});
        })}) {
    try {
      change();
      ADD_FAILURE();
    } catch (const std::logic_error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("host block " + std::to_string(host_block)));
    }
  }
  EXPECT_TRUE(find(host, 1));
  host.check_invariants();
}

}  // namespace
}  // namespace kvcache
