/// @file
/// How a store with blocks works, as chosen on the command line. Chapter: step 3.
#pragma once

#include <cstdint>
#include <limits>

namespace kvcache {

/// How attention gets at K and V that lie in blocks: copied together first, or read where they lie. Both give
/// the same bits.
enum class AttentionPath : std::uint8_t { gather, paged };

/// What fresh blocks are filled with, to show that nothing reads a slot before it is written.
enum class DebugFill : std::uint8_t { none, nan, huge };

/// The number of a fill other than `none`. `huge` is near the largest of f16, 65,504: finite in all three
/// types, and so large that an attention which reads it gives something else altogether.
inline float number_of(DebugFill fill) {
  return fill == DebugFill::nan ? std::numeric_limits<float>::quiet_NaN() : 6e4F;
}

}  // namespace kvcache
