/// @file
/// What depends on the machine: how long a decode pass takes in step 2, in step 3 with gather, and in step 3
/// through the block table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcache {

/// One figure in several turns.
struct Turns {
  double median = 0;  ///< of all
  double least = 0;   ///< of all
  double most = 0;    ///< of all
};
/// @param figures  [turns], at least one; of an even number the median is the upper of the two in the middle
Turns turns_of(std::vector<double> figures);

/// A load, and what its decode passes take.
struct DecodeTimes {
  std::int64_t sequences = 0;  ///< that decode together
  std::int64_t context = 0;    ///< tokens of each
  Turns flat_ms;               ///< step 2
  Turns gather_ms;             ///< step 3, copied together first
  Turns paged_ms;              ///< step 3, through the block table
  Turns gather_ratio;          ///< to step 2 in the same turn
  Turns paged_ratio;           ///< to step 2 in the same turn
};

/// What a machine took.
struct MachineTimes {
  std::string device;              ///< "cpu" (shape of the shipped model, f32) or "cuda" (Qwen3-0.6B, bf16)
  std::string processor;           ///< that computed: the CPU's or the GPU's name
  int threads = 0;                 ///< of the CPU
  std::string date;                ///< UTC, as in 2026-01-31
  std::vector<DecodeTimes> loads;  ///< a row each
};

/// Runs the steps in five turns; each turn runs all of them once, and a run gives its median pass.
/// @param device  "cpu" or "cuda"
/// @throws RunError if a step cannot run there.
MachineTimes decode_times(const std::string& device);

}  // namespace kvcache
