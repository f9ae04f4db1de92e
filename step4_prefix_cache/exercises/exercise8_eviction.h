/// @file
/// Exercise 8, stated in exercise8_eviction.cpp.
#pragma once

#include <cstdint>
#include <span>

namespace kvcache {

/// Which block makes room when something new comes.
enum class Eviction : std::uint8_t {
  first_in_first_out,   ///< the one whose content came first
  least_recently_used,  ///< the one whose content was asked for longest ago
};

/// Requests that a cache of `blocks` blocks, empty at first, does not find. What was not found is put in.
/// @param contents  [requests] what each of them asks for, one block's worth, as a number
/// @param blocks    at least 1
std::int64_t misses(Eviction eviction, std::span<const std::int32_t> contents, std::int64_t blocks);

}  // namespace kvcache
