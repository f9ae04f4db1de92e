/// @file
/// Exercise 5, stated in exercise5_trim.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "step3_paged/block_pool.h"

namespace kvcache {

/// What PagedManager keeps of one sequence.
struct BlockTable {
  std::vector<std::int32_t> blocks;  ///< [ceil(length / block_size)] in order of position
  std::int64_t length = 0;           ///< tokens stored
};

/// Forgets the last `tokens` tokens of a sequence and gives the blocks that it no longer needs back to
/// `pool`. If the sequence grows again before another takes a block, it gets the same blocks.
/// @throws std::invalid_argument if `tokens` is negative or more than are stored; then nothing has changed.
void trim(BlockTable& table, std::int64_t tokens, std::int64_t block_size, BlockPool& pool);

}  // namespace kvcache
