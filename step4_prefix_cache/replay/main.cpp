/// @file
/// The program replay: an hour of traffic in the managers of steps 2, 3 and 4, in virtual time. Chapter:
/// docs/replay.md.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/error.h"
#include "common/cli/run_main.h"
#include "step4_prefix_cache/replay/columns.h"
#include "step4_prefix_cache/replay/print_replay.h"
#include "step4_prefix_cache/replay/replay_options.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

/// Replays with `engines` engines of a step. Says on stderr how long it took.
ReplayReport replay_column(const Column& column, const ReplayOptions& options, const Traffic& traffic,
                           std::int64_t count, ReplaySettings settings) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<EngineParts> engines;
  for (std::int64_t n = 0; n < count; ++n) engines.push_back(column.make_engine(options));
  settings.scheduler = {.max_batch_tokens = options.max_batch_tokens, .max_sequences = options.max_sequences};
  settings.cost = options.pass_cost();
  settings.router = options.router;
  settings.serial = options.serial;
  settings.slo_ms = options.slo_ms;
  ReplayReport report = replay(traffic, engines, settings);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  fmt::print(stderr, "{}, {} {}: {} passes in {:.1f} s of real time\n", name_of(column.step), count,
             count == 1 ? "engine" : "engines", report.drained.passes, seconds.count());
  return report;
}

std::vector<ReplayedColumn> replay_columns(const ReplayOptions& options, const Traffic& traffic,
                                           std::int64_t pool_bytes, double rate) {
  ReplaySettings settings;
  settings.rate = rate;
  std::vector<ReplayedColumn> columns;
  for (const Column& column : columns_of(options, traffic, pool_bytes))
    columns.push_back({column, replay_column(column, options, traffic, options.engines, settings)});
  return columns;
}

std::vector<SweepPoint> sweep(const ReplayOptions& options, const Traffic& traffic) {
  std::vector<SweepPoint> points;
  const bool of_memory = options.sweep->of == Sweep::Of::kv_memory;
  if (!of_memory) {
    const auto last_ms = static_cast<double>(traffic.requests.back().timestamp_ms);
    if (lasts_too_long(last_ms / options.sweep->first))
      throw InputError(
          fmt::format("--sweep rate={}: requests come within more than {} days; begin with a higher rate",
                      options.sweep->first, kMostDays));
  }
  for (const double value : options.sweep->values()) {
    points.push_back(
        {value,
         replay_columns(options, traffic, of_memory ? static_cast<std::int64_t>(value) : options.pool_bytes(),
                        of_memory ? 1 : value)});
  }
  return points;
}

/// The fewest engines of a step that keep the SLO: doubled until they do, then halved into. It takes for
/// granted that more engines keep it better; with the router longest-prefix they may not.
NeededEngines needed_engines(const Column& column, const ReplayOptions& options, const Traffic& traffic) {
  NeededEngines needed{column, 0, {}};
  const auto keeps = [&](std::int64_t engines) {
    ReplayReport report = replay_column(column, options, traffic, engines, {});
    if (!report.meets_slo) return false;
    needed.engines = engines;
    needed.report = std::move(report);
    return true;
  };
  std::int64_t too_few = 0, enough = 1;
  for (; !keeps(enough); enough *= 2) {
    too_few = enough;
    if (2 * enough > kMostEnginesForSlo) return needed;
  }
  while (enough - too_few > 1) {
    const std::int64_t middle = (too_few + enough) / 2;
    (keeps(middle) ? enough : too_few) = middle;
  }
  return needed;
}

template <typename Parts>
int print(const ReplayOptions& options, const Traffic& traffic, const char* name, const Parts& parts) {
  if (!options.json) {
    fmt::print("{}{}", heading_of(options, traffic), to_text(options, parts));
    return 0;
  }
  Json json = json_of(options, traffic);
  json[name] = Json::array();
  for (const auto& part : parts) json[name].push_back(json_of(part));
  // A file's name may be no UTF-8.
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
  return 0;
}

int run(int argc, const char* const* argv) {
  const std::optional<ReplayOptions> options = parse_replay_options(argc, argv);
  if (!options) return 0;
  if (options->makes) {
    const Traffic traffic = made_traffic(options->make);
    for (const TrafficRequest& request : traffic.requests) fmt::print("{}", line_of(request));
    return 0;
  }
  static_cast<void>(options->pass_cost());  // a wrong file is told before the trace is read
  Traffic traffic = read_traffic_file(options->trace, options->trace_block);
  if (options->serial) {
    for (TrafficRequest& request : traffic.requests) request.output_length = 0;
  }
  if (options->sweep) return print(*options, traffic, "points", sweep(*options, traffic));
  if (!options->slo_ms)
    return print(*options, traffic, "steps", replay_columns(*options, traffic, options->pool_bytes(), 1));
  std::vector<NeededEngines> needed;
  for (const Column& column : columns_of(*options, traffic, options->pool_bytes()))
    needed.push_back(needed_engines(column, *options, traffic));
  return print(*options, traffic, "steps", needed);
}

}  // namespace
}  // namespace kvcache

/// @return as run_main.
int main(int argc, char** argv) {
  return kvcache::run_main([&] { return kvcache::run(argc, argv); });
}
