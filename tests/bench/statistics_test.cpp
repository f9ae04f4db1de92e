// The statistics of ./steps bench, on numbers whose answers are known.
#include "common/bench/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvcache {
namespace {

TEST(Median, IsTheNumberInTheMiddleWhateverTheOrder) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({9, 1, 1, 1, 9}), 1);
  EXPECT_EQ(median({5}), 5);
}

TEST(Median, OfAnEvenCountIsTheMeanOfTheTwoInTheMiddle) {
  EXPECT_EQ(median({4, 1, 3, 100}), 3.5);
  EXPECT_EQ(median({}), 0);
}

TEST(Spread, IsTheDistanceOfTheExtremesInPercentOfTheMedian) {
  EXPECT_EQ(spread_percent(std::vector<double>{8, 10, 13}), 50);
  EXPECT_EQ(spread_percent(std::vector<double>{7, 7, 7}), 0);
  EXPECT_EQ(spread_percent(std::vector<double>{7}), 0) << "one run says nothing of its neighbours";
  EXPECT_EQ(spread_percent(std::vector<double>{}), 0);
}

TEST(QuartileDistance, IsThatOfTheMiddleHalfInPercentOfTheMedian) {
  EXPECT_EQ(quartile_distance_percent({1000, 10, 8, 9, 11}), 20) << "the quartiles are 9 and 11 of 8 to 1000";
  EXPECT_EQ(quartile_distance_percent({1, 2, 3, 4}), 60) << "1.75 and 3.25 around 2.5";
  EXPECT_EQ(quartile_distance_percent({7}), 0);
  EXPECT_EQ(quartile_distance_percent({}), 0);
}

TEST(GrowthExponent, IsThatOfAPowerOfTheSize) {
  for (const double exponent : {-0.5, 0.0, 0.37, 1.0, 2.0}) {
    std::vector<Point> points;
    for (const double size : {64.0, 100.0, 512.0, 2048.0})
      points.push_back({size, 3.5 * std::pow(size, exponent)});
    EXPECT_NEAR(growth_exponent(points).value(), exponent, 1e-12);
  }
}

TEST(GrowthExponent, IsTheSlopeThatLeavesTheSmallestSquares) {
  // Logarithms (0, 0), (1, 0), (2, 3): the slope is 1.5, as worked out by hand.
  const double e = std::exp(1.0);
  const std::vector<Point> points{{1, 1}, {e, 1}, {e * e, e * e * e}};
  EXPECT_NEAR(growth_exponent(points).value(), 1.5, 1e-12);
}

TEST(GrowthExponent, NeedsTwoSizes) {
  EXPECT_FALSE(growth_exponent(std::vector<Point>{}));
  EXPECT_FALSE(growth_exponent(std::vector<Point>{{5, 1}}));
  EXPECT_FALSE(growth_exponent(std::vector<Point>{{5, 1}, {5, 2}}));
}

}  // namespace
}  // namespace kvcache
