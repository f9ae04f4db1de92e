// Exercise 2: Attention in one pass over the keys and values
//
// Write attend_to_stream: attention of one query over keys and values that come only once, one position after
// the other. So the first value is gone before the last score is known. Do not keep the keys or the values.
//
//   q    [head_dim], the query; head_dim is q.size()
//   kv   kv.next() goes on to the next position and returns false behind the last. Then kv.key() and
//        kv.value() are those of this position, [head_dim] each. There is at least one position.
//   out  [head_dim], to be overwritten with
//
//     sum over j of a_j * v_j,   a_j = exp(s_j) / sum over l of exp(s_l),   s_j = q . k_j / sqrt(head_dim)
//
// Example: head_dim 1, q = 1, keys 0 and ln 3, values 10 and 20. The scores are 0 and ln 3, the weights
// 1/4 and 3/4, and out is 17.5.
//
// How: keep the largest score so far, the sum of exp(score - largest), and the sum of exp(score - largest)
// * value. When a larger score comes, scale both sums by exp(old largest - new largest). In the example the
// sums are 1 and 10 after the first position. The second position scales them to 1/3 and 10/3 and adds 1
// and 20. The result is (10/3 + 20) / (1/3 + 1) = 17.5.
//
// The test compares with the formula in double; 1e-5 is allowed. It also gives scores far above 88, where
// exp overflows in float, and far below -88, where exp becomes 0.
#include "step1_no_cache/exercises/exercise2_running_softmax.h"

namespace kvcache {

void attend_to_stream(std::span<const float> q, KvStream& kv, std::span<float> out) {
  // Wrong: every value has the same weight here, whatever the query is. Write this.
  std::fill(out.begin(), out.end(), 0.0F);
  float positions = 0;
  while (kv.next()) {
    positions += 1;
    for (std::size_t n = 0; n < q.size(); ++n) out[n] += kv.value()[n];
  }
  for (float& number : out) number /= positions;
}

}  // namespace kvcache
