// Which slots of the host tier hold what, and which one is given up next.
#include "step4_prefix_cache/host_tier.h"

#include <gtest/gtest.h>

namespace kvcache {
namespace {

using Ids = std::vector<std::int32_t>;
using Slot = std::optional<std::int32_t>;

/// Blocks of one token; a content's hash and identity follow from it.
BlockContent content_of(std::int32_t id) {
  return {static_cast<std::uint64_t>(id) * 100, static_cast<std::uint64_t>(id), 0};
}
Slot find(const HostTier& host, std::int32_t id) {
  return host.find(content_of(id).hash, 0, Ids{id});
}
/// A whole plan that stores one block; the slot it got.
std::int32_t store(HostTier& host, std::int32_t id) {
  const std::int32_t slot = host.set_aside_oldest().value();
  host.store(slot, content_of(id), Ids{id});
  host.settle();
  host.check_invariants();
  return slot;
}

TEST(HostTier, EmptySlotsAreFilledBeforeAnythingIsGivenUp) {
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

TEST(HostTier, StoringTheSameAgainInItsSlotMakesItTheMostRecent) {
  HostTier host(2, 1);
  store(host, 1);
  store(host, 2);
  const std::int32_t slot = find(host, 1).value();
  EXPECT_TRUE(host.set_aside(slot));
  host.store(slot, content_of(1), Ids{1});
  host.settle();
  store(host, 3);
  EXPECT_TRUE(find(host, 1));
  EXPECT_FALSE(find(host, 2));
}

TEST(HostTier, ASlotThatIsReadFromIsNotHandedOut) {
  HostTier host(2, 1);
  const std::int32_t first = store(host, 1), second = store(host, 2);
  EXPECT_TRUE(host.set_aside(first));
  EXPECT_FALSE(host.set_aside(first)) << "it is already";
  EXPECT_EQ(host.set_aside_oldest(), Slot(second));
  EXPECT_EQ(host.set_aside_oldest(), std::nullopt) << "all are set aside";
}

TEST(HostTier, ARemovedSlotIsEmptyAndTheNextToBeFilled) {
  HostTier host(3, 1);
  store(host, 1);
  store(host, 2);
  const std::int32_t slot = find(host, 2).value();
  host.set_aside(slot);
  host.remove(slot);
  host.remove(slot);  // two sequences of one plan may bring back the same block
  host.settle();
  host.check_invariants();
  EXPECT_FALSE(find(host, 2));
  EXPECT_EQ(host.stored(), 1);
  EXPECT_EQ(store(host, 3), slot);
}

TEST(HostTier, PuttingBackRestoresTheOrderExactly) {
  HostTier host(3, 1);
  for (const std::int32_t id : {1, 2, 3}) store(host, id);
  host.set_aside(find(host, 2).value());
  host.set_aside_oldest();
  host.set_aside_oldest();
  host.put_back();
  host.check_invariants();
  for (const std::int32_t id : {1, 2, 3}) {
    EXPECT_TRUE(find(host, id)) << "nothing was overwritten";
    EXPECT_EQ(host.set_aside_oldest(), find(host, id)) << "in the order of storing";
  }
}

TEST(HostTier, ATierOfNoSlotsTakesNothing) {
  HostTier host(0, 4);
  EXPECT_EQ(host.set_aside_oldest(), std::nullopt);
  EXPECT_EQ(host.stored(), 0);
}

}  // namespace
}  // namespace kvcache
