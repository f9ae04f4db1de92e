/// @file
/// The three number types of weights, activations and K/V. Sums are always float32.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvcache {

/// f16 is IEEE half precision, bf16 the upper half of a float32.
enum class DType : std::uint8_t { f32, f16, bf16 };

/// Bytes of one number.
constexpr std::int64_t size_of(DType dtype) {
  return dtype == DType::f32 ? 4 : 2;
}

/// "f32", "f16" or "bf16", as on the command line and in the report.
constexpr std::string_view name_of(DType dtype) {
  return dtype == DType::f32 ? "f32" : dtype == DType::f16 ? "f16" : "bf16";
}

}  // namespace kvcache
