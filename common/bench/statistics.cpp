/// @file
/// See statistics.h.
#include "common/bench/statistics.h"

#include <algorithm>
#include <cmath>

namespace kvcache {

double median(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  std::ranges::sort(numbers);
  const std::size_t half = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2;
}

double spread_percent(std::span<const double> numbers) {
  if (numbers.size() < 2) return 0;
  const auto [smallest, largest] = std::ranges::minmax(numbers);
  const double middle = median({numbers.begin(), numbers.end()});
  return middle > 0 ? 100 * (largest - smallest) / middle : 0;
}

double quartile_distance_percent(std::vector<double> numbers) {
  if (numbers.size() < 2) return 0;
  std::ranges::sort(numbers);
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(numbers.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const double rest = place - static_cast<double>(below);
    return rest > 0 ? numbers[below] * (1 - rest) + numbers[below + 1] * rest : numbers[below];
  };
  const double middle = median(numbers);
  return middle > 0 ? 100 * (at(0.75) - at(0.25)) / middle : 0;
}

std::optional<double> growth_exponent(std::span<const Point> points) {
  if (points.empty()) return std::nullopt;
  const auto count = static_cast<double>(points.size());
  double mean_x = 0, mean_y = 0;
  for (const Point& point : points) {
    mean_x += std::log(point.size) / count;
    mean_y += std::log(point.value) / count;
  }
  double xy = 0, xx = 0;
  for (const Point& point : points) {
    const double x = std::log(point.size) - mean_x;
    xy += x * (std::log(point.value) - mean_y);
    xx += x * x;
  }
  if (xx < 1e-12) return std::nullopt;  // all sizes are the same
  return xy / xx;
}

}  // namespace kvcache
