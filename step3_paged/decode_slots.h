/// @file
/// The slot mapping of a decode pass, computed on the GPU from the block table that attention needs anyway. A
/// prefill's slots are sent with its plan. Chapter: step3_paged/README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/cuda/attention.h"

namespace kvcache::cuda {

/// Each sequence has one new token, its last: slots_of_rows[s] becomes the slot of position
/// context_len[s] - 1. Rows from `sequences` on are padding and become -1.
/// @param slots          through a block table
/// @param context_len    [sequences] on the GPU, each 1 or more
/// @param slots_of_rows  [rows] on the GPU
void decode_slots(const SlotMap& slots, const std::int32_t* context_len, std::int64_t sequences,
                  std::int64_t rows, std::int64_t* slots_of_rows, cudaStream_t stream);

}  // namespace kvcache::cuda
