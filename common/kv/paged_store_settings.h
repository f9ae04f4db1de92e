/// @file
/// How a store with blocks works, as chosen on the command line. Chapter: step 3.
#pragma once

#include <cstdint>
#include <limits>

namespace kvcache {

/// How attention reads K and V that lie in blocks: `gather` copies them into one buffer first, `paged` reads
/// them in place. Both give the same bits.
enum class AttentionPath : std::uint8_t { gather, paged };

/// What fresh blocks are filled with, to show that nothing reads a slot before it is written.
enum class DebugFill : std::uint8_t { none, nan, huge };

/// The number that `nan` or `huge` fills with. `huge` is near the largest f16, 65,504: it is finite in f32,
/// f16 and bf16, and so large that attention which reads it gives a visibly wrong result.
inline float number_of(DebugFill fill) {
  return fill == DebugFill::nan ? std::numeric_limits<float>::quiet_NaN() : 6e4F;
}

}  // namespace kvcache
