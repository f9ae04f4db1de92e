/// @file
/// What is made of repeated measurements: their median, how far apart they lie, and how they grow.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace kvcache {

/// The number in the middle, or the mean of the two; 0 of none.
double median(std::vector<double> numbers);

/// (largest - smallest) / median, in percent; 0 of fewer than two.
double spread_percent(std::span<const double> numbers);

/// (third quartile - first) / median, in percent; 0 of fewer than two. The quartiles are a quarter and three
/// quarters of the way from the smallest to the largest, in order, between two numbers if need be.
double quartile_distance_percent(std::vector<double> numbers);

/// A measurement of something of a size.
struct Point {
  double size = 0;   ///< > 0
  double value = 0;  ///< > 0
};

/// b of value = a * size^b: the slope of the straight line through the logarithms, by least squares.
/// @return nothing of fewer than two different sizes
std::optional<double> growth_exponent(std::span<const Point> points);

}  // namespace kvcache
