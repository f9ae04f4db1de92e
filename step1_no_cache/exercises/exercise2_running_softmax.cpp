// Exercise 2: Attention in one pass over the keys and values
//
// Write attend_to_stream: attention of one query, with keys and values that can be seen only once, one
// position after the other. So the scores cannot all be computed before the first value is needed.
//
// The test compares with the formula in double. It also gives scores far above 88, where exp overflows in
// float, and far below -88, where it becomes 0.
//
// Hint: keep the largest score so far, the sum of exp(score - largest) and the sum of exp(score - largest) *
// value. When a larger score comes, both sums must be scaled from the old largest to the new one.
#include "step1_no_cache/exercises/exercise2_running_softmax.h"

namespace kvcache {

void attend_to_stream(std::span<const float> q, KvStream& kv, std::span<float> out) {
  // Every value counts the same here, whatever the query is: write this.
  std::fill(out.begin(), out.end(), 0.0F);
  float positions = 0;
  while (kv.next()) {
    positions += 1;
    for (std::size_t n = 0; n < q.size(); ++n) out[n] += kv.value()[n];
  }
  for (float& number : out) number /= positions;
}

}  // namespace kvcache
