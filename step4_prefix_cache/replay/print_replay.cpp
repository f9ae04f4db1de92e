/// @file
/// See print_replay.h.
#include "step4_prefix_cache/replay/print_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/json_file.h"
#include "common/cli/print.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;  // keys stay in the order in which they are written here

constexpr std::size_t kMostSamples = 600;  // of the memory, in JSON

/// Where a memory's shares lie over the samples.
struct MemoryShares {
  double mean_reserved = 0, most_reserved = 0;  // bytes
  double mean_used = 0, most_used = 0;          // bytes
  double wasted_percent = 0;                    // of the reserved bytes, over all samples
};

MemoryShares shares_of(const ReplayMemory& memory) {
  MemoryShares shares;
  if (memory.samples.empty()) return shares;
  for (const ReplayMemory::Sample& sample : memory.samples) {
    const auto reserved = static_cast<double>(sample.reserved_bytes);
    const auto used = static_cast<double>(sample.used_bytes);
    shares.mean_reserved += reserved;
    shares.mean_used += used;
    shares.most_reserved = std::max(shares.most_reserved, reserved);
    shares.most_used = std::max(shares.most_used, used);
  }
  if (shares.mean_reserved > 0) shares.wasted_percent = 100 * (1 - shares.mean_used / shares.mean_reserved);
  shares.mean_reserved /= static_cast<double>(memory.samples.size());
  shares.mean_used /= static_cast<double>(memory.samples.size());
  return shares;
}

/// Bytes as people read them.
std::string gigabytes(double bytes) {
  if (bytes < 1e8) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.1f} GB", bytes / 1e9);
}
std::string percent(double share) {
  return fmt::format("{:.1f}%", 100 * share);
}
/// Milliseconds as people read them.
std::string time(double ms) {
  if (ms < 1000) return fmt::format("{:.1f} ms", ms);
  if (ms < 1e6) return fmt::format("{:.2f} s", ms / 1e3);
  return fmt::format("{} s", grouped(std::llround(ms / 1e3)));
}
std::string three(const Spread& spread) {
  if (spread.count == 0) return "-";
  return fmt::format("{} / {} / {}", time(spread.median), time(spread.p90), time(spread.p99));
}

std::string pool_of(const Column& column, const ReplayOptions& options) {
  if (column.step == Step::flat_cache)
    return fmt::format("{} x {} tokens", grouped(column.reservations), grouped(column.max_seq_len));
  return fmt::format("{} blocks of {}", grouped(column.blocks), options.block_size);
}

constexpr int kLabel = 42, kCell = 31;  // characters

/// A line of a table: its label, then a cell for each column.
template <typename Columns, typename Cell>
std::string row(const std::string& label, const Columns& columns, const Cell& cell) {
  std::string line = fmt::format("{:{}}", label, kLabel);
  for (const auto& column : columns) line += fmt::format("{:>{}}", cell(column), kCell);
  return line + "\n";
}

