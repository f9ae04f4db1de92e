// Exercise 1: How many rows of K and V?
//
// Write kv_rows_of_run. Its arguments are the length of a prompt (at least 1 token) and a number of new
// tokens (at least 0). Its result has two counts over all passes that step 1 makes for this sequence:
//
//   computed    rows of K and V per layer; a row is the K and V of one token in one pass
//   recomputed  those rows whose position an earlier pass has computed already
//
// Every pass computes the whole text so far and gives one new token. The last new token never goes through
// the model. With 0 new tokens the prompt still goes through once. No input is an error.
//
// Example: a prompt of 3 tokens and 3 new ones make passes of 3, 4 and 5 rows: 12 computed. The second pass
// repeats 3 rows and the third 4: 7 recomputed.
//
// The test plays such runs with NoCacheManager and adds up the rows of its plans. It also asks for a million
// new tokens, whose rows do not fit 32 bits.
#include "step1_no_cache/exercises/exercise1_kv_rows.h"

namespace kvcache {

KvRowsReport kv_rows_of_run(std::int64_t prompt, std::int64_t new_tokens) {
  return {.computed = prompt + new_tokens, .recomputed = 0};  // wrong: write this
}

}  // namespace kvcache
