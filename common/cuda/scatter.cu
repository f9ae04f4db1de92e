/// @file
/// See scatter.h. Two rungs: scatter_plain reaches 841 GB/s and scatter_packs 2,867, where a copy reaches
/// 2,977 (65,536 tokens, 8 KV heads of 128, bf16, H100: docs/results/2026-11-28-h100-cuda.md). This times
/// them: build/bin/bench_kernels --benchmark_filter='cuda/(scatter|copy)'
#include "common/cuda/move_rows.cuh"
#include "common/cuda/scatter.h"

namespace kvcache::cuda {
namespace {

template <typename Bits>
KeepToItself<Bits> keep_to_itself(DType dtype) {
  std::uint32_t exponent = 0;
  with_number_type(dtype, [&]<typename T>() { exponent = kExponentBits<T>; });
  return {static_cast<Bits>(exponent)};
}

/// Rung 1: one thread per number. It finds its row by a division and loads two or four bytes of K and of V.
template <typename Bits>
__global__ void scatter_plain(NewKv rows, std::int64_t width, const std::int64_t* slots, Bits* k_pool,
                              Bits* v_pool, KeepToItself<Bits> keep) {
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t row = number / width, col = number % width;
  if (row >= rows.tokens || slots[row] < 0) return;
  Bits k = static_cast<const Bits*>(rows.k)[row * rows.k_stride + col];
  Bits v = static_cast<const Bits*>(rows.v)[row * rows.v_stride + col];
  keep(k, v);
  k_pool[slots[row] * width + col] = k;
  v_pool[slots[row] * width + col] = v;
}

/// Rung 2: up to a warp per row, packs of 16 bytes, K and V together. There is no division, the slot is read
/// once for both, and each thread has several loads in flight.
/// @param rows  with strides in packs
template <typename Bits>
__global__ void __launch_bounds__(kMoveThreads)
    scatter_packs(NewKv rows, unsigned packs, const std::int64_t* slots, RowPack* k_pool, RowPack* v_pool,
                  KeepToItself<Bits> keep) {
  start_next_kernel();
  wait_for_earlier_kernels();
  const std::int64_t row = row_of_lane();
  if (row >= rows.tokens) return;
  const std::int64_t slot = slots[row];
  if (slot < 0) return;
  move_row(static_cast<const RowPack*>(rows.k) + row * rows.k_stride, k_pool + slot * packs,
           static_cast<const RowPack*>(rows.v) + row * rows.v_stride, v_pool + slot * packs, packs, keep);
}

}  // namespace

void scatter_kv(DType dtype, const NewKv& rows, std::int64_t width, const std::int64_t* slots, void* k_pool,
                void* v_pool, cudaStream_t stream, RowKernels kernels) {
  const std::int64_t bytes = size_of(dtype);
  if (kernels == RowKernels::packs &&
      are_packs({rows.k, rows.v, k_pool, v_pool},
                {width * bytes, rows.k_stride * bytes, rows.v_stride * bytes})) {
    const std::int64_t numbers = static_cast<std::int64_t>(sizeof(RowPack)) / bytes;  // of a pack
    const NewKv counted{rows.k, rows.k_stride / numbers, rows.v, rows.v_stride / numbers, rows.tokens};
    with_bits(dtype, [&]<typename Bits>() {
      LaunchShape shape = lanes_per_row(rows.tokens, width / numbers);
      shape.overlaps = true;
      launch("scatter_packs", scatter_packs<Bits>, shape, stream, counted,
             static_cast<unsigned>(width / numbers), slots, static_cast<RowPack*>(k_pool),
             static_cast<RowPack*>(v_pool), keep_to_itself<Bits>(dtype));
    });
    return;
  }
  with_bits(dtype, [&]<typename Bits>() {
    launch("scatter_plain", scatter_plain<Bits>, thread_per_number(rows.tokens, width), stream, rows, width,
           slots, static_cast<Bits*>(k_pool), static_cast<Bits*>(v_pool), keep_to_itself<Bits>(dtype));
  });
}

}  // namespace kvcache::cuda
