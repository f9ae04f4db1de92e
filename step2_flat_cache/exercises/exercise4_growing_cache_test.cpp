// Exercise 4: rows survive growing, and growing moves few of them.
#include "step2_flat_cache/exercises/exercise4_growing_cache.h"

#include <gtest/gtest.h>

#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

constexpr std::size_t layers = 3, row_width = 5, positions = 1000;

/// [layers, row_width] for one position.
std::vector<float> rows_at(std::size_t position) {
  return random_numbers(layers * row_width, static_cast<std::uint32_t>(position + 1));
}

void expect_rows(const GrowingCache& cache) {
  for (std::size_t position = 0; position < cache.length(); ++position) {
    const std::vector<float> rows = rows_at(position);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::span<const float> row = cache.row(layer, position);
      ASSERT_TRUE(
          std::equal(row.begin(), row.end(), rows.begin() + static_cast<std::ptrdiff_t>(layer * row_width)))
          << "layer " << layer << ", position " << position << " of " << cache.length();
    }
  }
}

TEST(Exercise4, SolvesTheExampleOfItsStatement) {
  GrowingCache cache(2, 1);
  for (const std::vector<float>& rows : {std::vector<float>{1, 2}, {3, 4}}) cache.append(rows);
  EXPECT_EQ(cache.row(0, 0)[0], 1);
  EXPECT_EQ(cache.row(1, 0)[0], 2);
  EXPECT_EQ(cache.row(0, 1)[0], 3);
  EXPECT_EQ(cache.row(1, 1)[0], 4);
}

TEST(Exercise4, KeepsEveryRowOfEveryLayer) {
  GrowingCache cache(layers, row_width);
  for (std::size_t position = 0; position < positions; ++position) {
    cache.append(rows_at(position));
    if (position > 20 && position + 1 < positions) continue;  // every row each time would take long
    ASSERT_NO_FATAL_FAILURE(expect_rows(cache));
  }
}

TEST(Exercise4, MovesAtMostTwoRowsForEachThatIsStoredAndLeavesAtMostHalfEmpty) {
  GrowingCache cache(layers, row_width);
  std::size_t capacity = 0, moved = 0;
  for (std::size_t position = 0; position < positions; ++position) {
    const std::size_t stored = layers * cache.length();
    cache.append(rows_at(position));
    if (cache.capacity() != capacity) moved += stored;
    capacity = cache.capacity();
    ASSERT_GE(capacity, cache.length());
    ASSERT_LE(capacity, 2 * cache.length());
    ASSERT_LE(moved, 2 * layers * cache.length());
    ASSERT_EQ(cache.rows_moved(), moved) << "each change of capacity moves all rows that are stored";
  }
}

}  // namespace
}  // namespace kvcache
