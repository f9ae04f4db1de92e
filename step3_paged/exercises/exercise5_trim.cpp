// Exercise 5: Take back the last tokens of a sequence
//
// In speculative decoding a small model guesses several tokens, and the large one checks them all in one
// pass. That pass stores K and V of every guess. Wrong guesses must be taken back, and with them the blocks
// that hold nothing else.
//
// Write trim(table, tokens, block_size, pool). `table` is one sequence: table.length tokens are stored, in
// the ceil(length / block_size) blocks of table.blocks, in order of position. trim
//
//   - makes table.length smaller by `tokens`,
//   - removes the blocks that the new length does not need from the end of table.blocks,
//   - and gives each of them back with pool.free(id), in such an order that a sequence which grows again at
//     once takes the same blocks as before. The pool gives out the block that was freed last.
//
// With tokens 0 nothing changes; with all tokens no block is left. If `tokens` is negative or more than
// table.length, trim throws std::invalid_argument, and table and pool stay as they were.
//
// Example: block_size 4, length 10, blocks 0 1 2, the last of which holds tokens 8 and 9. From there
//
//   trim by 1 leaves length 9, blocks 0 1 2; token 8 is still in block 2,
//   trim by 2 leaves length 8, blocks 0 1; block 2 is free,
//   trim by 9 leaves length 1, block 0; block 1 is the next to be given out, then 2.
//
// The test looks at the table, at the pool, and at what is allocated next.
//
// Hint: compare how many blocks the new length needs with how many are held.
#include "step3_paged/exercises/exercise5_trim.h"

#include <stdexcept>

namespace kvcache {

void trim(BlockTable& table, std::int64_t tokens, std::int64_t /*block_size*/, BlockPool& /*pool*/) {
  table.length -= tokens;  // and the blocks? Write this.
}

}  // namespace kvcache
