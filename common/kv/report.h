/// @file
/// What a manager reports: the same fields in every step. Parts of the report of a run
/// (common/engine/report.h).
#pragma once

#include <cstdint>

namespace kvcache {

/// The memory of K and V, as a manager accounts for it. A run reports the moment of the greatest reservation.
struct KvMemoryReport {
  std::int64_t bytes_per_token = 0;  ///< K and V of one token, all layers: ModelConfig::kv_bytes_per_token
  std::int64_t reserved_bytes = 0;   ///< of reservations (step 2), or of blocks with references
  std::int64_t used_bytes = 0;       ///< of tokens stored; a shared token counts once
  std::int64_t pool_bytes = 0;       ///< of all reservations or blocks that there are
  /// The share of `reserved_bytes` that holds no token, in percent; 0 if nothing is reserved.
  double waste_percent() const {
    const std::int64_t wasted = reserved_bytes - used_bytes;
    return reserved_bytes == 0 ? 0
                               : 100.0 * static_cast<double>(wasted) / static_cast<double>(reserved_bytes);
  }
};

/// The arithmetic that a cache saves. A row is the K and V of one token.
struct KvRowsReport {
  std::int64_t computed = 0;    ///< K/V rows projected per layer over the run
  std::int64_t recomputed = 0;  ///< among them, rows of positions that were projected before
};

/// The blocks of a pool: free + cached + in_use = total. A run reports them after all sequences ended.
struct BlocksReport {
  std::int64_t block_size = 0;  ///< tokens per block
  std::int64_t total = 0;       ///< in the pool
  std::int64_t free = 0;        ///< no references, and nothing can be found in them
  std::int64_t cached = 0;      ///< no references, but a prompt can still hit them
  std::int64_t in_use = 0;      ///< sequences or the pinned prefix refer to them
};

/// How often things happened in a run.
struct CountersReport {
  std::int64_t prefix_hits = 0;     ///< blocks
  std::int64_t evictions = 0;       ///< cached blocks that were taken for something else
  std::int64_t preemptions = 0;     ///< sequences whose blocks were taken away; the scheduler counts them
  std::int64_t copies = 0;          ///< blocks copied on write
  std::int64_t swaps_out = 0;       ///< blocks moved to the host tier
  std::int64_t swaps_in = 0;        ///< blocks brought back from it
  std::int64_t gathered_bytes = 0;  ///< of K and V, gathered for attention over the run
};

}  // namespace kvcache
