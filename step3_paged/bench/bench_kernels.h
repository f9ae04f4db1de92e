/// @file
/// The two halves of bench_kernels, by device.
#pragma once

namespace kvcache {

/// Registers the benchmarks cpu/...
void add_cpu_benchmarks();

namespace cuda {

/// Registers the benchmarks cuda/... on the first GPU.
/// @throws RunError if there is none.
void add_cuda_benchmarks();

}  // namespace cuda
}  // namespace kvcache
