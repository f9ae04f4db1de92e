/// @file
/// The three columns of a replay's report: the managers of steps 2, 3 and 4, each with the same memory.
#pragma once

#include <vector>

#include "common/cli/options.h"
#include "common/replay/replay.h"
#include "step4_prefix_cache/replay/replay_options.h"

namespace kvcache {

/// A step, and how its engines share the memory.
struct Column {
  Step step = Step::flat_cache;   ///< 2, 3 or 4
  std::int64_t reservations = 0;  ///< of step 2
  std::int64_t max_seq_len = 0;   ///< tokens in each of them
  std::int64_t blocks = 0;        ///< of steps 3 and 4
  std::int64_t host_blocks = 0;   ///< of step 4

  /// An engine of it, with an empty cache.
  EngineParts make_engine(const ReplayOptions& options) const;
};

/// The columns for engines with `pool_bytes` of K and V each.
/// @throws InputError for a pool of more blocks than ids can name.
std::vector<Column> columns_of(const ReplayOptions& options, const Traffic& traffic, std::int64_t pool_bytes);

}  // namespace kvcache
