/// @file
/// A trace of traffic, served in virtual time by one or several engines of one step, and what comes of it.
/// Described in docs/replay.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/engine/scheduler.h"
#include "common/kv/kv_manager.h"
#include "common/replay/pass_cost.h"
#include "common/replay/traffic.h"

namespace kvcache {

/// Which of several engines gets a request.
enum class Router : std::uint8_t {
  round_robin,     ///< the next
  least_loaded,    ///< the one with the fewest tokens in hand
  longest_prefix,  ///< the one whose cache holds most of the prompt; of equal ones the least loaded
};

/// What an engine is made of.
struct EngineParts {
  std::unique_ptr<KvManager> manager;  ///< of the step
  /// How many tokens of a prompt the manager would find; nothing: none.
  std::function<std::int64_t(std::span<const std::int32_t>)> peek = {};
};

/// How a trace is served.
struct ReplaySettings {
  SchedulerSettings scheduler;           ///< of each engine
  PassCost cost;                         ///< of a pass
  Router router = Router::least_loaded;  ///< for several engines
  double rate = 1;                       ///< arrivals come so many times as fast
  bool serial = false;                   ///< a request comes when the one before has ended
  /// Gives up once more than a hundredth of all requests are refused or have their first token later than
  /// this after their arrival.
  std::optional<double> slo_ms = {};
};

/// Of many values: how they lie. A share of the values is at most its percentile, which is one of them.
struct Spread {
  std::int64_t count = 0;  ///< of values; without any, all else is 0
  double mean = 0;         ///< their sum through their count
  double median = 0;       ///< the 50th percentile
  double p90 = 0;          ///< the 90th
  double p99 = 0;          ///< the 99th
};

/// The spread of `values`.
[[nodiscard]] Spread spread_of(std::vector<double> values);

/// What has come of the requests at one moment.
struct ReplayFigures {
  double at_ms = 0;                   ///< the moment
  std::int64_t done = 0;              ///< requests that have all their outputs
  std::int64_t refused = 0;           ///< requests that no engine could ever hold
  std::int64_t waiting = 0;           ///< requests that wait to be admitted, or admitted again
  std::int64_t running = 0;           ///< all others that have come
  std::int64_t most_requests = 0;     ///< that came to one engine
  std::int64_t passes = 0;            ///< begun
  std::int64_t most_sequences = 0;    ///< of one pass of one engine
  double mean_sequences = 0;          ///< of the engines together, over the time
  double busy_share = 0;              ///< of the time, passes were computed; the mean of the engines
  std::int64_t generated_tokens = 0;  ///< outputs
  std::int64_t computed_tokens = 0;   ///< rows
  std::int64_t recomputed_tokens =
      0;                          ///< among them, of positions that were computed before: after preemptions
  std::int64_t input_tokens = 0;  ///< of the prompts that were admitted
  std::int64_t found_tokens = 0;  ///< among them, found when they were admitted first
  std::int64_t input_blocks = 0;  ///< full blocks of these prompts; none in step 2
  std::int64_t found_blocks = 0;  ///< among them, found when they were admitted first
  CountersReport counters;        ///< of the managers, and the schedulers' preemptions
  Spread first_token_ms;          ///< from the arrival, of requests that have one
  Spread output_token_ms;         ///< from one output to the next: a mean for each request that is done

  /// found_tokens as a share of input_tokens.
  double found_share() const;
  /// Full blocks that were found, as a share of input_blocks.
  double found_block_share() const;
  /// Outputs per second.
  double generated_per_s() const;
};

/// Memory of K and V, of all engines together, sampled once a virtual second; in a time of weeks, once in two
/// seconds, four and so on.
struct ReplayMemory {
  /// One sample.
  struct Sample {
    double at_ms = 0;                 ///< when
    std::int64_t reserved_bytes = 0;  ///< KvMemoryReport
    std::int64_t used_bytes = 0;      ///< KvMemoryReport
  };
  std::int64_t pool_bytes = 0;  ///< of all reservations or blocks
  std::vector<Sample> samples;  ///< in order
};

/// What came of a trace.
struct ReplayReport {
  ReplayFigures at_last_arrival;  ///< when the last request came
  ReplayFigures drained;          ///< when all had ended
  ReplayMemory memory;            ///< while they ran
  /// With ReplaySettings::slo_ms: whether at most a hundredth of the requests was refused or late. If not,
  /// the replay has given up, and the figures are of that moment.
  bool meets_slo = true;
};

/// Serves `traffic`.
/// @param engines  at least one
/// @param on_pass  called as each pass begins, with the number of passes so far
/// @throws InputError for impossible settings of the scheduler.
[[nodiscard]] ReplayReport replay(const Traffic& traffic, std::span<EngineParts> engines,
                                  const ReplaySettings& settings,
                                  const std::function<void(std::int64_t passes)>& on_pass = {});

}  // namespace kvcache
