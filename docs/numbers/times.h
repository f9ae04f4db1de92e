/// @file
/// What depends on the machine: how long a decode pass takes in step 2, in step 3 with gather, and in step 3
/// through the block table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcache {

/// A load and the medians of its decode passes, in ms.
struct DecodeTimes {
  std::int64_t sequences = 0;  ///< that decode together
  std::int64_t context = 0;    ///< tokens of each
  double flat_ms = 0;          ///< step 2
  double gather_ms = 0;        ///< step 3, copied together first
  double paged_ms = 0;         ///< step 3, through the block table
};

/// Runs the steps in turns, five times each, and takes the best of the medians: what disturbs a run makes it
/// slower.
/// @param device  "cpu" (shape of the shipped model, f32) or "cuda" (Qwen3-0.6B, bf16)
std::vector<DecodeTimes> decode_times(const std::string& device);

}  // namespace kvcache