/// The lines of a table about one moment.
std::string rows_at(std::span<const ReplayedColumn> columns, ReplayFigures ReplayReport::*moment) {
  const auto line = [&](const std::string& label, const auto& cell) {
    return row("  " + label, columns,
               [&](const ReplayedColumn& column) { return std::string(cell(column.report.*moment)); });
  };
  using F = ReplayFigures;
  return line("after", [](const F& f) { return time(f.at_ms); }) +
         line("requests done", [](const F& f) { return grouped(f.done); }) +
         line("  refused", [](const F& f) { return grouped(f.refused); }) +
         line("  waiting", [](const F& f) { return grouped(f.waiting); }) +
         line("  running", [](const F& f) { return grouped(f.running); }) +
         line("requests of an engine, at most", [](const F& f) { return grouped(f.most_requests); }) +
         line("sequences at a time, mean",
              [](const F& f) { return fmt::format("{:.1f}", f.mean_sequences); }) +
         line("  most of an engine", [](const F& f) { return grouped(f.most_sequences); }) +
         line("passes, and their share of the time",
              [](const F& f) { return fmt::format("{}, {}", grouped(f.passes), percent(f.busy_share)); }) +
         line("outputs per second", [](const F& f) { return fmt::format("{:.1f}", f.generated_per_s()); }) +
         line("first token: mean",
              [](const F& f) { return f.first_token_ms.count == 0 ? "-" : time(f.first_token_ms.mean); }) +
         line("  median / 90% / 99%", [](const F& f) { return three(f.first_token_ms); }) +
         line("next tokens: median / 90% / 99%", [](const F& f) { return three(f.output_token_ms); }) +
         line("found, of the input tokens", [](const F& f) { return percent(f.found_share()); }) +
         line("  of their full blocks",
              [](const F& f) { return f.input_blocks == 0 ? "-" : percent(f.found_block_share()); }) +
         line("evicted blocks", [](const F& f) { return grouped(f.counters.evictions); }) +
         line("swapped blocks, out and in",
              [](const F& f) {
                return fmt::format("{}, {}", grouped(f.counters.swaps_out), grouped(f.counters.swaps_in));
              }) +
         line("preemptions", [](const F& f) { return grouped(f.counters.preemptions); }) +
         line("  tokens computed again, of all computed", [](const F& f) {
           return fmt::format("{} of {}", grouped(f.recomputed_tokens), grouped(f.computed_tokens));
         });
}

Json json_of(const Spread& spread) {
  return {{"count", spread.count},
          {"mean", spread.mean},
          {"median", spread.median},
          {"p90", spread.p90},
          {"p99", spread.p99}};
}

Json json_of(const ReplayFigures& figures) {
  return {{"at_ms", figures.at_ms},
          {"done", figures.done},
          {"refused", figures.refused},
          {"waiting", figures.waiting},
          {"running", figures.running},
          {"most_requests", figures.most_requests},
          {"passes", figures.passes},
          {"most_sequences", figures.most_sequences},
          {"mean_sequences", figures.mean_sequences},
          {"busy_share", figures.busy_share},
          {"generated_tokens", figures.generated_tokens},
          {"generated_tokens_per_s", figures.generated_per_s()},
          {"computed_tokens", figures.computed_tokens},
          {"recomputed_tokens", figures.recomputed_tokens},
          {"input_tokens", figures.input_tokens},
          {"found_tokens", figures.found_tokens},
          {"found_share", figures.found_share()},
          {"input_blocks", figures.input_blocks},
          {"found_blocks", figures.found_blocks},
          {"found_block_share", figures.found_block_share()},
          {"evictions", figures.counters.evictions},
          {"preemptions", figures.counters.preemptions},
          {"swaps_out", figures.counters.swaps_out},
          {"swaps_in", figures.counters.swaps_in},
          {"first_token_ms", json_of(figures.first_token_ms)},
          {"output_token_ms", json_of(figures.output_token_ms)}};
}

/// All samples of a short replay; of a long one, one in two, in three, ... of them.
Json json_of(const ReplayMemory& memory) {
  const MemoryShares shares = shares_of(memory);
  const std::size_t every = (memory.samples.size() + kMostSamples - 1) / kMostSamples;
  Json over_time = Json::array();
  for (std::size_t n = 0; n < memory.samples.size(); n += every) {
    const ReplayMemory::Sample& sample = memory.samples[n];
    over_time.push_back({sample.at_ms, sample.reserved_bytes, sample.used_bytes});
  }
  return {{"pool_bytes", memory.pool_bytes},
          {"samples", memory.samples.size()},
          {"mean_reserved_bytes", shares.mean_reserved},
          {"most_reserved_bytes", shares.most_reserved},
          {"mean_used_bytes", shares.mean_used},
          {"most_used_bytes", shares.most_used},
          {"wasted_percent", shares.wasted_percent},
          {"over_time", over_time}};
}

Json json_of(const Column& column) {
  Json json = {{"step", name_of(column.step)}};
  if (column.step == Step::flat_cache) {
    json["reservations"] = column.reservations;
    json["max_seq_len"] = column.max_seq_len;
  } else {
    json["blocks"] = column.blocks;
  }
  if (column.step == Step::prefix_cache) json["host_blocks"] = column.host_blocks;
  return json;
}

