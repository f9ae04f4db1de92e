/// @file
/// What the managers of steps 2 to 4 say of a model too large to run here. They are bookkeeping and never see
/// a tensor, so a model's bytes per token are all they need.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/kv_manager.h"

namespace kvcache {

/// Sequences of these lengths, of ids that differ from each other.
std::vector<std::vector<std::int32_t>> sequences_of(std::span<const std::int64_t> lengths);

/// Plans and commits the prefill of one sequence after the other until one is refused. @return those
/// admitted.
std::int64_t admit_until_refused(KvManager& manager, std::span<const std::vector<std::int32_t>> sequences);

/// Step 2's account of sequences of these lengths, each in a reservation of `max_seq_len` positions.
KvMemoryReport flat_memory(std::span<const std::int64_t> lengths, std::int64_t max_seq_len,
                           std::int64_t bytes_per_token);
/// Step 3's account of them, in blocks of `block_size` tokens.
KvMemoryReport paged_memory(std::span<const std::int64_t> lengths, std::int64_t block_size,
                            std::int64_t bytes_per_token);

/// The most slots that step 3 leaves empty in one sequence, over all lengths from 1 to `longest`.
std::int64_t most_slots_wasted(std::int64_t longest, std::int64_t block_size);
/// Whether step 3 takes a block for token n + 1 exactly where n is a multiple of the block size, for n up to
/// `longest`.
bool grows_at_multiples_only(std::int64_t longest, std::int64_t block_size);

}  // namespace kvcache
