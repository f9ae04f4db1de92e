/// @file
/// See verdict.h.
#include "docs/numbers/verdict.h"
#include "common/cli/print.h"

#include <algorithm>
#include <cmath>

#include "docs/numbers/formulas.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

/// Room for what a decimal fraction loses in binary.
constexpr double kSlack = 1e-9;

bool rounds_to(double printed, double last_digit, double value) {
  return std::abs(value - printed) <= last_digit / 2 + kSlack;
}
bool is_cut_off_to(double printed, double last_digit, double value) {
  return value >= printed - kSlack && value < printed + last_digit - kSlack;
}

std::string wrong_by(double printed, double value) {
  const double ratio = std::max(printed, value) / std::min(printed, value);
  if (ratio >= 1.5)
    return fmt::format("**wrong**: {:.1f} times too {}", ratio, printed > value ? "much" : "little");
  return fmt::format("**wrong** by {:+.1f}%", 100 * (printed / value - 1));
}

/// 9,371,648 in MB: "9.37".
std::string digits(double number) {
  if (number >= 1000) return grouped(std::llround(number));
  return fmt::format("{:.{}f}", number, number >= 10 ? 1 : number >= 1 ? 2 : 3);
}

int power_of(char prefix) {
  return prefix == 'k' ? 1 : prefix == 'M' ? 2 : 3;
}
char binary_prefix(char prefix) {
  return prefix == 'k' ? 'K' : prefix;
}

}  // namespace

std::string verdict(const PrintedSize& printed, std::int64_t bytes) {
  const auto exact = static_cast<double>(bytes);
  const int power = power_of(printed.prefix);
  const double decimal = exact / std::pow(1000, power), binary = exact / std::pow(1024, power);
  if (rounds_to(printed.number, printed.last_digit, decimal)) return "holds";
  if (rounds_to(printed.number, printed.last_digit, binary))
    return fmt::format("holds as {}iB", binary_prefix(printed.prefix));
  std::string text = wrong_by(printed.number, decimal);
  const double mixed = exact / kKiB / std::pow(1000, power - 1);
  if (is_cut_off_to(printed.number, printed.last_digit, mixed))
    text += fmt::format(" ({} KiB, divided by 1,000)", grouped(std::llround(exact / kKiB)));
  return text;
}

std::string verdict(double printed, double last_digit, double value) {
  if (rounds_to(printed, last_digit, value)) return "holds";
  if (is_cut_off_to(printed, last_digit, value)) return "holds, cut off";
  return wrong_by(printed, value);
}

std::string size(std::int64_t bytes, char prefix) {
  const auto exact = static_cast<double>(bytes);
  const int power = power_of(prefix);
  return fmt::format("{} {}B = {} {}iB", digits(exact / std::pow(1000, power)), prefix,
                     digits(exact / std::pow(1024, power)), binary_prefix(prefix));
}

std::string percent(double share) {
  return fmt::format("{:.1f}%", 100 * share);
}

}  // namespace kvcache
