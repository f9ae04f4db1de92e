// Exercise 3: A reservation that keeps the last positions only
//
// In some models a token sees only the last w positions, its own among them. Then w slots are enough, however
// long the text becomes. The reservation is a ring: a new row takes the slot of a row that leaves the window.
//
// Write two functions. Passes follow each other without gaps: `first` is the number of positions that came
// in earlier passes. `window` is the w above, at least 1.
//
// window_slots(first, rows, window): the slots of a pass with `rows` rows (at least 1), which have the
// positions first, first + 1, and so on. It returns one number per row, in order: a slot in [0, window), or
// -1 for a row that need not be stored, because the same pass brings `window` or more rows behind it. No slot
// may come twice in one pass, because rows are written in no particular order.
//
// window_in_order(length, window): the slots to read after `length` positions (at least 0) have come. It
// returns the slots of the last min(length, window) positions, the oldest first; none for length 0.
//
// Example, window 4. A prompt of 6 tokens comes, then one token:
//
//   window_slots(0, 6, 4)   -1 -1 2 3 0 1    positions 0 and 1 are not stored, 2 to 5 are
//   window_in_order(6, 4)   2 3 0 1          the slots of positions 2 3 4 5
//   window_slots(6, 1, 4)   2                position 6 takes the place of position 2
//   window_in_order(7, 4)   3 0 1 2          the slots of positions 3 4 5 6
//
// Which slot a position gets is your choice, as long as both functions agree. Only what is stored after
// a pass counts here. What attention reads during the pass is another matter: in the prompt above the token
// at position 2 sees positions 0 and 1, whose rows are not stored.
//
// The test plays prompts and decode passes on a small array, with passes shorter and longer than the window,
// and checks after each of them that the last positions are there, in order. No input is an error.
#include "step2_flat_cache/exercises/exercise3_sliding_window.h"

namespace kvcache {

std::vector<std::int64_t> window_slots(std::int64_t first, std::int64_t rows, std::int64_t /*window*/) {
  std::vector<std::int64_t> slots;
  for (std::int64_t row = 0; row < rows; ++row) slots.push_back(first + row);  // as in step 2: write this
  return slots;
}

std::vector<std::int64_t> window_in_order(std::int64_t length, std::int64_t /*window*/) {
  std::vector<std::int64_t> slots;
  for (std::int64_t position = 0; position < length; ++position) slots.push_back(position);  // write this
  return slots;
}

}  // namespace kvcache
