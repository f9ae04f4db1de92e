/// @file
/// Reading, writing and rounding numbers of the three types (dtype.h) on the CPU.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/base/dtype.h"

namespace kvcache {

/// Reads the number at `bytes`, which need not be aligned; exact for all three types.
[[nodiscard]] inline float read_number(DType dtype, const std::byte* bytes) {
  if (dtype == DType::f32) {
    float value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return dtype == DType::f16 ? static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits))
                             : static_cast<float>(Eigen::numext::bit_cast<Eigen::bfloat16>(bits));
}

/// Writes `value` at `bytes` (need not be aligned), rounded to nearest, ties to even. NaN stays NaN; a value
/// beyond float16's 65,504 becomes infinite there.
inline void write_number(DType dtype, float value, std::byte* bytes) {
  if (dtype == DType::f32) {
    std::memcpy(bytes, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = dtype == DType::f16
                                 ? Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(value))
                                 : Eigen::numext::bit_cast<std::uint16_t>(Eigen::bfloat16(value));
  std::memcpy(bytes, &bits, sizeof bits);
}

/// `value` as it reads back after it was stored in `dtype`.
[[nodiscard]] inline float round_to(DType dtype, float value) {
  std::byte bytes[4];
  write_number(dtype, value, bytes);
  return read_number(dtype, bytes);
}

}  // namespace kvcache
