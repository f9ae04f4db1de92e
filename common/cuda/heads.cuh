/// @file
/// The heads of q and k in the registers of a warp, where they are normalised and rotated. The kernel of
/// `norm_and_rotate` (kernels.cu) and attention (attention_mma_decode.cu) share it, so both give the same
/// bits. Chapter: step3_paged/README.md.
#pragma once

#include <cstdint>

#include "common/base/matrix.h"
#include "common/cuda/attention_work.h"
#include "common/cuda/launch.cuh"

namespace kvcache::cuda {

/// Makes heads of up to Most numbers ready, one after the other: the norm, then the rotation of one row. Lane
/// l of a warp holds the pairs (d, d + head_dim / 2) with d = l, l + 32, ... Every number is rounded to T
/// after the norm and after the rotation. The weights of the norm and the angles are loaded by the
/// constructor, so a kernel can have them before it waits for the heads.
template <typename T, int Most>
class WarpHeads {
 public:
  static constexpr int kPairs = (Most / 2 + 31) / 32;  ///< that a lane holds

  /// @param weight  [head_dim] of the norm; nullptr: none
  __device__ WarpHeads(int head_dim, const T* weight, float eps, const Rotation& rotation, std::int64_t row)
      : half_(head_dim / 2),
        normalises_(weight != nullptr),
        rotates_(rotation.cosines != nullptr),
        eps_(eps) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int d = place(pair);
      if (d >= half_) continue;
      if (normalises_) {
        first_weight_[pair] = to_float(weight[d]);
        second_weight_[pair] = to_float(weight[d + half_]);
      }
      if (rotates_) {
        cosine_[pair] = rotation.cosines[row * half_ + d];
        sine_[pair] = rotation.sines[row * half_ + d];
      }
    }
  }

  /// @param from, to  [head_dim]; may be the same
  __device__ void make_ready(const T* from, T* to) const {
    float first[kPairs], second[kPairs], squares = 0;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int d = place(pair);
      first[pair] = d < half_ ? to_float(from[d]) : 0;
      second[pair] = d < half_ ? to_float(from[d + half_]) : 0;
      squares = fmaf(first[pair], first[pair], squares);
      squares = fmaf(second[pair], second[pair], squares);
    }
    const float scale =
        normalises_ ? 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(2 * half_) + eps_) : 1.0F;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int d = place(pair);
      if (d >= half_) continue;
      float a = first[pair], b = second[pair];
      if (normalises_) {
        a = to_float(from_float<T>(a * scale * first_weight_[pair]));
        b = to_float(from_float<T>(b * scale * second_weight_[pair]));
      }
      to[d] = from_float<T>(rotates_ ? a * cosine_[pair] - b * sine_[pair] : a);
      to[d + half_] = from_float<T>(rotates_ ? b * cosine_[pair] + a * sine_[pair] : b);
    }
  }

 private:
  /// The first number's place of the lane's pair number `pair`.
  __device__ static int place(int pair) {
    return static_cast<int>(threadIdx.x) % 32 + pair * 32;
  }

  int half_;
  bool normalises_, rotates_;
  float eps_;
  float first_weight_[kPairs], second_weight_[kPairs], cosine_[kPairs], sine_[kPairs];
};

}  // namespace kvcache::cuda
