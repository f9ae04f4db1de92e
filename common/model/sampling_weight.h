/// @file
/// The probabilities of the sampler as whole numbers, for the CPU (sampler.cpp) and the GPU
/// (cuda/sampling.cu). Only operations that IEEE 754 defines to the last bit are used, so both get the same
/// numbers, as long as the compiler fuses none (-ffp-contract=off, -fmad=false). Sums of whole numbers do not
/// depend on the order of adding. Chapter: docs/transformer.md, "Choosing a token".
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
/// Marks functions that the CPU and the GPU both compute.
#define KVCACHE_HOST_DEVICE __host__ __device__
#else
#define KVCACHE_HOST_DEVICE
#endif

namespace kvcache {

/// Weights are counted in units of 2^-40 of the largest. That is fine enough: over a vocabulary of a million,
/// rounding changes less than one pick in a million. And coarse enough: the sum over max_vocab_size ids fits
/// 64 bits.
constexpr int weight_bits = 40;
/// The most ids that a model may have; vocabularies have some hundred thousand.
constexpr std::int64_t max_vocab_size = std::int64_t{1} << 23;
/// The natural logarithm of 2.
constexpr double ln2 = 0.693147180559945309417;

/// floor(2^weight_bits * e^x) for x <= 0. e^x = 2^-halvings * e^rest with |rest| <= ln(2)/2, where the Taylor
/// series up to the twelfth power leaves an error of 2e-16. The halvings are a shift.
KVCACHE_HOST_DEVICE inline std::uint64_t exponential_weight(double x) {
  if (x < -weight_bits * ln2) return 0;
  const int halvings = static_cast<int>(0.5 - x * (1 / ln2));
  const double rest = x + halvings * ln2;
  constexpr double coefficients[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                                     1.0 / 5040,     1.0 / 720,     1.0 / 120,    1.0 / 24,
                                     1.0 / 6,        1.0 / 2,       1.0,          1.0};  // 1/11! to 1/0!
  double series = 1.0 / 479001600;                                                       // 1/12!
  for (const double coefficient : coefficients) series = series * rest + coefficient;
  constexpr int series_bits = 62;  // the series is at most sqrt(2)
  return static_cast<std::uint64_t>(series * 0x1p62) >> (series_bits - weight_bits + halvings);
}

/// The weight of a logit at a temperature > 0. The largest logit is subtracted first, so that it has the
/// weight 2^40 at every temperature and nothing overflows.
KVCACHE_HOST_DEVICE inline std::uint64_t weight_of(float logit, float largest, double temperature) {
  return exponential_weight((logit - largest) / temperature);
}

/// The weight that the candidates kept by top-p must reach together: p of the total, at least 1.
KVCACHE_HOST_DEVICE inline std::uint64_t weight_to_reach(double p, std::uint64_t total) {
  const auto share = static_cast<std::uint64_t>(std::ceil(p * static_cast<double>(total)));
  return share < 1 ? 1 : share > total ? total : share;
}

/// A place in [0, total) for 64 random bits. Lay the weights end to end in the order of ids: the candidate
/// whose weight covers the place is picked.
KVCACHE_HOST_DEVICE inline std::uint64_t place_of(std::uint64_t random, std::uint64_t total) {
  const double uniform = static_cast<double>(random >> 11) * 0x1p-53;  // in [0, 1)
  const auto place = static_cast<std::uint64_t>(uniform * static_cast<double>(total));
  return place < total ? place : total - 1;
}

}  // namespace kvcache
