/// @file
/// See sampler.h; read `pick` first, at the end. The picks are the same on every platform, for two reasons.
/// The random numbers and the exponential are our own: the standard library's distributions and `std::exp`
/// differ between platforms. And probabilities are whole numbers (sampling_weight.h), so the order of adding
/// does not change their sums.

#include "common/model/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <vector>

#include "common/base/error.h"
#include "common/model/sampling_weight.h"

namespace kvcache {
namespace {

/// Below this temperature, even neighbouring float logits of usual size differ enough to make the larger one
/// nearly certain. A draw would then decide between equal logits only, so arg max is the plainer answer.
constexpr double smallest_temperature = 1e-5;

/// One id that can still be picked.
struct Candidate {
  float logit;
  std::int32_t id;
  std::uint64_t weight;  ///< its probability, not normalised; 2^weight_bits for the largest logit
};

/// The order in which top-k and top-p keep candidates. No two candidates are equal in it, so every selection
/// algorithm keeps the same ones.
bool ranks_before(const Candidate& left, const Candidate& right) {
  return left.logit > right.logit || (left.logit == right.logit && left.id < right.id);
}

constexpr std::size_t kPiece = 256;

/// Whether one of kPiece logits is above `largest`, +infinity or NaN. The compiler makes vectors of the loop.
bool has_more_than(float largest, const float* logits) {
  int found = 0;
  for (std::size_t id = 0; id < kPiece; ++id) found |= static_cast<int>(!(logits[id] <= largest));
  return found != 0;
}

/// The id of the largest logit.
Picked arg_max(std::span<const float> logits) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::size_t best = logits.size();
  float largest = -infinity;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    while (id % kPiece == 0 && id + kPiece <= logits.size() && !has_more_than(largest, &logits[id]))
      id += kPiece;
    if (id == logits.size()) break;
    const float logit = logits[id];
    if (!(logit < infinity)) {  // written so that NaN is caught too
      return {.problem = std::isnan(logit) ? Picked::Problem::nan : Picked::Problem::infinity,
              .logits = static_cast<std::int64_t>(id)};
    }
    if (logit > largest) {
      largest = logit;
      best = id;
    }
  }
  if (best == logits.size())
    return {.problem = Picked::Problem::nothing, .logits = static_cast<std::int64_t>(best)};
  return {.id = static_cast<std::int32_t>(best)};
}

/// The last of the k largest logits (its weight is not computed). One pass over the logits keeps those that
/// beat the k-th largest so far, and cuts its list back to k whenever it holds 2k.
Candidate last_of_top_k(std::span<const float> logits, std::size_t k) {
  std::vector<Candidate> best;
  best.reserve(2 * k);
  const auto keep_k = [&] {
    std::nth_element(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(k - 1), best.end(),
                     ranks_before);
    best.resize(k);
  };
  float to_beat = -std::numeric_limits<float>::infinity();
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (best.size() >= k && !(logits[id] > to_beat))
      continue;  // of equal logits the lower id comes first and stays
    best.push_back({logits[id], static_cast<std::int32_t>(id), 0});
    if (best.size() == 2 * k) {
      keep_k();
      to_beat = best.back().logit;
    }
  }
  keep_k();
  return best.back();
}

/// The softmax at `temperature` of the k largest logits (0: of all), in the order of ids, without candidates
/// of weight 0.
std::vector<Candidate> top_k_candidates(std::span<const float> logits, float largest, double temperature,
                                        std::uint64_t k) {
  const bool all = k == 0 || k >= logits.size();
  const Candidate last = all ? Candidate{} : last_of_top_k(logits, k);
  std::vector<Candidate> candidates;
  candidates.reserve(all ? logits.size() : k);
  for (std::size_t id = 0; id < logits.size(); ++id) {
    Candidate candidate{logits[id], static_cast<std::int32_t>(id), 0};
    if (!all && ranks_before(last, candidate)) continue;
    candidate.weight = weight_of(candidate.logit, largest, temperature);
    if (candidate.weight > 0) candidates.push_back(candidate);
  }
  return candidates;
}

