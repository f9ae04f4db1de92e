/// @file
/// One head of q or k in the registers of a warp, where it is normalised and rotated. The kernel of
/// `norm_and_rotate` (kernels.cu) and attention (attention_mma_decode.cu) share it, so both give the same
/// bits. Chapter: step3_paged/README.md.
#pragma once

#include <cstdint>

#include "common/base/matrix.h"
#include "common/cuda/attention_work.h"
#include "common/cuda/launch.cuh"

namespace kvcache::cuda {

/// A head of up to Most numbers. Lane l of a warp holds the pairs (d, d + head_dim / 2) with d = l, l + 32,
/// ... Every number is rounded to T after the norm and after the rotation.
template <typename T, int Most>
class WarpHead {
 public:
  static constexpr int kPairs = (Most / 2 + 31) / 32;  ///< that a lane holds

  /// @param numbers  [head_dim]
  __device__ WarpHead(const T* numbers, int head_dim) : half_(head_dim / 2) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int d = place(pair);
      first_[pair] = d < half_ ? to_float(numbers[d]) : 0;
      second_[pair] = d < half_ ? to_float(numbers[d + half_]) : 0;
    }
  }
  /// x / sqrt(mean(x^2) + eps) * weight. @param weight  [head_dim]; nullptr: nothing changes
  __device__ void normalise(const T* weight, float eps) {
    if (weight == nullptr) return;
    float squares = 0;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      squares = fmaf(first_[pair], first_[pair], squares);
      squares = fmaf(second_[pair], second_[pair], squares);
    }
    const float scale = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(2 * half_) + eps);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int d = place(pair);
      if (d >= half_) continue;
      first_[pair] = to_float(from_float<T>(first_[pair] * scale * to_float(weight[d])));
      second_[pair] = to_float(from_float<T>(second_[pair] * scale * to_float(weight[d + half_])));
    }
  }
  /// Turns each pair by the angle of row `row`, if there is a rotation.
  __device__ void rotate(const Rotation& rotation, std::int64_t row) {
    if (rotation.cosines == nullptr) return;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int d = place(pair);
      if (d >= half_) continue;
      const float cosine = rotation.cosines[row * half_ + d], sine = rotation.sines[row * half_ + d];
      const float first = first_[pair], second = second_[pair];
      first_[pair] = first * cosine - second * sine;
      second_[pair] = second * cosine + first * sine;
    }
  }
  /// @param to  [head_dim]
  __device__ void store(T* to) const {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int d = place(pair);
      if (d >= half_) continue;
      to[d] = from_float<T>(first_[pair]);
      to[d + half_] = from_float<T>(second_[pair]);
    }
  }

 private:
  /// The first number's place of the lane's pair number `pair`.
  __device__ static int place(int pair) {
    return static_cast<int>(threadIdx.x) % 32 + pair * 32;
  }

  int half_;
  float first_[kPairs], second_[kPairs];
};

}  // namespace kvcache::cuda