std::string name_of_router(Router router) {
  return router == Router::round_robin    ? "round-robin"
         : router == Router::least_loaded ? "least-loaded"
                                          : "longest-prefix";
}

/// A sum over all requests.
std::int64_t total(const Traffic& traffic, std::int64_t TrafficRequest::*length) {
  std::int64_t sum = 0;
  for (const TrafficRequest& request : traffic.requests) sum += request.*length;
  return sum;
}

std::string cost_in_words(const ReplayOptions& options) {
  if (options.cost.empty()) return "the roofline of " + options.card;
  const std::string fitted_on = options.pass_cost().fitted_on;
  return options.cost.string() + (fitted_on.empty() ? "" : ", fitted on " + shown(fitted_on) + ",");
}

}  // namespace

std::string heading_of(const ReplayOptions& options, const Traffic& traffic) {
  std::string text = fmt::format("{}: {} requests in {}, {} tokens in, {} out\n", options.trace.string(),
                                 grouped(std::ssize(traffic.requests)),
                                 time(static_cast<double>(traffic.requests.back().timestamp_ms)),
                                 grouped(total(traffic, &TrafficRequest::input_length)),
                                 grouped(total(traffic, &TrafficRequest::output_length)));
  text += fmt::format("{}, {}: {} bytes of K and V a token", options.shape, name_of(options.dtype),
                      grouped(options.bytes_per_token()));
  if (!options.sweep || options.sweep->of != Sweep::Of::kv_memory)
    text += fmt::format(", {} an engine", gigabytes(static_cast<double>(options.pool_bytes())));
  text += options.serial ? "; one request after the other, nothing generated"
                         : fmt::format("; passes take what {} says", cost_in_words(options));
  if (options.engines > 1)
    text += fmt::format("; {} engines, {}", options.engines, name_of_router(options.router));
  return text + "\n\n";
}

std::string to_text(const ReplayOptions& options, std::span<const ReplayedColumn> columns) {
  const auto memory_row = [&](const std::string& label, double MemoryShares::*mean,
                              double MemoryShares::*most) {
    return row(label, columns, [=](const ReplayedColumn& column) {
      const MemoryShares shares = shares_of(column.report.memory);
      return fmt::format("{} / {}", gigabytes(shares.*mean), gigabytes(shares.*most));
    });
  };
  return row("", columns, [](const ReplayedColumn& column) { return name_of(column.column.step); }) +
         row("pool of an engine", columns,
             [&](const ReplayedColumn& column) { return pool_of(column.column, options); }) +
         "when the last request came\n" + rows_at(columns, &ReplayReport::at_last_arrival) +
         "when all had ended\n" + rows_at(columns, &ReplayReport::drained) + "memory, once a second\n" +
         memory_row("  reserved: mean / most", &MemoryShares::mean_reserved, &MemoryShares::most_reserved) +
         memory_row("  used: mean / most", &MemoryShares::mean_used, &MemoryShares::most_used) +
         row("  wasted, of the reserved", columns, [](const ReplayedColumn& column) {
           return fmt::format("{:.1f}%", shares_of(column.report.memory).wasted_percent);
         });
}

std::string to_text(const ReplayOptions& options, std::span<const SweepPoint> points) {
  const bool of_memory = options.sweep->of == Sweep::Of::kv_memory;
  std::string text = fmt::format("{:12}", of_memory ? "kv-memory" : "rate");
  for (const ReplayedColumn& column : points.front().columns)
    text += fmt::format("{:>44}", name_of(column.column.step));
  text += fmt::format("\n{:12}", "");
  for (std::size_t n = 0; n < points.front().columns.size(); ++n)
    text += fmt::format("{:>9}{:>9}{:>26}", "found", "refused", "first token 50% / 99%");
  text += "\n";
  for (const SweepPoint& point : points) {
    text += fmt::format("{:12}", of_memory ? gigabytes(point.value) : fmt::format("{}", point.value));
    for (const ReplayedColumn& column : point.columns) {
      const ReplayFigures& figures = column.report.drained;
      const Spread& first = figures.first_token_ms;
      text +=
          fmt::format("{:>9}{:>9}{:>26}", percent(figures.found_share()), grouped(figures.refused),
                      first.count == 0 ? "-" : fmt::format("{} / {}", time(first.median), time(first.p99)));
    }
    text += "\n";
  }
  return text;
}

