/// @file
/// Moving K and V rows within the GPU's memory: what scatter (scatter.cu), gather
/// (step3_paged/cuda_gather.cu) and attention that stores its own row (attention_mma_decode.cu) share.
/// Numbers are moved as bits, so only their size matters. Chapter: step3_paged/README.md.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>

#include "common/cuda/launch.cuh"

namespace kvcache::cuda {

/// 16 bytes of a row: as much as one thread can load at once.
using RowPack = uint4;

/// Calls `function.operator()<Bits>()` with an unsigned type as large as a number of `dtype`.
template <typename Function>
void with_bits(DType dtype, Function function) {
  if (size_of(dtype) == 4) {
    function.template operator()<std::uint32_t>();
  } else {
    function.template operator()<std::uint16_t>();
  }
}

/// Whether rows can be moved as packs: all addresses, and all lengths and distances of rows in bytes, are
/// multiples of 16.
inline bool are_packs(std::initializer_list<const void*> addresses,
                      std::initializer_list<std::int64_t> bytes) {
  constexpr std::int64_t kBytes = sizeof(RowPack);
  return std::ranges::all_of(
             addresses, [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % kBytes == 0; }) &&
         std::ranges::all_of(bytes, [](std::int64_t count) { return count % kBytes == 0; });
}

/// Threads of a thread block that moves rows.
constexpr int kMoveThreads = 256;

/// The plain kernels: a thread for each number of `rows` rows.
inline LaunchShape thread_per_number(std::int64_t rows, std::int64_t width) {
  return {static_cast<unsigned>(ceil_div(rows * width, kMoveThreads)), kMoveThreads};
}

/// The fast kernels: threadIdx.x counts the lanes that move one row together, at most a warp and at most one
/// per pack, rounded up to a power of two; threadIdx.y counts the rows of a thread block.
inline LaunchShape lanes_per_row(std::int64_t rows, std::int64_t packs) {
  const auto lanes = std::bit_ceil(static_cast<unsigned>(std::min<std::int64_t>(packs, 32)));
  const unsigned rows_per_block = kMoveThreads / lanes;
  return {static_cast<unsigned>(ceil_div(rows, rows_per_block)), dim3(lanes, rows_per_block)};
}

/// The row that this thread helps to move, in a launch of `lanes_per_row`.
__device__ inline std::int64_t row_of_lane() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}

/// For `move_row`: changes neither K nor V.
struct AsTheyAre {
  __device__ void operator()(RowPack&, RowPack&) const {}  ///< of K, of V
};

/// The exponent's bits of a number; all are set in NaN and infinity alone.
template <typename T>
constexpr std::uint32_t kExponentBits = std::is_same_v<T, float>    ? 0x7F80'0000
                                        : std::is_same_v<T, __half> ? 0x7C00
                                                                    : 0x7F80;

/// Keeps a number of V that is not finite from spreading: V is stored as 0 and K as NaN. A prefill kernel
/// multiplies every V of its tile, that of a later token by the weight 0, and 0 times NaN is NaN. So a
/// damaged token would damage the tokens before it, and the requests that share their blocks. Stored like
/// this, it damages through its scores the tokens that attend to it, and no others.
template <typename Bits>
struct KeepToItself {
  Bits exponent;  ///< kExponentBits of the type

  /// One number of K and the number of V at its place.
  __device__ void operator()(Bits& k, Bits& v) const {
    if ((v & exponent) != exponent) return;
    k = static_cast<Bits>(~Bits{0});
    v = 0;
  }
  /// The same for all numbers of two packs.
  __device__ void operator()(RowPack& k, RowPack& v) const {
    constexpr int kNumbers = sizeof(RowPack) / sizeof(Bits);
    Bits* const k_numbers = reinterpret_cast<Bits*>(&k);
    Bits* const v_numbers = reinterpret_cast<Bits*>(&v);
#pragma unroll
    for (int n = 0; n < kNumbers; ++n) (*this)(k_numbers[n], v_numbers[n]);
  }
};

/// Moves one row of K and one of V, [packs] each. A lane starts all loads of a round, eight of 16 bytes,
/// before it waits for the first: the number of bytes in flight keeps the memory busy.
/// @param change  called with each pack of K and the pack of V at the same place, before both are stored
template <typename Change = AsTheyAre>
__device__ inline void move_row(const RowPack* k_from, RowPack* k_to, const RowPack* v_from, RowPack* v_to,
                                unsigned packs, Change change = {}) {
  constexpr unsigned kPacks = 4;  // of K and of V; a row of 1,024 bf16 numbers is one round of a warp
  for (unsigned first = threadIdx.x; first < packs; first += kPacks * blockDim.x) {
    RowPack k[kPacks], v[kPacks];
#pragma unroll
    for (unsigned n = 0; n < kPacks; ++n) {
      const unsigned pack = first + n * blockDim.x;
      if (pack >= packs) continue;
      k[n] = k_from[pack];
      v[n] = v_from[pack];
    }
#pragma unroll
    for (unsigned n = 0; n < kPacks; ++n) {
      const unsigned pack = first + n * blockDim.x;
      if (pack >= packs) continue;
      change(k[n], v[n]);
      k_to[pack] = k[n];
      v_to[pack] = v[n];
    }
  }
}

}  // namespace kvcache::cuda
