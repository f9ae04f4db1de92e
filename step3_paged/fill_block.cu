/// @file
/// See fill_block.h.
#include "step3_paged/fill_block.h"

#include "common/cuda/move_rows.cuh"

namespace kvcache::cuda {
namespace {

template <typename Bits>
__global__ void fill_block_kernel(Bits bits, Bits* block, std::int64_t numbers, std::int64_t layer_distance) {
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (number < numbers) block[blockIdx.y * layer_distance + number] = bits;
}

}  // namespace

void fill_block(DType dtype, std::uint32_t bits, void* block, std::int64_t numbers, std::int64_t layers,
                std::int64_t layer_distance, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const dim3 grid(static_cast<unsigned>(ceil_div(numbers, kThreads)), static_cast<unsigned>(layers));
  with_bits(dtype, [&]<typename Bits>() {
    launch("fill_block", fill_block_kernel<Bits>, {grid, kThreads}, stream, static_cast<Bits>(bits),
           static_cast<Bits*>(block), numbers, layer_distance);
  });
}

}  // namespace kvcache::cuda
