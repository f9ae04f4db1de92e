/// @file
/// Picks the next token id from the logits: greedy, or at random with temperature, top-k, top-p and a seed.
/// Chapter: docs/transformer.md, "Choosing a token".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcache {

/// How to pick. The defaults are greedy.
struct SamplingParams {
  double temperature = 0.0;  ///< finite, >= 0; divides the logits; below 1e-5 the pick is arg max, as for 0
  std::int64_t top_k = 0;    ///< keep the k largest logits; 0: all; >= vocabulary: all
  double top_p = 1.0;  ///< in [0, 1]: keep the fewest candidates whose probabilities reach p, at least one
  std::uint64_t seed = 0;  ///< equal seeds, logits and settings give equal ids
};

/// Everything that decides one pick, besides the logits.
struct Draw {
  bool greedy = true;        ///< arg max; the other fields do not matter
  double temperature = 0;    ///< as in SamplingParams
  std::uint64_t top_k = 0;   ///< 0: all
  double top_p = 1;          ///< as in SamplingParams
  std::uint64_t random = 0;  ///< 64 random bits
};

/// The result of a pick: a token id, or what is wrong with the logits. It is a value and not an exception,
/// because the logits of one sequence must not end the other sequences of its pass.
struct Picked {
  /// Why there is no id.
  enum class Problem : std::uint8_t {
    none,      ///< there is an id
    nan,       ///< a logit is NaN
    infinity,  ///< a logit is +infinity
    nothing,   ///< no logit is above -infinity
  };
  Problem problem = Problem::none;  ///< why there is no id
  std::int32_t id = 0;              ///< of the token, if there is no problem
  std::int64_t logits = 0;  ///< nan, infinity: the index of the first such logit; nothing: how many there are

  /// Whether there is an id.
  bool ok() const { return problem == Problem::none; }
  friend bool operator==(const Picked&, const Picked&) = default;  ///< in all three
};

/// What is wrong, in a sentence for the user.
/// @param picked  without an id
[[nodiscard]] std::string message_of(const Picked& picked);

/// Picks the tokens of one sequence. Two samplers with equal parameters give equal ids for equal logits on
/// every platform: the n-th draw depends on the seed and on n alone.
class Sampler {
 public:
  /// @throws InputError naming the parameter that is out of range or NaN.
  explicit Sampler(const SamplingParams& params);

  /// The next id from `logits` [vocab]. Temperature first, then top-k, then top-p over what top-k left, as in
  /// Hugging Face's transformers. Ties go to the lowest id: in arg max, and at the border of top-k and top-p.
  /// There is no id if a logit is NaN or +infinity, or if none is above -infinity. Every pick uses up one
  /// draw, also one without an id.
  [[nodiscard]] Picked pick(std::span<const float> logits);

  /// The draw of the next pick, for a device that holds the logits itself and must choose as `pick` would.
  [[nodiscard]] Draw draw();

 private:
  SamplingParams params_;
  std::uint64_t state_;  ///< of the generator
};

/// Asks for a token id from one row of the logits.
struct Pick {
  std::int64_t row = 0;        ///< of the logits
  Sampler* sampler = nullptr;  ///< the sequence's own: its random numbers do not depend on the batch
};

}  // namespace kvcache
