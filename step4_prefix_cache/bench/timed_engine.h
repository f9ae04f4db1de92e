/// @file
/// The serving engine of step 4 with a model, for the pages about replays: what its passes cost, and what
/// comes of a trace of traffic that is served for real. `./steps serve-bench --cost` and `--traffic` run it.
#pragma once

#include <string>
#include <vector>

#include "common/cli/program.h"
#include "common/engine/scheduler.h"
#include "common/replay/pass_cost.h"
#include "common/replay/replay.h"
#include "common/replay/traffic.h"

namespace kvcache {

/// Times passes of many kinds: one sequence to many, prompts alone and beside sequences that decode, short
/// contexts and long ones.
/// @param rows  of a pass at most; the cost is right up to there
[[nodiscard]] std::vector<TimedPass> timed_passes(Program& program, std::int64_t rows);

/// What came of a trace that was served for real.
struct ServedTraffic {
  double seconds = 0;             ///< until the last request had ended
  std::vector<TimedPass> passes;  ///< in their order
  std::int64_t found = 0;         ///< tokens of prompts found when they were admitted
  CountersReport counters;        ///< of the manager, and the scheduler's preemptions
  Spread first_token_ms;          ///< from the arrival
  Spread output_token_ms;         ///< from one output to the next, a mean for each request
};

/// Tokens that a block needs at least, so that different blocks of a trace can have different ids.
inline constexpr std::int64_t kLeastBlock = 3;

/// Serves `traffic`: each request comes at its time, in wall time.
/// @param trace  its name, for messages
/// @throws InputError for a request that the model or the pool cannot hold.
[[nodiscard]] ServedTraffic serve_traffic(Program& program, const Traffic& traffic, const std::string& trace,
                                          const SchedulerSettings& settings);

}  // namespace kvcache
