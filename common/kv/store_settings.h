/// @file
/// How a store with blocks works, as chosen on the command line. Chapter: step 3.
#pragma once

#include <cstdint>

namespace kvcache {

/// How attention gets at K and V that lie in blocks: copied together first, or read where they lie. Both give
/// the same bits.
enum class AttentionPath : std::uint8_t { gather, paged };

/// What fresh blocks are filled with, to show that nothing reads a slot before it is written.
enum class DebugFill : std::uint8_t { none, nan, huge };

}  // namespace kvcache
