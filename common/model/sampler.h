/// @file
/// Picks the next token id from the logits: greedy, or by temperature, top-k and top-p with a seed. Chapter:
/// step 1.
#pragma once

#include <cstdint>
#include <span>

namespace kvcache {

/// How to pick. The defaults are greedy.
struct SamplingParams {
  double temperature = 0.0;  ///< finite, >= 0; below 1e-5 it is arg max, as 0 is
  std::int64_t top_k = 0;    ///< keep the k largest logits; 0: all; >= vocabulary: all
  double top_p = 1.0;  ///< in [0, 1]: keep the fewest candidates whose probabilities reach p, at least one
  std::uint64_t seed = 0;
};

/// One sequence's source of random picks. Two samplers with equal parameters give equal ids for equal logits
/// on every platform; draws depend on nothing but the seed and how many picks were made before.
class Sampler {
 public:
  /// @throws InputError naming the parameter that is out of range or NaN.
  explicit Sampler(const SamplingParams& params);

  /// The next id from `logits` [vocab]. Temperature first, then top-k, then top-p over what top-k left, as in
  /// Hugging Face's transformers. Ties go to the lowest id: in arg max, and at the border of top-k and top-p.
  /// @throws RunError when a logit is NaN or +infinity (naming its index), or there is none above -infinity.
  std::int32_t pick(std::span<const float> logits);

 private:
  SamplingParams params_;
  std::uint64_t state_;  ///< of the generator
};

}  // namespace kvcache
