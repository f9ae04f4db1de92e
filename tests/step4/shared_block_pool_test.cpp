// The states of a block that sequences can share, every change between them, and what the pool refuses.
#include "step4_prefix_cache/shared_block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <stdexcept>
#include <string>

namespace kvcache {
namespace {

using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

/// Blocks of one token; a content's hash follows from it.
BlockContent content_of(std::int32_t id) {
  return {static_cast<std::uint64_t>(id) * 100, 0, 0};
}
/// A block in use, after its plan was committed.
std::int32_t taken(SharedBlockPool& pool) {
  const std::int32_t block = pool.allocate();
  pool.settle();
  return block;
}
/// A block in use that is full and findable.
std::int32_t published(SharedBlockPool& pool, std::int32_t id) {
  const std::int32_t block = taken(pool);
  pool.publish(block, content_of(id), Ids{id});
  return block;
}
void release(SharedBlockPool& pool, std::int32_t block) {
  pool.release(Ids{block});
}

/// The message with which `change` is refused; "" if it is not.
std::string refusal(const std::function<void()>& change) {
  try {
    change();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

TEST(SharedBlockPool, ABlockGoesThroughAllItsStates) {
  SharedBlockPool pool(3, 1);
  EXPECT_EQ(pool.free_count(), 3);
  const std::int32_t block = published(pool, 7);
  EXPECT_TRUE(pool.in_use(block));
  EXPECT_EQ(pool.in_use_count(), 1);
  release(pool, block);
  EXPECT_FALSE(pool.in_use(block));
  EXPECT_EQ(pool.cached_count(), 1);
  EXPECT_EQ(pool.index().find(700, 0, Ids{7}), block);
  pool.acquire(Ids{block});
  pool.settle();
  EXPECT_EQ(pool.cached_count(), 0);
  release(pool, block);
  for (int n = 0; n < 3; ++n) {
    EXPECT_TRUE(pool.evicted().empty()) << "a cached block goes last";
    static_cast<void>(pool.allocate());
  }
  EXPECT_EQ(pool.evicted(), Ids{block});
  EXPECT_TRUE(pool.index().contains(block)) << "the host tier reads there what is evicted";
  pool.settle();
  EXPECT_FALSE(pool.index().contains(block));
  pool.check_invariants();
}

TEST(SharedBlockPool, FreeBlocksGoBeforeCachedOnesAndATailBeforeItsHead) {
  SharedBlockPool pool(5, 1);
  const std::int32_t head = published(pool, 1), middle = published(pool, 2), tail = taken(pool);
  pool.release(Ids{head, middle, tail});
  EXPECT_EQ(pool.free_in_order(), (Ids{tail, 3, 4, middle, head}));
  pool.check_invariants();
}

TEST(SharedBlockPool, ABlockStaysAsLongAsOneRefersToIt) {
  SharedBlockPool pool(2, 1);
  const std::int32_t block = taken(pool);
  pool.share(Ids{block});
  release(pool, block);
  EXPECT_TRUE(pool.in_use(block));
  release(pool, block);
  EXPECT_FALSE(pool.in_use(block));
  pool.check_invariants();
}

TEST(SharedBlockPool, UnsharingMovesOneReferenceToANewBlock) {
  SharedBlockPool pool(3, 1);
  const std::int32_t block = taken(pool);
  pool.share(Ids{block, block});
  const std::int32_t copy = pool.unshare(block);
  pool.settle();
  EXPECT_EQ(pool.reference_count(block), 2);
  EXPECT_EQ(pool.reference_count(copy), 1);
  pool.check_invariants();
}

TEST(SharedBlockPool, WhatIsForgottenIsFoundUntilItsLastUserGoesAndNotAfter) {
  SharedBlockPool pool(3, 1);
  const std::int32_t used = published(pool, 1), cached = published(pool, 2);
  release(pool, cached);
  pool.forget(used);
  pool.forget(cached);
  EXPECT_TRUE(pool.index().contains(used));
  EXPECT_FALSE(pool.index().contains(cached));
  EXPECT_EQ(pool.free_in_order().front(), cached) << "it holds nothing";
  pool.check_invariants();
  release(pool, used);
  EXPECT_FALSE(pool.index().contains(used));
  EXPECT_EQ(pool.cached_count(), 0);
  pool.check_invariants();
}

TEST(SharedBlockPool, AnIdentityIsNewOrTheOneThatIsSaid) {
  SharedBlockPool pool(3, 1);
  const std::int32_t first = published(pool, 1), second = published(pool, 2), twin = taken(pool);
  const std::uint64_t identity = pool.index().content(first).identity;
  pool.publish(twin, {100, identity, 0}, Ids{1});
  EXPECT_NE(identity, 0U);
  EXPECT_NE(pool.index().content(second).identity, identity);
  EXPECT_EQ(pool.index().content(twin).identity, identity);
  EXPECT_NE(pool.new_identity(), pool.index().content(second).identity);
}

TEST(SharedBlockPool, UndoingAPlanRestoresReferencesAndTheOrderOfTheQueue) {
  constexpr std::uint32_t seed = 5;
  std::mt19937 random(seed);
  SharedBlockPool pool(20, 1);
  for (std::int32_t id = 0; id < 12; ++id) published(pool, id);
  for (std::int32_t block = 3; block < 12; ++block) release(pool, block);
  pool.share(Ids{0, 1});
  for (int round = 0; round < 300; ++round) {
    const Ids order = pool.free_in_order(), references = pool.references();
    for (std::size_t steps = random() % 8; steps > 0; --steps) {
      const auto block = static_cast<std::int32_t>(random() % 12);
      if (random() % 3 == 0) {
        static_cast<void>(pool.allocate());
      } else if (pool.reference_count(block) > 1 && random() % 2 == 0) {
        static_cast<void>(pool.unshare(block));
      } else {
        pool.acquire(Ids{block});
      }
    }
    pool.undo();
    ASSERT_EQ(pool.free_in_order(), order) << "seed " << seed << ", round " << round;
    ASSERT_EQ(pool.references(), references) << "seed " << seed << ", round " << round;
    ASSERT_TRUE(pool.evicted().empty());
    ASSERT_EQ(pool.index().size(), 12);
    pool.check_invariants();
    if (const auto moved = static_cast<std::int32_t>(3 + random() % 9); !pool.in_use(moved)) {
      pool.acquire(Ids{moved});
      pool.settle();
      release(pool, moved);
    }
  }
}

// ---- What it refuses, naming the block ----

TEST(SharedBlockPool, RefusesToAllocateMoreThanThereIs) {
  SharedBlockPool pool(1, 1);
  taken(pool);
  EXPECT_THROW(static_cast<void>(pool.allocate()), std::logic_error);
  SharedBlockPool none(0, 1);
  EXPECT_THROW(static_cast<void>(none.allocate()), std::logic_error);
}

TEST(SharedBlockPool, RefusesToAcquireWhereNothingIsFound) {
  SharedBlockPool pool(4, 1);
  EXPECT_THAT(refusal([&] { pool.acquire(Ids{2}); }), HasSubstr("block 2"));
  for (const std::int32_t none : {-1, 4, 1 << 30})
    EXPECT_THAT(refusal([&] { pool.acquire(Ids{none}); }), HasSubstr("block " + std::to_string(none)));
  EXPECT_EQ(pool.free_count(), 4);
  pool.check_invariants();
}

TEST(SharedBlockPool, RefusesToReleaseOrShareOrPublishWhatNobodyUses) {
  SharedBlockPool pool(4, 1);
  const std::int32_t block = published(pool, 1);
  release(pool, block);
  for (const std::int32_t unused : {block, 2, -1, 4}) {
    const std::string name = "block " + std::to_string(unused);
    EXPECT_THAT(refusal([&] { release(pool, unused); }), HasSubstr(name)) << "a second free";
    EXPECT_THAT(refusal([&] { pool.share(Ids{unused}); }), HasSubstr(name));
    EXPECT_THAT(refusal([&] { pool.publish(unused, content_of(3), Ids{3}); }), HasSubstr(name));
  }
  pool.check_invariants();
}

TEST(SharedBlockPool, RefusesToUnshareWhatIsNotShared) {
  SharedBlockPool pool(4, 1);
  const std::int32_t alone = taken(pool);
  for (const std::int32_t block : {alone, 2, -1, 4}) {
    EXPECT_THAT(refusal([&] { static_cast<void>(pool.unshare(block)); }),
                HasSubstr("block " + std::to_string(block)));
  }
  pool.check_invariants();
}

TEST(SharedBlockPool, RefusesToPublishTwiceAndToForgetWhatIsNotFound) {
  SharedBlockPool pool(4, 1);
  const std::int32_t block = published(pool, 1), other = taken(pool);
  EXPECT_THAT(refusal([&] { pool.publish(block, content_of(2), Ids{2}); }), HasSubstr("block 0"));
  for (const std::int32_t not_found : {other, 3, -1, 4})
    EXPECT_THAT(refusal([&] { pool.forget(not_found); }), HasSubstr("block " + std::to_string(not_found)));
  pool.check_invariants();
}

TEST(SharedBlockPool, RefusesOtherChangesWhileAPlanIsOpen) {
  SharedBlockPool pool(4, 1);
  const std::int32_t found = published(pool, 1), used = taken(pool);
  static_cast<void>(pool.allocate());
  EXPECT_THAT(refusal([&] { release(pool, used); }), HasSubstr("block 1"));
  EXPECT_THAT(refusal([&] { pool.publish(used, content_of(2), Ids{2}); }), HasSubstr("block 1"));
  EXPECT_THAT(refusal([&] { pool.forget(found); }), HasSubstr("block 0"));
  EXPECT_THROW(pool.check_invariants(), std::logic_error);
  pool.undo();
  release(pool, used);
  pool.check_invariants();
}

}  // namespace
}  // namespace kvcache
