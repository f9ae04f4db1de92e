/// @file
/// Statistics of repeated measurements: their median, how far apart they lie, and how they grow with a size.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace kvcache {

/// The number in the middle, or the mean of the two in the middle; 0 for no numbers.
double median(std::vector<double> numbers);

/// (largest - smallest) / median, in percent; 0 for fewer than two numbers.
double spread_percent(std::span<const double> numbers);

/// (third quartile - first quartile) / median, in percent; 0 for fewer than two numbers. In the sorted
/// numbers the quartiles are at a quarter and three quarters of the way, interpolated between two numbers if
/// need be.
double quartile_distance_percent(std::vector<double> numbers);

/// One measurement at one size.
struct Point {
  double size = 0;   ///< > 0
  double value = 0;  ///< > 0
};

/// The b of value = a * size^b: the slope of the straight line through the logarithms, by least squares.
/// @return no value for fewer than two different sizes
std::optional<double> growth_exponent(std::span<const Point> points);

}  // namespace kvcache
