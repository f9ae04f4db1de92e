/// @file
/// Reproducible numbers for tests, the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/stored_number.h"

namespace kvcache {

/// `count` numbers in about [-1, 1).
inline std::vector<float> random_numbers(std::size_t count, std::uint32_t seed) {
  std::vector<float> result(count);
  for (float& number : result) {
    seed = seed * 1664525U + 1013904223U;
    number = static_cast<float>(static_cast<std::int32_t>(seed)) * 0x1p-31F;
  }
  return result;
}

/// The bytes of the numbers in `dtype`.
inline std::vector<std::byte> stored(const std::vector<float>& numbers, DType dtype) {
  std::vector<std::byte> bytes(numbers.size() * static_cast<std::size_t>(size_of(dtype)));
  for (std::size_t n = 0; n < numbers.size(); ++n) {
    write_number(dtype, numbers[n], &bytes[n * static_cast<std::size_t>(size_of(dtype))]);
  }
  return bytes;
}

}  // namespace kvcache
