/// @file
/// What attention on tensor cores computes: `WarpQueries`, some queries over tiles of keys and values. For
/// attention_mma_decode.cu and attention_mma_prefill.cu. Chapter: step3_paged/README.md.
#pragma once

#include "common/cuda/attention_mma.cuh"

namespace kvcache::cuda {

/// Queries in the registers of one warp, with their running softmax. Each query is one row of the tiles of
/// scores and sums.
/// @param Halves  of the 16 rows of a matrix instruction that are used: 1 for up to 8 queries, else 2
template <typename T, int D, int Halves = 2>
struct WarpQueries {
  std::uint32_t q[D / 16][4];  ///< the first factor of the matrix instruction, 16 columns each
  float largest[Halves];       ///< scaled score, of the lane's rows
  float weight[Halves];        ///< sum over the lane's columns; after add_up_weights over the row
  float sum[D / 8][4];         ///< sums of weighted values, 8 columns each; 0 of rows that are not used

  /// Forgets all keys.
  __device__ void start_over() {
#pragma unroll
    for (int row = 0; row < Halves; ++row) {
      largest[row] = -INFINITY;
      weight[row] = 0;
    }
#pragma unroll
    for (auto& numbers : sum) {
#pragma unroll
      for (float& number : numbers) number = 0;
    }
  }

  /// @param rows  the lane's queries [D]
  __device__ void load(const T* const (&rows)[Halves]) {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const T* row = rows[n % Halves];  // of rows that are not used, the numbers do not matter
        q[step][n] = *reinterpret_cast<const std::uint32_t*>(row + step * 16 + n / 2 * 8 + column);
      }
    }
  }

  /// scores = q K^T. @param keys  [Keys, D] in shared memory
  template <int Keys>
  __device__ void score(std::uint32_t keys, float (&scores)[Keys / 8][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Matrices 0 and 1: keys 0 to 7, numbers 0 to 7 and 8 to 15 of the step; matrices 2 and 3: keys 8 to 15.
    const std::uint32_t lane_row = keys + place<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n) {
#pragma unroll
      for (float& number : scores[n]) number = 0;
    }
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int n = 0; n < Keys / 16; ++n) {
        std::uint32_t k[4];
        load_matrices(k, (lane_row ^ step * 32) + n * 16 * D * 2);
        multiply_add<T>(scores[2 * n], q[step], k[0], k[1]);
        multiply_add<T>(scores[2 * n + 1], q[step], k[2], k[3]);
      }
    }
  }

  /// Scores of keys that a query does not see become -infinity. @param seen  keys of the tile that the lane's
  /// rows see
  template <int Keys>
  __device__ static void mask(float (&scores)[Keys / 8][4], const int (&seen)[Halves]) {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n) {
#pragma unroll
      for (int m = 0; m < 2 * Halves; ++m) {
        if (n * 8 + column + m % 2 >= seen[m / 2]) scores[n][m] = -INFINITY;
      }
    }
  }

  /// Turns scores into weights 2^(score * scale - largest) and scales the sums so far down to the new largest
  /// score. A row must see a key of its first tile.
  template <int Keys>
  __device__ void weigh(float (&scores)[Keys / 8][4], float scale) {
#pragma unroll
    for (int row = 0; row < Halves; ++row) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < Keys / 8; ++n) top = fmaxf(top, fmaxf(scores[n][2 * row], scores[n][2 * row + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0U, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0U, top, 2));
      top = fmaxf(largest[row], top * scale);
      const float keep = exp2_fast(largest[row] - top);
      largest[row] = top;
      weight[row] *= keep;
#pragma unroll
      for (int n = 0; n < Keys / 8; ++n) {
#pragma unroll
        for (int m = 2 * row; m < 2 * row + 2; ++m) {
          scores[n][m] = exp2_fast(fmaf(scores[n][m], scale, -top));
          weight[row] += scores[n][m];
        }
      }
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        sum[n][2 * row] *= keep;
        sum[n][2 * row + 1] *= keep;
      }
    }
  }

  /// sum += weights V. The weights, a result, already have the layout of a left factor.
  /// @param values  [Keys, D] in shared memory
  template <int Keys>
  __device__ void add_values(const float (&weights)[Keys / 8][4], std::uint32_t values) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Matrices 0 and 1: keys 0 to 7 and 8 to 15 of the first pack; matrices 2 and 3: of the second.
    const std::uint32_t lane_row = values + place<D>(lane % 16, lane / 16);
#pragma unroll
    for (int n = 0; n < Keys / 16; ++n) {
      std::uint32_t left[4] = {};
#pragma unroll
      for (int row = 0; row < Halves; ++row) {
        left[row] = pack_two<T>(weights[2 * n][2 * row], weights[2 * n][2 * row + 1]);
        left[row + 2] = pack_two<T>(weights[2 * n + 1][2 * row], weights[2 * n + 1][2 * row + 1]);
      }
#pragma unroll
      for (int two = 0; two < D / 16; ++two) {
        std::uint32_t v[4];
        load_matrices_transposed(v, (lane_row ^ two * 32) + n * 16 * D * 2);
        multiply_add<T>(sum[2 * two], left, v[0], v[1]);
        multiply_add<T>(sum[2 * two + 1], left, v[2], v[3]);
      }
    }
  }

  /// Makes `weight` the sum over the whole row. Called once, after the last tile.
  __device__ void add_up_weights() {
#pragma unroll
    for (float& number : weight) {
      number += __shfl_xor_sync(~0U, number, 1);
      number += __shfl_xor_sync(~0U, number, 2);
    }
  }
};

}  // namespace kvcache::cuda
