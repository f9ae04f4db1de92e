/// @file
/// See kv_rows.h. A ladder of two kernels.
#include "common/cuda/kv_rows.h"
#include "common/cuda/move_rows.cuh"

namespace kvcache::cuda {
namespace {

/// Rung 1: one thread per number. It finds its row by a division and loads two or four bytes.
template <typename Bits>
__global__ void scatter_numbers(const Bits* rows, std::int64_t stride, std::int64_t tokens,
                                std::int64_t width, const std::int64_t* slots, Bits* pool) {
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t row = number / width, col = number % width;
  if (row >= tokens || slots[row] < 0) return;
  pool[slots[row] * width + col] = rows[row * stride + col];
}

/// Rung 2: up to a warp per row, packs of 16 bytes, K and V together. No division is left, the slot is read
/// once for both, and each thread has several loads in flight.
/// @param rows  its strides count packs
__global__ void __launch_bounds__(kMoveThreads)
    scatter_packs(NewKv rows, unsigned packs, const std::int64_t* slots, RowPack* k_pool, RowPack* v_pool) {
  const std::int64_t row = row_of_lane();
  if (row >= rows.tokens) return;
  const std::int64_t slot = slots[row];
  if (slot < 0) return;
  move_row(static_cast<const RowPack*>(rows.k) + row * rows.k_stride, k_pool + slot * packs,
           static_cast<const RowPack*>(rows.v) + row * rows.v_stride, v_pool + slot * packs, packs);
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
    launch("scatter_packs", scatter_packs, lanes_per_row(rows.tokens, width / numbers), stream, counted,
           static_cast<unsigned>(width / numbers), slots, static_cast<RowPack*>(k_pool),
           static_cast<RowPack*>(v_pool));
    return;
  }
  with_bits(dtype, [&]<typename Bits>() {
    const LaunchShape shape = thread_per_number(rows.tokens, width);
    launch("scatter_numbers", scatter_numbers<Bits>, shape, stream, static_cast<const Bits*>(rows.k),
           rows.k_stride, rows.tokens, width, slots, static_cast<Bits*>(k_pool));
    launch("scatter_numbers", scatter_numbers<Bits>, shape, stream, static_cast<const Bits*>(rows.v),
           rows.v_stride, rows.tokens, width, slots, static_cast<Bits*>(v_pool));
  });
}

}  // namespace kvcache::cuda