std::uint64_t total_weight(std::span<const Candidate> candidates) {
  std::uint64_t total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

/// Keeps the fewest candidates whose weights reach p of the total. The border is found by halving, as in
/// quickselect: separate the better half, see whether it is enough, go on in the half where the border lies.
/// This takes linear time; sorting 150,000 candidates would take as long as a small model's forward pass.
void keep_top_p(std::vector<Candidate>& candidates, double p) {
  if (p == 1.0) return;
  const std::uint64_t total = total_weight(candidates);
  std::uint64_t missing = weight_to_reach(p, total);

  // Most candidates are so light that all of them together are not needed: look for the border among the
  // others.
  const std::uint64_t light = (total - missing) / candidates.size();
  std::vector<Candidate> heavy;
  heavy.reserve(candidates.size());
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(heavy),
               [&](const Candidate& candidate) { return candidate.weight > light; });

  std::span<Candidate> half =
      heavy;  // holds the border; `missing`: the weight still to reach after those ranked before it
  while (half.size() > 1) {
    const std::size_t middle = half.size() / 2;
    std::nth_element(half.begin(), half.begin() + static_cast<std::ptrdiff_t>(middle), half.end(),
                     ranks_before);
    const std::uint64_t better = total_weight(half.first(middle));
    if (better >= missing) {
      half = half.first(middle);
    } else {
      missing -= better;
      half = half.subspan(middle);
    }
  }
  const Candidate last = half.front();
  std::erase_if(candidates, [&](const Candidate& candidate) { return ranks_before(last, candidate); });
}

/// SplitMix64 (Steele, Lea, Flood 2014): a counter, each of whose values is mixed into 64 random bits, so
/// that neighbouring seeds give unrelated numbers.
std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15;
  std::uint64_t bits = state;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
  return bits ^ (bits >> 31);
}

}  // namespace

std::string message_of(const Picked& picked) {
  if (picked.problem == Picked::Problem::nothing)
    return fmt::format("none of the {} logits is above -infinity: no token can be picked", picked.logits);
  return fmt::format(
      "logit {} is {}, not a finite number: a sum left the range of the type (try --dtype bf16 or "
      "f32), or the weights are damaged",
      picked.logits, picked.problem == Picked::Problem::nan ? "NaN" : "+infinity");
}

Sampler::Sampler(const SamplingParams& params) : params_(params), state_(params.seed) {
  if (!std::isfinite(params.temperature) || params.temperature < 0) {
    throw InputError(fmt::format("temperature must be a finite number >= 0, not {}", params.temperature));
  }
  if (params.top_k < 0) {
    throw InputError(fmt::format("top-k must be a whole number >= 0 (0 is off), not {}", params.top_k));
  }
  if (!(params.top_p >= 0 && params.top_p <= 1)) {
    throw InputError(fmt::format("top-p must be a number from 0 to 1 (1 is off), not {}", params.top_p));
  }
}

Draw Sampler::draw() {
  return {.greedy = params_.temperature < smallest_temperature || params_.top_k == 1,
          .temperature = params_.temperature,
          .top_k = static_cast<std::uint64_t>(params_.top_k),
          .top_p = params_.top_p,
          .random = next_random(state_)};
}

Picked Sampler::pick(std::span<const float> logits) {
  const Draw drawn = draw();  // one draw per pick, also where it decides nothing
  const Picked best = arg_max(logits);
  if (drawn.greedy || !best.ok()) return best;
  const float largest = logits[static_cast<std::size_t>(best.id)];
  std::vector<Candidate> candidates = top_k_candidates(logits, largest, drawn.temperature, drawn.top_k);
  keep_top_p(candidates, drawn.top_p);

  std::uint64_t rest = place_of(drawn.random, total_weight(candidates));
  auto candidate = candidates.begin();
  for (; rest >= candidate->weight; ++candidate) rest -= candidate->weight;
  return {.id = candidate->id};
}

}  // namespace kvcache
