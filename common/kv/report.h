/// @file
/// What a manager says of itself: the same fields in every step. Parts of the report of a run
/// (common/engine/report.h).
#pragma once

#include <cstdint>

namespace kvcache {

/// The memory of K and V, as a manager accounts for it. A run reports the moment of the greatest reservation.
struct KvMemoryReport {
  std::int64_t bytes_per_token = 0;  ///< K and V of one token, all layers
  std::int64_t reserved_bytes = 0;   ///< given out: reservations, or blocks that are referred to
  std::int64_t used_bytes = 0;       ///< of tokens stored; shared ones once
  std::int64_t pool_bytes = 0;       ///< all there is to give out
  /// Of what is reserved, that which holds nothing; 0 of 0 is 0.
  double waste_percent() const {
    const std::int64_t wasted = reserved_bytes - used_bytes;
    return reserved_bytes == 0 ? 0
                               : 100.0 * static_cast<double>(wasted) / static_cast<double>(reserved_bytes);
  }
};

/// The arithmetic that a cache saves. A row is the K and V of one token.
struct KvRowsReport {
  std::int64_t computed = 0;    ///< K/V rows projected per layer over the run
  std::int64_t recomputed = 0;  ///< those of positions already projected before
};

/// The blocks of a pool: free + cached + in_use = total. A run reports them after all sequences ended.
struct BlocksReport {
  std::int64_t block_size = 0;  ///< tokens per block
  std::int64_t total = 0;       ///< in the pool
  std::int64_t free = 0;        ///< without content that could be found
  std::int64_t cached = 0;      ///< that no sequence refers to and a prompt could still hit
  std::int64_t in_use = 0;      ///< that sequences or pins refer to
};

/// How often things happened in a run.
struct CountersReport {
  std::int64_t prefix_hits = 0;     ///< blocks
  std::int64_t evictions = 0;       ///< cached blocks that were given to another use
  std::int64_t preemptions = 0;     ///< sequences that gave way and were computed again
  std::int64_t copies = 0;          ///< blocks copied on write
  std::int64_t swaps_out = 0;       ///< blocks moved to the host tier
  std::int64_t swaps_in = 0;        ///< blocks brought back from it
  std::int64_t gathered_bytes = 0;  ///< of K and V, copied together for attention over the run
};

}  // namespace kvcache
