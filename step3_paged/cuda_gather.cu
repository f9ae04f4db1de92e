/// @file
/// See cuda_gather.h. Two rungs, as in common/cuda/scatter.cu: gather looks up the slot that it reads,
/// scatter the slot that it writes. gather_plain reaches 527 GB/s and gather_packs 2,856, where a copy
/// reaches 2,977 (65,536 tokens, 8 KV heads of 128, bf16, H100: docs/results/2026-11-28-h100-cuda.md). This
/// times them: build/bin/bench_kernels --benchmark_filter='cuda/(gather|copy)'
#include "common/cuda/move_rows.cuh"
#include "step3_paged/cuda_gather.h"

namespace kvcache::cuda {
namespace {

/// The slot that gathered row `row` comes from. Each row finds its sequence by bisection, so all threads are
/// equally busy, however different the lengths are.
__device__ std::int64_t slot_of(std::int64_t row, const SlotMap& slots, const GatheredKv& to) {
  std::int64_t sequence = 0, beyond = to.sequences;  // first_slot[sequence] <= row < first_slot[beyond]
  while (beyond - sequence > 1) {
    const std::int64_t middle = (sequence + beyond) / 2;
    (to.first_slot[middle] <= row ? sequence : beyond) = middle;
  }
  return slots.slot(sequence, static_cast<std::int32_t>(row - to.first_slot[sequence]));
}

/// Rung 1: one thread per number.
template <typename Bits>
__global__ void gather_plain(const Bits* pool, SlotMap slots, std::int64_t width, GatheredKv to,
                             Bits* gathered) {
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t row = number / width, col = number % width;
  if (row >= to.first_slot[to.sequences]) return;
  gathered[number] = pool[slot_of(row, slots, to) * width + col];
}

/// Rung 2: up to a warp per row, packs of 16 bytes, K and V together. Each thread walks the block table once,
/// not once per number, and has several loads in flight.
__global__ void __launch_bounds__(kMoveThreads)
    gather_packs(KvRows pool, SlotMap slots, unsigned packs, GatheredKv to) {
  const std::int64_t row = row_of_lane();
  if (row >= to.first_slot[to.sequences]) return;
  const std::int64_t slot = slot_of(row, slots, to);
  move_row(static_cast<const RowPack*>(pool.k) + slot * packs, static_cast<RowPack*>(to.k) + row * packs,
           static_cast<const RowPack*>(pool.v) + slot * packs, static_cast<RowPack*>(to.v) + row * packs,
           packs);
}

}  // namespace

void gather_kv(DType dtype, const KvRows& pool, const SlotMap& slots, std::int64_t width,
               const GatheredKv& to, cudaStream_t stream, RowKernels kernels) {
  const std::int64_t row_bytes = width * size_of(dtype);
  if (kernels == RowKernels::packs && are_packs({pool.k, pool.v, to.k, to.v}, {row_bytes})) {
    const std::int64_t packs = row_bytes / static_cast<std::int64_t>(sizeof(RowPack));
    launch("gather_packs", gather_packs, lanes_per_row(to.rows, packs), stream, pool, slots,
           static_cast<unsigned>(packs), to);
    return;
  }
  with_bits(dtype, [&]<typename Bits>() {
    const LaunchShape shape = thread_per_number(to.rows, width);
    launch("gather_plain", gather_plain<Bits>, shape, stream, static_cast<const Bits*>(pool.k), slots, width,
           to, static_cast<Bits*>(to.k));
    launch("gather_plain", gather_plain<Bits>, shape, stream, static_cast<const Bits*>(pool.v), slots, width,
           to, static_cast<Bits*>(to.v));
  });
}

}  // namespace kvcache::cuda
