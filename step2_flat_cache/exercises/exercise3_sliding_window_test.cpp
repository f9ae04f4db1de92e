// Exercise 3: after every pass the window holds the last positions, and they can be read in order.
#include "step2_flat_cache/exercises/exercise3_sliding_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kvcache {
namespace {

/// A reservation in which each slot holds the position written there last.
struct Window {
  explicit Window(std::int64_t size) : memory(static_cast<std::size_t>(size), -1) {}

  std::int64_t size() const { return static_cast<std::int64_t>(memory.size()); }

  void pass(std::int64_t rows) {
    const std::vector<std::int64_t> slots = window_slots(length, rows, size());
    ASSERT_EQ(slots.size(), static_cast<std::size_t>(rows));
    std::set<std::int64_t> written;
    for (const std::int64_t slot : slots) {
      if (slot != -1) {
        ASSERT_TRUE(slot >= 0 && slot < size()) << "slot " << slot << " in a window of " << size();
        ASSERT_TRUE(written.insert(slot).second) << "slot " << slot << " twice in one pass";
        memory[static_cast<std::size_t>(slot)] = length;
      }
      ++length;
    }
  }

  void expect_the_last_positions() const {
    const std::vector<std::int64_t> slots = window_in_order(length, size());
    ASSERT_EQ(slots.size(), static_cast<std::size_t>(std::min(length, size())));
    std::int64_t position = length - static_cast<std::int64_t>(slots.size());
    for (const std::int64_t slot : slots) {
      ASSERT_TRUE(slot >= 0 && slot < size()) << "slot " << slot << " in a window of " << size();
      EXPECT_EQ(memory[static_cast<std::size_t>(slot)], position++) << "in slot " << slot;
    }
  }

  std::vector<std::int64_t> memory;  // [window]
  std::int64_t length = 0;
};

TEST(Exercise3, SolvesTheExampleOfItsStatement) {
  Window window(4);
  ASSERT_NO_FATAL_FAILURE(window.pass(6));
  EXPECT_NO_FATAL_FAILURE(window.expect_the_last_positions());
  ASSERT_NO_FATAL_FAILURE(window.pass(1));
  EXPECT_NO_FATAL_FAILURE(window.expect_the_last_positions());
  const std::vector<std::int64_t> slots = window_slots(0, 6, 4);
  EXPECT_EQ(slots[0], -1);
  EXPECT_EQ(slots[1], -1);
  EXPECT_EQ(window_slots(6, 1, 4)[0], slots[2]) << "position 6 takes the place of position 2";
}

TEST(Exercise3, KeepsTheLastPositionsInOrder) {
  for (const std::int64_t size : {1, 3, 4, 7}) {
    for (const std::int64_t prompt : {1, 3, 4, 5, 7, 20}) {
      SCOPED_TRACE(testing::Message() << "window of " << size << ", prompt of " << prompt);
      Window window(size);
      for (const std::int64_t rows : std::vector<std::int64_t>{prompt, 1, 1, 2, 1, 9, 1}) {
        ASSERT_NO_FATAL_FAILURE(window.pass(rows));
        ASSERT_NO_FATAL_FAILURE(window.expect_the_last_positions());
      }
    }
  }
}

TEST(Exercise3, ReadsNothingBeforeAnythingIsStored) {
  EXPECT_TRUE(window_in_order(0, 4).empty());
}

}  // namespace
}  // namespace kvcache
