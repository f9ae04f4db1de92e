// A solution of exercise 1.
#include <algorithm>

#include "step1_no_cache/exercises/exercise1_kv_rows.h"

namespace kvcache {

KvRowsReport kv_rows_of_run(std::int64_t prompt, std::int64_t new_tokens) {
  const std::int64_t passes = std::max<std::int64_t>(new_tokens, 1);
  const std::int64_t computed = passes * prompt + passes * (passes - 1) / 2;
  const std::int64_t needed = prompt + passes - 1;
  return {computed, computed - needed};
}

}  // namespace kvcache
