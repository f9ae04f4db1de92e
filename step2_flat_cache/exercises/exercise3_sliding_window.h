/// @file
/// Exercise 3, stated in exercise3_sliding_window.cpp.
#pragma once

#include <cstdint>
#include <vector>

namespace kvcache {

/// Where the rows of one pass go, in a reservation of `window` slots that keeps the last `window` positions.
/// @param first  position of the pass's first row
/// @param rows   of this pass, at the positions from `first` on
/// @return [rows] slots in [0, window); -1 for a row that the same pass pushes out of the window again
std::vector<std::int64_t> window_slots(std::int64_t first, std::int64_t rows, std::int64_t window);

/// The slots of the positions that are kept when `length` tokens have been stored, the oldest position first.
/// @return [min(length, window)]
std::vector<std::int64_t> window_in_order(std::int64_t length, std::int64_t window);

}  // namespace kvcache
