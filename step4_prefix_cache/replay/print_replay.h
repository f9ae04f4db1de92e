/// @file
/// Prints what came of a replay: as a table for people, or as JSON for programs. docs/replay.md explains the
/// lines.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "common/replay/replay.h"
#include "step4_prefix_cache/replay/columns.h"
#include "step4_prefix_cache/replay/replay_options.h"

namespace kvcache {

/// A column with what came of it.
struct ReplayedColumn {
  Column column;        ///< the step and its pool
  ReplayReport report;  ///< what came of the trace
};

/// One replay of a sweep.
struct SweepPoint {
  double value = 0;                     ///< what is varied: bytes of a pool, or the rate
  std::vector<ReplayedColumn> columns;  ///< steps 2, 3 and 4
};

/// The most engines that --slo tries.
inline constexpr std::int64_t kMostEnginesForSlo = 256;

/// How many engines of a step keep the SLO.
struct NeededEngines {
  Column column;             ///< the step and the pool of each engine
  std::int64_t engines = 0;  ///< the fewest that keep it; 0: none that were tried
  ReplayReport report;       ///< with that many
};

/// Two lines about the trace, the model and the cost of a pass.
std::string heading_of(const ReplayOptions& options, const Traffic& traffic);
/// The table of one replay.
std::string to_text(const ReplayOptions& options, std::span<const ReplayedColumn> columns);
/// The table of a sweep.
std::string to_text(const ReplayOptions& options, std::span<const SweepPoint> points);
/// The table of --slo.
std::string to_text(const ReplayOptions& options, std::span<const NeededEngines> needed);

/// What all three kinds of report begin with: the trace, the settings, the cost.
nlohmann::ordered_json json_of(const ReplayOptions& options, const Traffic& traffic);
/// One column.
nlohmann::ordered_json json_of(const ReplayedColumn& column);
/// One point.
nlohmann::ordered_json json_of(const SweepPoint& point);
/// One row of --slo.
nlohmann::ordered_json json_of(const NeededEngines& needed);

}  // namespace kvcache
