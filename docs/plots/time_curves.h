/// @file
/// What the pictures show of time, measured on the machine at hand: the steps' own caches and the loop that
/// every request goes through, in one process and on one model. Chapters: step 1 to step 4.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/cli/program.h"

namespace kvcache {

/// What to measure. Everything is measured in turns: each turn goes once over all points and all ways of
/// doing the same, so that what slows the machine down for a while spoils a turn and not a curve.
struct TimingPlan {
  std::string weights;                    ///< a shape's name, as for --random-weights
  std::int64_t turns = 0;                 ///< at least 1
  std::vector<std::int64_t> contexts;     ///< tokens, of decode passes; each more than 16
  std::int64_t prompt = 0;                ///< tokens before the generation that is timed as a whole
  std::int64_t generated = 0;             ///< tokens of it; 8 at least
  std::vector<std::int64_t> prefixes;     ///< tokens that two prompts begin with
  std::int64_t own = 0;                   ///< tokens of each prompt after the prefix
  std::vector<std::int64_t> block_sizes;  ///< that are compared
  std::int64_t sequences = 0;             ///< of the passes that compare them
  std::int64_t context = 0;               ///< tokens of each of these
};
/// Shape of the shipped model on the CPU, Qwen3-0.6B on a GPU.
TimingPlan timing_plan(DeviceChoice device);

/// Of several turns.
struct Spread {
  std::vector<double> median;  ///< [points]
  std::vector<double> least;   ///< [points]
  std::vector<double> most;    ///< [points]
};

/// A decode pass of one sequence against its context, in ms. Steps 3 and 4 read K and V in their blocks; step
/// 3 copies them together first in `gather`.
struct DecodeCurves {
  std::vector<std::int64_t> context;  ///< [points] tokens, the new one among them
  Spread no_cache;                    ///< step 1
  Spread flat;                        ///< step 2
  Spread gather;                      ///< step 3, copied together first
  Spread paged;                       ///< step 3
  Spread shared;                      ///< step 4
};

/// ms since a generation began until its first token and every eighth.
struct GenerationCurves {
  std::int64_t prompt = 0;           ///< tokens
  std::vector<std::int64_t> tokens;  ///< [points] generated so far
  Spread no_cache;                   ///< step 1
  Spread flat;                       ///< step 2
  Spread paged;                      ///< step 3
  Spread shared;                     ///< step 4
};

/// ms to the first token of two prompts with one beginning, one after the other in step 4: the first finds
/// nothing, the second the blocks of the first.
struct FirstTokenCurves {
  std::int64_t own = 0;              ///< tokens of each prompt after the prefix
  std::vector<std::int64_t> prefix;  ///< [points] tokens in common
  std::vector<std::int64_t> cached;  ///< [points] tokens found by the second prompt
  Spread cold;                       ///< the first prompt
  Spread warm;                       ///< the second
};

/// A decode pass of step 3 by block size, in ms, and as a ratio to step 2's pass of the same turn.
struct BlockSizeTimes {
  std::int64_t sequences = 0;            ///< that decode together
  std::int64_t context = 0;              ///< tokens of each
  std::vector<std::int64_t> block_size;  ///< [points]
  Spread ms;                             ///< of a pass
  Spread ratio;                          ///< to step 2's pass
};

/// All of these.
struct TimeCurves {
  DecodeCurves decode;           ///< against the context
  GenerationCurves generation;   ///< from first to last token
  FirstTokenCurves first_token;  ///< against the prefix
  BlockSizeTimes block_sizes;    ///< against the block size
};

/// Loads the plan's model on `device` in its default type, for time_curves().
/// @throws RunError when there is no such device.
Program load_for_timing(const TimingPlan& plan, DeviceChoice device);
/// Runs everything. `program` is from load_for_timing(); its requests and options are the measurement's.
TimeCurves time_curves(Program& program, const TimingPlan& plan);

}  // namespace kvcache
