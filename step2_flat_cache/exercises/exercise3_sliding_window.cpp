// Exercise 3: A reservation that keeps the last positions only
//
// Some models attend to the last w positions and no further. Then a reservation needs w slots, however long
// the text becomes: it is a ring, and a new row takes the slot of the row that leaves the window.
//
// Write window_slots, which is the line of FlatCacheManager::plan that says where rows go, and
// window_in_order, which says in which order attention must read them.
//
// The test plays prefills and decode passes on a small array and looks whether the last w positions are
// there, in order. No pass may name a slot twice, as rows are written in no particular order.
//
// Hint: a prompt can be longer than the window.
#include "step2_flat_cache/exercises/exercise3_sliding_window.h"

namespace kvcache {

std::vector<std::int64_t> window_slots(std::int64_t first, std::int64_t rows, std::int64_t /*window*/) {
  std::vector<std::int64_t> slots;
  for (std::int64_t row = 0; row < rows; ++row) slots.push_back(first + row);  // as in step 2: write this
  return slots;
}

std::vector<std::int64_t> window_in_order(std::int64_t length, std::int64_t window) {
  return window_slots(0, length, window);  // write this
}

}  // namespace kvcache
