// Exercise 4: Grow instead of reserving
//
// A reservation wastes what a text does not fill. A buffer can grow instead, but then what is stored has to
// move. Growing by one position at a time moves 1 + 2 + ... + n rows of each layer. Growing by a factor moves
// less than a constant times n.
//
// Write GrowingCache::grow. `append` calls it when there is no room, that is, when length_ == capacity_; both
// are 0 at first. When it returns,
//
//   capacity_    is larger than length_,
//   buffer_      has the shape [layers_, capacity_, row_width_],
//   every row    of the positions below length_ is at offset(layer, position, capacity_), unchanged,
//   rows_moved_  is larger by layers_ * length_, all the rows that are stored.
//
// offset(layer, position, capacity) says where a row begins in a buffer with that capacity: with the old
// capacity where it was, with the new one where it belongs. length_ stays as it is. No input is an error.
//
// Example: 2 layers, row_width 1. Position 0 holds a in layer 0 and b in layer 1. The buffer is a b, of
// capacity 1; grown to capacity 2 it is a . b . and 2 rows have moved. Layer 1 begins elsewhere: that is
// the trap.
//
// The test appends a thousand positions, one by one, and looks at the rows. After each append it allows a
// capacity of at most 2 times the positions stored, and in all at most 2 moves per row stored. Doubling keeps
// to both.
#include "step2_flat_cache/exercises/exercise4_growing_cache.h"

namespace kvcache {

void GrowingCache::grow() {
  // One position more, and the rows stay where they were. That is right for one layer, and slow: write this.
  ++capacity_;
  buffer_.resize(layers_ * capacity_ * row_width_);
  rows_moved_ += layers_ * length_;
}

}  // namespace kvcache
