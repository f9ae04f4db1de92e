/// @file
/// Whether a figure of an article holds, and how figures are written. MB is 10^6 bytes and MiB 2^20; an
/// article that writes MB may mean either, and some mean neither.
#pragma once

#include <cstdint>
#include <string>

namespace kvcache {

/// A number with a unit of memory as an article prints it: "88 MB" is {88, 1, 'M'}, "9.1 MB" is {9.1, 0.1,
/// 'M'}.
struct PrintedSize {
  double number = 0;      ///< in units of the prefix
  double last_digit = 1;  ///< what its last printed digit is worth
  char prefix = 'M';      ///< k, M or G
};

/// "holds", "holds as MiB", or wrong and by how much. KiB divided by 1,000 (44 KiB x 2,000 = "88 MB") is
/// recognised.
std::string verdict(const PrintedSize& printed, std::int64_t bytes);
/// "holds" if `printed` is `value` rounded or cut off to its last digit, else wrong and by how much.
std::string verdict(double printed, double last_digit, double value);

/// "117.4 MB = 112.0 MiB" with the prefix k, M or G.
std::string size(std::int64_t bytes, char prefix);
/// 0.4512 is "45.1%".
std::string percent(double share);

}  // namespace kvcache
