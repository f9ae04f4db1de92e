// How much of a new sequence is found: the walk along its blocks, in the pool and the host tier, and the
// hashes that it needs.
#include "step4_prefix_cache/prefix_finder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>

#include "step4_prefix_cache/block_hash.h"

namespace kvcache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Ids = std::vector<std::int32_t>;

/// A pool and a host tier with blocks of two tokens, and a finder.
struct Cache {
  SharedBlockPool pool{8, 2};
  HostTier host{4, 2};
  PrefixFinder finder() const { return {pool, host, 64}; }

  /// A block in use that holds `ids` after `parent`.
  std::int32_t publish(const BlockParent& parent, const Ids& ids) {
    const std::int32_t block = pool.allocate();
    pool.settle();
    pool.publish(block, finder().content_of(parent, ids), ids);
    return block;
  }
  /// A host block that holds `ids` after `parent`.
  std::int32_t store(const BlockParent& parent, const Ids& ids) {
    BlockContent content = finder().content_of(parent, ids);
    if (content.identity == 0) content.identity = pool.new_identity();
    const std::int32_t host_block = host.set_aside_oldest().value();
    PrefixIndex evicted(1, std::ssize(ids));
    evicted.insert(0, content, ids);
    host.store(std::array{BlockCopy{0, host_block}}, evicted);
    host.settle({});
    return host_block;
  }
  BlockParent host_parent(std::int32_t host_block) const {
    return {host.content(host_block).hash, host.content(host_block).identity};
  }
};

TEST(HashChain, GivesTheHashOfEachBlockInWhateverOrderTheyAreAskedFor) {
  const PrefixIndex index(1, 2);
  Ids ids;
  for (std::int32_t id = 0; id < 40; ++id) ids.push_back(id);
  std::vector<std::uint64_t> expected;
  for (std::int64_t n = 0; n < 20; ++n) {
    const std::optional<std::uint64_t> parent = n == 0 ? std::optional(salt_hash("x")) : expected.back();
    expected.push_back(block_hash(parent, tokens_of_block(ids, n, 2)));
  }
  HashChain hashes(index, ids, 20, {salt_hash("x"), 1}, 64);
  for (const std::int64_t n : {0, 1, 7, 3, 19, 18, 0})
    EXPECT_EQ(hashes[n], expected[static_cast<std::size_t>(n)]) << n;
}

TEST(HashChain, RefusesABlockThatTheSequenceHasNot) {
  const PrefixIndex index(1, 2);
  const Ids ids{1, 2, 3, 4, 5};
  HashChain hashes(index, ids, 2, {}, 64);
  for (const std::int64_t none : {-1, 2, 3}) {
    try {
      static_cast<void>(hashes[none]);
      ADD_FAILURE() << none;
    } catch (const std::logic_error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("block " + std::to_string(none)));
    }
  }
}

TEST(PrefixFinder, GoesFromThePoolToTheHostTierAndEndsAtTheFirstBlockThatIsNowhere) {
  Cache cache;
  const std::int32_t first = cache.publish({}, {1, 2});
  const std::int32_t second = cache.store(cache.pool.index().as_parent(first), {3, 4});
  cache.publish(cache.host_parent(second), {7, 8});
  const PrefixHits hits = cache.finder().find(Ids{1, 2, 3, 4, 5, 6, 9}, kNoSalt);
  EXPECT_THAT(hits.blocks, ElementsAre(first));
  EXPECT_THAT(hits.host_blocks, ElementsAre(second));
  EXPECT_EQ(hits.tokens, 4);
}

TEST(PrefixFinder, TakesNothingFromThePoolBehindAHostBlock) {
  // The table is filled from the front: first blocks of the pool, then blocks from the host tier.
  Cache cache;
  const std::int32_t first = cache.store({}, {1, 2});
  cache.publish(cache.host_parent(first), {3, 4});
  const PrefixHits hits = cache.finder().find(Ids{1, 2, 3, 4, 5}, kNoSalt);
  EXPECT_THAT(hits.blocks, IsEmpty());
  EXPECT_THAT(hits.host_blocks, ElementsAre(first));
  EXPECT_EQ(hits.tokens, 2);
}

TEST(PrefixFinder, NeverFindsTheLastToken) {
  Cache cache;
  cache.publish({}, {1, 2});
  EXPECT_EQ(cache.finder().find(Ids{1, 2}, kNoSalt).tokens, 0);
  EXPECT_EQ(cache.finder().find(Ids{1, 2, 3}, kNoSalt).tokens, 2);
  EXPECT_EQ(cache.finder().find(Ids{}, kNoSalt).tokens, 0);
}

TEST(PrefixFinder, OfEqualBlocksTakesOneInUseWhicheverWasPublishedFirst) {
  for (const int in_use : {0, 1, 2}) {
    Cache cache;
    Ids twins;
    for (int n = 0; n < 3; ++n) twins.push_back(cache.publish({}, {1, 2}));
    for (int n = 0; n < 3; ++n) {
      if (n != in_use) cache.pool.release(Ids{twins[static_cast<std::size_t>(n)]});
    }
    const std::int32_t used = twins[static_cast<std::size_t>(in_use)];
    EXPECT_THAT(cache.finder().find(Ids{1, 2, 3}, kNoSalt).blocks, ElementsAre(used));
  }
}

TEST(PrefixFinder, EqualContentsHaveOneIdentityWhereverTheyAre) {
  Cache cache;
  const std::int32_t block = cache.publish({}, {1, 2}), host_block = cache.store({}, {3, 4});
  EXPECT_EQ(cache.finder().content_of({}, Ids{1, 2}).identity, cache.pool.index().content(block).identity);
  EXPECT_EQ(cache.finder().content_of({}, Ids{3, 4}).identity, cache.host.content(host_block).identity);
  EXPECT_EQ(cache.finder().content_of({}, Ids{5, 6}).identity, 0U) << "nothing holds it";
  EXPECT_EQ(cache.finder().content_of({1, 9}, Ids{1, 2}).identity, 0U) << "after something else";
}

}  // namespace
}  // namespace kvcache
