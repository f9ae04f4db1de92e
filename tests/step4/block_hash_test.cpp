// The hash of a full block. The values come from the xxhash package of Python, fed with bytes packed by
// struct ("<Q" for a parent, "<i" for an id).
#include "step4_prefix_cache/block_hash.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <set>
#include <vector>

namespace kvcache {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(BlockHash, AFirstBlockHashesItsIdsAlone) {
  EXPECT_EQ(block_hash({}, Ids{1, 2, 3, 4}), 0x27f0147e6ec514a6U);
  EXPECT_EQ(block_hash({}, Ids{7}), 0xb7ca480e9b960d0eU);
}

TEST(BlockHash, ALaterBlockHashesItsParentsHashAndThenItsIds) {
  const std::uint64_t second = block_hash(0x27f0147e6ec514a6U, Ids{5, 6, 7, 8});
  EXPECT_EQ(second, 0xec11742426488122U);
  EXPECT_EQ(block_hash(second, Ids{9, 10, 11, 12}), 0x9f97608cb199af06U);
}

TEST(BlockHash, ASaltStandsWhereTheParentWould) {
  EXPECT_EQ(salt_hash("tenant-a"), 0x24cbcbec76c2694aU);
  EXPECT_EQ(salt_hash("x"), 0x5c80c09683041123U);
  EXPECT_EQ(salt_hash("Märchen"), 0x7a3b7bb6f42f022eU);
  EXPECT_EQ(block_hash(salt_hash("tenant-a"), Ids{1, 2, 3, 4}), 0x1612da8bc2ec43daU);
}

TEST(BlockHash, AParentOfZeroIsNotNoParent) {
  EXPECT_EQ(block_hash(0, Ids{1, 2, 3, 4}), 0x8752c74bc787fd40U);
  EXPECT_NE(block_hash(0, Ids{1, 2, 3, 4}), block_hash({}, Ids{1, 2, 3, 4}));
}

TEST(BlockHash, AllBytesOfParentAndIdsCount) {
  constexpr std::int32_t largest_id = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(block_hash(std::numeric_limits<std::uint64_t>::max(), Ids{largest_id, 0}), 0x7419a1bc820a2555U);
  // Ids that differ in their high bytes alone, and in their order alone.
  EXPECT_EQ(block_hash({}, Ids{257, 258, 259, 260}), 0xc3bd78f3e96293a4U);
  EXPECT_EQ(block_hash({}, Ids{65537, 65538, 65539, 65540}), 0x9daa20651c63ab8bU);
  std::set<std::uint64_t> different;
  for (const Ids& ids : {Ids{1, 2, 3, 4}, Ids{257, 258, 259, 260}, Ids{65537, 65538, 65539, 65540},
                         Ids{2, 1, 3, 4}, Ids{1, 2, 4, 3}, Ids{1, 2, 3}, Ids{1, 2, 3, 4, 0}})
    different.insert(block_hash({}, ids));
  EXPECT_EQ(different.size(), 7U);
}

TEST(BlockHash, BlocksOfAnySizeAreHashedWhole) {
  Ids seventeen(17);
  std::iota(seventeen.begin(), seventeen.end(), 100);
  EXPECT_EQ(block_hash({}, seventeen), 0x2e592ad3c8963897U);
  Ids many;
  for (std::int32_t n = 0; n < 256; ++n) many.push_back(n * 7919 % 151669);
  EXPECT_EQ(block_hash({}, many), 0xae69ce10527587b0U);
  for (const std::size_t changed : {0U, 100U, 255U}) {
    Ids other = many;
    other[changed] ^= 1;
    EXPECT_NE(block_hash({}, other), block_hash({}, many)) << changed;
  }
}

}  // namespace
}  // namespace kvcache
