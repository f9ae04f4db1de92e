// Exercise 4: Grow instead of reserving
//
// A reservation wastes the slots that a text does not fill. A buffer can grow instead, but each growth moves
// all stored rows. Growing by one position at a time up to n moves 1 + 2 + ... + (n - 1) rows of each layer.
// Doubling moves about n, and never 2 n.
//
// Write GrowingCache::grow. `append` calls it when there is no room, that is, when length_ == capacity_; both
// are 0 at first. When it returns,
//
//   capacity_    is larger than length_,
//   buffer_      has the shape [layers_, capacity_, row_width_],
//   every row    of the positions below length_ is at offset(layer, position, capacity_), unchanged,
//   rows_moved_  is larger by layers_ * length_, the number of stored rows.
//
// offset(layer, position, capacity) says where a row begins in a buffer with that capacity: with the old
// capacity where it was, with the new capacity where it must go. length_ does not change. No input is an
// error.
//
// Example: 2 layers, row_width 1. Position 0 holds a in layer 0 and b in layer 1. With capacity 1 the
// buffer is a b. Grown to capacity 2 it is a . b . and 2 rows have moved. The trap: layer 1 begins elsewhere.
//
// The test appends a thousand positions, one by one, and checks the rows. After each append it allows a
// capacity of at most 2 times the stored positions, and in all at most 2 moves for each stored row. Doubling
// keeps both.
#include "step2_flat_cache/exercises/exercise4_growing_cache.h"

namespace kvcache {

void GrowingCache::grow() {
  // Wrong: one position more, and the rows stay where they were. That is right for one layer, and slow. Write
  // this.
  ++capacity_;
  buffer_.resize(layers_ * capacity_ * row_width_);
  rows_moved_ += layers_ * length_;
}

}  // namespace kvcache
