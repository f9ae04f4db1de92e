/// @file
/// Picks the next token id from the logits: greedy, or by temperature, top-k and top-p with a seed. Chapter:
/// step 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcache {

/// How to pick. The defaults are greedy.
struct SamplingParams {
  double temperature = 0.0;  ///< finite, >= 0; below 1e-5 it is arg max, as 0 is
  std::int64_t top_k = 0;    ///< keep the k largest logits; 0: all; >= vocabulary: all
  double top_p = 1.0;  ///< in [0, 1]: keep the fewest candidates whose probabilities reach p, at least one
  std::uint64_t seed = 0;  ///< equal seeds, logits and settings give equal ids
};

/// What decides one pick, besides the logits.
struct Draw {
  bool greedy = true;        ///< arg max; the rest decides nothing
  double temperature = 0;    ///< as in SamplingParams
  std::uint64_t top_k = 0;   ///< 0: all
  double top_p = 1;          ///< as in SamplingParams
  std::uint64_t random = 0;  ///< 64 random bits
};

/// What a pick gives: a token id, or what is wrong with the logits it was to be picked from. A value and no
/// exception: one sequence's logits must not end the others of its pass.
struct Picked {
  /// Why there is no id.
  enum class Problem : std::uint8_t {
    none,      ///< there is one
    nan,       ///< a logit is NaN
    infinity,  ///< a logit is +infinity
    nothing,   ///< no logit is above -infinity
  };
  Problem problem = Problem::none;  ///< why there is no id
  std::int32_t id = 0;              ///< of the token, where there is no problem
  std::int64_t logits = 0;  ///< nan, infinity: the index of the first such logit; nothing: how many there are

  /// Whether there is an id.
  bool ok() const { return problem == Problem::none; }
  friend bool operator==(const Picked&, const Picked&) = default;  ///< in all three
};

/// What is wrong, in words for whoever asked for a token.
/// @param picked  without an id
[[nodiscard]] std::string message_of(const Picked& picked);

/// One sequence's source of random picks. Two samplers with equal parameters give equal ids for equal logits
/// on every platform; draws depend on nothing but the seed and how many picks were made before.
class Sampler {
 public:
  /// @throws InputError naming the parameter that is out of range or NaN.
  explicit Sampler(const SamplingParams& params);

  /// The next id from `logits` [vocab]. Temperature first, then top-k, then top-p over what top-k left, as in
  /// Hugging Face's transformers. Ties go to the lowest id: in arg max, and at the border of top-k and top-p.
  /// Where a logit is NaN or +infinity, or none is above -infinity, there is no id. It takes its draw all the
  /// same.
  [[nodiscard]] Picked pick(std::span<const float> logits);

  /// The draw of the next pick, for a device that holds the logits itself: it has to choose as `pick` would.
  [[nodiscard]] Draw draw();

 private:
  SamplingParams params_;
  std::uint64_t state_;  ///< of the generator
};

/// A token id wanted from one row of the logits.
struct Pick {
  std::int64_t row = 0;        ///< of the logits
  Sampler* sampler = nullptr;  ///< the sequence's own: its random numbers do not depend on the batch
};

}  // namespace kvcache