std::string to_text(const ReplayOptions& options, std::span<const NeededEngines> needed) {
  std::string text = fmt::format(
      "engines that give 99% of the requests their first token within {}, router "
      "{}\n{:22}{:>9}{:>26}{:>10}{:>8}\n",
      time(*options.slo_ms), name_of_router(options.router), "", "engines", "first token 50% / 99%", "found",
      "busy");
  for (const NeededEngines& row : needed) {
    const ReplayFigures& figures = row.report.drained;
    if (row.engines == 0) {
      text += fmt::format("{:22}{:>9}   {} engines are too few\n", name_of(row.column.step), "none",
                          grouped(kMostEnginesForSlo));
      continue;
    }
    text += fmt::format(
        "{:22}{:>9}{:>26}{:>10}{:>8}\n", name_of(row.column.step), row.engines,
        fmt::format("{} / {}", time(figures.first_token_ms.median), time(figures.first_token_ms.p99)),
        percent(figures.found_share()), percent(figures.busy_share));
  }
  return text;
}

Json json_of(const ReplayOptions& options, const Traffic& traffic) {
  const PassCost cost = options.pass_cost();
  Json json = {{"schema", 1},
               {"trace", options.trace.string()},
               {"requests", traffic.requests.size()},
               {"input_tokens", total(traffic, &TrafficRequest::input_length)},
               {"output_tokens", total(traffic, &TrafficRequest::output_length)},
               {"last_arrival_ms", traffic.requests.back().timestamp_ms},
               {"model", options.shape},
               {"dtype", name_of(options.dtype)},
               {"bytes_per_token", options.bytes_per_token()},
               {"trace_block", options.trace_block},
               {"block_size", options.block_size},
               {"max_sequences", options.max_sequences},
               {"max_batch_tokens", options.max_batch_tokens},
               {"serial", options.serial}};
  if (!options.sweep || options.sweep->of != Sweep::Of::kv_memory) json["pool_bytes"] = options.pool_bytes();
  if (options.slo_ms) {
    json["slo_ms"] = *options.slo_ms;
  } else {
    json["engines"] = options.engines;
  }
  if (options.sweep) json["sweep"] = options.sweep->of == Sweep::Of::kv_memory ? "kv-memory" : "rate";
  json["router"] = name_of_router(options.router);
  json["cost"] = {{"from", options.cost.empty() ? options.card : options.cost.string()},
                  {"constant_ms", cost.constant_ms},
                  {"row_ms", cost.row_ms},
                  {"weights_ms", cost.weights_ms},
                  {"pair_ms", cost.pair_ms},
                  {"context_ms", cost.context_ms},
                  {"swap_ms", cost.swap_ms}};
  if (!cost.fitted_on.empty()) json["cost"]["fitted_on"] = cost.fitted_on;
  return json;
}

Json json_of(const ReplayedColumn& column) {
  Json json = json_of(column.column);
  json["at_last_arrival"] = json_of(column.report.at_last_arrival);
  json["drained"] = json_of(column.report.drained);
  json["memory"] = json_of(column.report.memory);
  return json;
}

Json json_of(const SweepPoint& point) {
  Json json = {{"value", point.value}, {"steps", Json::array()}};
  for (const ReplayedColumn& column : point.columns) {
    json["steps"].push_back(json_of(column));
    json["steps"].back()["memory"].erase("over_time");
  }
  return json;
}

Json json_of(const NeededEngines& needed) {
  Json json = json_of(needed.column);
  if (needed.engines == 0) {
    json["engines"] = nullptr;  // kMostEnginesForSlo are too few
    return json;
  }
  json["engines"] = needed.engines;
  json["drained"] = json_of(needed.report.drained);
  return json;
}

}  // namespace kvcache
