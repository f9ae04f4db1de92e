/// @file
/// The heads of q and k in the registers of a warp, where they are normalised and rotated. The kernel of
/// `rotate_and_store` (rotate_and_store.cu) and attention (attention_mma_decode.cu) share it, so both give
/// the same bits. Chapter: step3_paged/README.md.
#pragma once

#include <cstdint>

#include "common/base/matrix.h"
#include "common/cuda/attention_work.h"
#include "common/cuda/launch.cuh"

namespace kvcache::cuda {

/// Two neighbouring numbers, which a thread moves at once.
template <typename T>
struct alignas(2 * sizeof(T)) Two {
  T numbers[2];  ///< in the order of memory
};
/// The two numbers at an address that is aligned to both.
template <typename T>
__device__ Two<T>& two_at(T* numbers) {
  return *reinterpret_cast<Two<T>*>(numbers);
}
/// The same, to be read.
template <typename T>
__device__ const Two<T>& two_at(const T* numbers) {
  return *reinterpret_cast<const Two<T>*>(numbers);
}

/// Makes heads of up to Most numbers ready, one after the other: the norm, then the rotation of one row. Lane
/// l of a warp holds the pairs (d, d + head_dim / 2) with d = 2 l, 2 l + 1, 2 l + 64, ... Every number is
/// rounded to T after the norm and after the rotation. The weights of the norm and the angles are loaded by
/// the constructor, so a kernel can have them before it waits for the heads.
template <typename T, int Most>
class WarpHeads {
 public:
  static constexpr int kTwos = (Most / 4 + 31) / 32;  ///< times two pairs that a lane holds

  /// @param head_dim  a multiple of 4
  /// @param weight    [head_dim] of the norm; nullptr: none
  __device__ WarpHeads(int head_dim, const T* weight, float eps, const Rotation& rotation, std::int64_t row)
      : half_(head_dim / 2),
        normalises_(weight != nullptr),
        rotates_(rotation.cosines != nullptr),
        eps_(eps) {
#pragma unroll
    for (int n = 0; n < kTwos; ++n) {
      const int d = place(n);
      if (d >= half_) continue;
      if (normalises_) {
        first_weight_[n] = two_at(weight + d);
        second_weight_[n] = two_at(weight + d + half_);
      }
      if (rotates_) {
        cosine_[n] = two_at(rotation.cosines + row * half_ + d);
        sine_[n] = two_at(rotation.sines + row * half_ + d);
      }
    }
  }

  /// @param from, to  [head_dim]; may be the same
  __device__ void make_ready(const T* from, T* to) const {
    Two<T> first[kTwos] = {}, second[kTwos] = {};
    float squares = 0;
#pragma unroll
    for (int n = 0; n < kTwos; ++n) {
      const int d = place(n);
      if (d >= half_) continue;
      first[n] = two_at(from + d);
      second[n] = two_at(from + d + half_);
    }
#pragma unroll
    for (int n = 0; n < kTwos; ++n) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const float a = to_float(first[n].numbers[m]), b = to_float(second[n].numbers[m]);
        squares = fmaf(a, a, squares);
        squares = fmaf(b, b, squares);
      }
    }
    const float scale =
        normalises_ ? 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(2 * half_) + eps_) : 1.0F;
#pragma unroll
    for (int n = 0; n < kTwos; ++n) {
      const int d = place(n);
      if (d >= half_) continue;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        float a = to_float(first[n].numbers[m]), b = to_float(second[n].numbers[m]);
        if (normalises_) {
          a = to_float(from_float<T>(a * scale * to_float(first_weight_[n].numbers[m])));
          b = to_float(from_float<T>(b * scale * to_float(second_weight_[n].numbers[m])));
        }
        const float cosine = cosine_[n].numbers[m], sine = sine_[n].numbers[m];
        first[n].numbers[m] = from_float<T>(rotates_ ? a * cosine - b * sine : a);
        second[n].numbers[m] = from_float<T>(rotates_ ? b * cosine + a * sine : b);
      }
      two_at(to + d) = first[n];
      two_at(to + d + half_) = second[n];
    }
  }

 private:
  /// The first of the lane's two neighbours number `n`.
  __device__ static int place(int n) {
    return static_cast<int>(threadIdx.x) % 32 * 2 + n * 64;
  }

  int half_;
  bool normalises_, rotates_;
  float eps_;
  Two<T> first_weight_[kTwos], second_weight_[kTwos];
  Two<float> cosine_[kTwos], sine_[kTwos];
};

}  // namespace kvcache::cuda
