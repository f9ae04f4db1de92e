/// @file
/// See decode_slots.h.
#include "step3_paged/decode_slots.h"

#include "common/cuda/launch.cuh"

namespace kvcache::cuda {
namespace {

__global__ void decode_slots_kernel(SlotMap slots, const std::int32_t* context_len, std::int64_t sequences,
                                    std::int64_t rows, std::int64_t* slots_of_rows) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  slots_of_rows[row] = row < sequences ? slots.slot(row, context_len[row] - 1) : -1;
}

}  // namespace

void decode_slots(const SlotMap& slots, const std::int32_t* context_len, std::int64_t sequences,
                  std::int64_t rows, std::int64_t* slots_of_rows, cudaStream_t stream) {
  constexpr int kThreads = 128;
  launch("decode_slots", decode_slots_kernel, {static_cast<unsigned>(ceil_div(rows, kThreads)), kThreads},
         stream, slots, context_len, sequences, rows, slots_of_rows);
}

}  // namespace kvcache::cuda
