// Finding blocks by their content: several blocks of one hash, and hashes that collide.
#include "step4_prefix_cache/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace kvcache {
namespace {

using Ids = std::vector<std::int32_t>;
using Found = std::optional<std::int32_t>;

constexpr std::uint64_t kHash = 42;

TEST(PrefixIndex, ABlockIsFoundByHashParentAndTokens) {
  PrefixIndex index(4, 2);
  index.insert(3, {kHash, 1, 0}, Ids{5, 6});
  EXPECT_EQ(index.find(kHash, 0, Ids{5, 6}), Found(3));
  EXPECT_TRUE(index.contains(3));
  EXPECT_FALSE(index.contains(0));
  EXPECT_EQ(index.size(), 1);
}

TEST(PrefixIndex, AnEqualHashIsNoHitWhenTheTokensDiffer) {
  PrefixIndex index(4, 2);
  index.insert(0, {kHash, 1, 0}, Ids{5, 6});
  EXPECT_EQ(index.find(kHash, 0, Ids{6, 5}), std::nullopt);
  EXPECT_EQ(index.find(kHash, 0, Ids{5, 7}), std::nullopt);
  EXPECT_EQ(index.find(kHash, 0, Ids{4, 6}), std::nullopt);
}

TEST(PrefixIndex, AnEqualHashIsNoHitWhenTheParentDiffers) {
  PrefixIndex index(4, 2);
  index.insert(0, {kHash, 7, 1}, Ids{5, 6});
  EXPECT_EQ(index.find(kHash, 2, Ids{5, 6}), std::nullopt);
  EXPECT_EQ(index.find(kHash, 0, Ids{5, 6}), std::nullopt);
  EXPECT_EQ(index.find(kHash, 1, Ids{5, 6}), Found(0));
}

TEST(PrefixIndex, BlocksWhoseHashesCollideAreEachFound) {
  PrefixIndex index(4, 2);
  index.insert(0, {kHash, 1, 0}, Ids{5, 6});
  index.insert(1, {kHash, 2, 0}, Ids{7, 8});
  index.insert(2, {kHash, 3, 1}, Ids{5, 6});
  EXPECT_EQ(index.find(kHash, 0, Ids{5, 6}), Found(0));
  EXPECT_EQ(index.find(kHash, 0, Ids{7, 8}), Found(1));
  EXPECT_EQ(index.find(kHash, 1, Ids{5, 6}), Found(2));
}

TEST(PrefixIndex, AllEqualBlocksAreReachedFromTheOneThatIsFoundAndNoOther) {
  PrefixIndex index(5, 2);
  index.insert(0, {kHash, 1, 0}, Ids{5, 6});
  index.insert(1, {kHash, 2, 0}, Ids{7, 8});  // in the same bucket
  index.insert(3, {kHash, 1, 0}, Ids{5, 6});
  index.insert(4, {kHash, 1, 0}, Ids{5, 6});
  Ids twins;
  for (Found twin = index.find(kHash, 0, Ids{5, 6}); twin; twin = index.next_twin(*twin))
    twins.push_back(*twin);
  std::ranges::sort(twins);
  EXPECT_EQ(twins, (Ids{0, 3, 4}));
}

TEST(PrefixIndex, ErasingOneOfTwoEqualBlocksLeavesTheOther) {
  for (const std::int32_t erased : {0, 2}) {
    PrefixIndex index(4, 2);
    index.insert(0, {kHash, 1, 0}, Ids{5, 6});
    index.insert(2, {kHash, 1, 0}, Ids{5, 6});
    index.erase(erased);
    EXPECT_EQ(index.find(kHash, 0, Ids{5, 6}), Found(2 - erased));
    EXPECT_FALSE(index.contains(erased));
    EXPECT_EQ(index.size(), 1);
  }
}

TEST(PrefixIndex, AnErasedBlockIsNotFoundByWhatItHeld) {
  PrefixIndex index(4, 2);
  index.insert(0, {kHash, 1, 0}, Ids{5, 6});
  index.erase(0);
  EXPECT_EQ(index.find(kHash, 0, Ids{5, 6}), std::nullopt);
  index.insert(0, {43, 2, 0}, Ids{7, 8});
  EXPECT_EQ(index.find(kHash, 0, Ids{5, 6}), std::nullopt);
  EXPECT_EQ(index.find(43, 0, Ids{7, 8}), Found(0));
}

TEST(PrefixIndex, RefusesToEraseWhatIsNotFindable) {
  PrefixIndex index(4, 2);
  index.insert(1, {kHash, 1, 0}, Ids{5, 6});
  for (const std::int32_t absent : {0, 3, -1, 4})
    EXPECT_THROW(index.erase(absent), std::logic_error) << absent;
  EXPECT_EQ(index.find(kHash, 0, Ids{5, 6}), Found(1));
  EXPECT_EQ(index.size(), 1);
  index.erase(1);
  EXPECT_THROW(index.erase(1), std::logic_error);
  EXPECT_EQ(index.size(), 0);
}

TEST(PrefixIndex, RefusesToMakeABlockFindableTwice) {
  PrefixIndex index(4, 2);
  index.insert(1, {kHash, 1, 0}, Ids{5, 6});
  EXPECT_THROW(index.insert(1, {kHash, 2, 0}, Ids{7, 8}), std::logic_error);
  EXPECT_THROW(index.insert(4, {kHash, 2, 0}, Ids{7, 8}), std::logic_error);
  EXPECT_THROW(index.insert(-1, {kHash, 2, 0}, Ids{7, 8}), std::logic_error);
  EXPECT_EQ(index.find(kHash, 0, Ids{7, 8}), std::nullopt);  // would not end if the list were a ring
  EXPECT_EQ(index.find(kHash, 0, Ids{5, 6}), Found(1));
  EXPECT_EQ(index.size(), 1);
}

TEST(PrefixIndex, AChainWithoutItsFirstBlockIsNotEntered) {
  PrefixIndex index(4, 2);
  index.insert(0, {41, 1, 0}, Ids{1, 2});
  index.insert(1, {42, 2, 1}, Ids{3, 4});
  index.erase(0);
  EXPECT_EQ(index.find(41, 0, Ids{1, 2}), std::nullopt);
  EXPECT_EQ(index.find(42, 0, Ids{3, 4}), std::nullopt) << "its parent is not nobody";
}

}  // namespace
}  // namespace kvcache
