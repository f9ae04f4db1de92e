/// @file
/// The two halves of bench_kernels, by device.
#pragma once

#include <cstdint>

#include "common/base/attention_shape.h"

namespace kvcache {

inline constexpr AttentionShape kBenchHeads{16, 8, 128};  ///< those of Qwen3-0.6B
inline constexpr std::int64_t kBenchKvWidth =
    kBenchHeads.kv_heads * kBenchHeads.head_dim;  ///< numbers of a K or V row
inline constexpr std::int64_t kBenchQWidth =
    kBenchHeads.heads * kBenchHeads.head_dim;        ///< numbers of a row of q, or of attention's result
inline constexpr std::int64_t kBenchBlockSize = 16;  ///< tokens of a block in attention

/// Operations that the prefill of one sequence must compute: for each query head and each pair of a position
/// and one up to it, head_dim multiplications and additions for the score and as many for the value.
constexpr double prefill_operations(std::int64_t context) {
  const auto n = static_cast<double>(context);
  return n * (n + 1) / 2 * static_cast<double>(4 * kBenchQWidth);
}

/// Registers the benchmarks cpu/...
void add_cpu_benchmarks();

namespace cuda {

/// Registers the benchmarks cuda/... on the first GPU.
/// @throws RunError if there is none.
void add_cuda_benchmarks();

}  // namespace cuda
}  // namespace kvcache
