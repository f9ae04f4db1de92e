/// @file
/// See benchmark_table.h.
#include "common/bench/benchmark_table.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "common/bench/benchmark_program.h"
#include "common/bench/statistics.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

constexpr std::size_t kLabelWidth = 42, kColumnWidth = 20, kLineWidth = 112;
constexpr std::size_t kSizesToFit = 4;

constexpr const char* kNote =
    "Each cell: the median of the rounds; its ratio to the step before, as x0.95, or 1/20 for a twentieth "
    "(step 3 to step 2, with gather and without; step 4 to step 3 without); the spread, (slowest - fastest) "
    "/ median. The steps took turns, so other work of the machine slowed all of them alike. A ratio that "
    "differs from 1 by less than the spreads says nothing. The exponent b is the slope of the straight line "
    "through the logarithms of the points under it, by least squares. Each round has its own line; the "
    "table shows the median of the slopes and, behind ±, half the distance between the smallest and the "
    "largest. What to expect with a cache: a token costs the weights, the same at every context, and "
    "attention over the context, so b is between 0 and 1, and nearer to 1 the smaller the model. Without a "
    "cache, and in a prompt, all rows are computed. Where computing takes the time, b is about 1, and above "
    "1 where attention weighs. Where starting kernels takes the time, as on a GPU with few rows, a pass "
    "costs the same whatever its size, and b is near 0. Lines through so few points are a summary, not a "
    "law.";

using Names = std::vector<std::string>;

/// The names of all workloads, in the order in which they first appear.
Names workload_names(std::span<const StepRuns> steps) {
  Names names;
  for (const StepRuns& step : steps) {
    for (const BenchmarkRun& run : step.runs) {
      if (std::ranges::find(names, run.name) == names.end()) names.push_back(run.name);
    }
  }
  return names;
}

/// The ms of all runs of a workload.
std::vector<double> times(const StepRuns& step, const std::string& name) {
  std::vector<double> ms;
  for (const BenchmarkRun& run : step.runs) {
    if (run.name == name) ms.push_back(run.ms);
  }
  return ms;
}

/// The median of a counter over all runs of a workload; no value if no run has the counter.
std::optional<double> counter(const StepRuns& step, const std::string& name, const char* key) {
  std::vector<double> values;
  for (const BenchmarkRun& run : step.runs) {
    const auto found = run.counters.find(key);
    if (run.name == name && found != run.counters.end()) values.push_back(found->second);
  }
  if (values.empty()) return std::nullopt;
  return median(values);
}

/// The greatest value of a counter over all runs of a workload: one failure is one too many.
double worst(const StepRuns& step, const std::string& name, const char* key) {
  double greatest = 0;
  for (const BenchmarkRun& run : step.runs) {
    const auto found = run.counters.find(key);
    if (run.name == name && found != run.counters.end()) greatest = std::max(greatest, found->second);
  }
  return greatest;
}

/// The column that column `n` is compared with: the last column before it of another step, without gather.
const StepRuns* step_before(std::span<const StepRuns> steps, std::size_t n) {
  for (std::size_t before = n; before-- > 0;) {
    if (steps[before].step != steps[n].step && !steps[before].gather) return &steps[before];
  }
  return nullptr;
}

// ---- text ----

/// A number with four digits: below 1 with four decimals, from 10,000 on without any. A number that rounds up
/// to 10 is written like 10.
std::string four_digits(double number) {
  const int digits = number < 0.99995  ? 4
                     : number < 9.9995 ? 3
                     : number < 99.995 ? 2
                     : number < 999.95 ? 1
                                       : 0;
  return fmt::format("{:.{}f}", number, digits);
}

/// "x1.03", or "1/171" below a tenth.
std::string ratio(double now, double before) {
  const double times = now / before;
  if (times < 0.1) return fmt::format("1/{:.0f}", 1 / times);
  return fmt::format("x{:.{}f}", times, times < 9.995 ? 2 : times < 999.95 ? 1 : 0);
}

/// A line: a label, then `cell` of each column.
std::string row(const std::string& label, std::span<const StepRuns> steps,
                const std::function<std::string(std::size_t)>& cell) {
  std::string line = fmt::format("{:<{}}", label, kLabelWidth);
  for (std::size_t n = 0; n < steps.size(); ++n) line += fmt::format("{:>{}}", cell(n), kColumnWidth);
  return line + "\n";
}

std::string time_cell(std::span<const StepRuns> steps, std::size_t n, const std::string& name) {
  const std::vector<double> now = times(steps[n], name);
  if (now.empty()) return "-";
  const StepRuns* before = step_before(steps, n);
  const std::vector<double> then = before != nullptr ? times(*before, name) : std::vector<double>{};
  return fmt::format("{} {:>6} {:>4}", four_digits(median(now)),
                     then.empty() ? "" : ratio(median(now), median(then)),
                     fmt::format("{:.0f}%", spread_percent(now)));
}

/// A counter that explains the time of the workloads of one kind.
struct Detail {
  const char* kind;     // beginning of the workloads' names
  const char* counter;  // name in the JSON
  const char* label;
  double unit;
  int digits;                 // after the point
  bool also_nothing = false;  // shown also if it is 0 in every step
};
constexpr Detail kDetails[] = {{"shared_prefix/", "cached_tokens", "  cached tokens", 1, 0, true},
                               {"decode/", "gathered_bytes", "  MB gathered in the whole run", 1e6, 1},
                               {"grow/", "bytes_moved", "  MB moved", 1e6, 1},
                               {"grow/", "page_faults", "  page faults", 1, 0},
                               {"", "gpu_ms", "  ms on the GPU, waits for the host in it", 1, 3}};

std::string detail_rows(std::span<const StepRuns> steps, const std::string& name) {
  std::string rows;
  for (const Detail& detail : kDetails) {
    const auto value = [&](const StepRuns& step) { return counter(step, name, detail.counter); };
    const bool nothing =
        std::ranges::all_of(steps, [&](const StepRuns& step) { return value(step).value_or(0) == 0; });
    if (!name.starts_with(detail.kind) || (nothing && !detail.also_nothing)) continue;
    rows += row(detail.label, steps, [&](std::size_t n) -> std::string {
      const std::optional<double> known = value(steps[n]);
      return known ? fmt::format("{:.{}f}", *known / detail.unit, detail.digits) : "-";
    });
  }
  return rows;
}

/// A counter of something that spoils a time, and its row in the table.
struct Flaw {
  const char* counter;
  const char* label;
};
constexpr Flaw kFlaws[] = {{"failed", "! requests that failed"},
                           {"preemptions", "! preemptions"},
                           {"extra_passes", "! passes because some requests waited"}};

std::string flaw_rows(std::span<const StepRuns> steps, const std::string& name) {
  std::string rows;
  for (const Flaw& flaw : kFlaws) {
    const auto number = [&](const StepRuns& step) { return worst(step, name, flaw.counter); };
    if (std::ranges::all_of(steps, [&](const StepRuns& step) { return number(step) == 0; })) continue;
    rows += row(flaw.label, steps, [&](std::size_t n) { return fmt::format("{:.0f}", number(steps[n])); });
  }
  return rows;
}

// ---- growth ----

/// The family of a workload: "decode/context" of "decode/context:512"; empty if the name ends in no number.
std::string family_of(const std::string& name) {
  const std::size_t colon = name.rfind(':');
  const bool ends_in_number =
      colon != std::string::npos && name.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  return ends_in_number ? name.substr(0, colon) : "";
}

/// The unit of a family's points.
const char* unit_of(const std::string& family) {
  return family.starts_with("time_to_first_token/") ? "ms per prompt" : "ms per token";
}

/// [rounds] a workload's context, and its ms per token or per prompt.
std::vector<Point> points(const StepRuns& step, const std::string& name) {
  std::vector<Point> rounds;
  for (const BenchmarkRun& run : step.runs) {
    const auto context = run.counters.find("context"), per_second = run.counters.find("tokens_per_s");
    if (run.name != name || context == run.counters.end() || per_second == run.counters.end()) continue;
    if (context->second > 0 && per_second->second > 0)
      rounds.push_back({context->second, 1e3 / per_second->second});
  }
  return rounds;
}

/// The exponent of each round with at least kSizesToFit of these workloads.
std::vector<double> exponents(const StepRuns& step, const Names& names) {
  std::vector<std::vector<Point>> rounds;  // [rounds][names]
  for (const std::string& name : names) {
    const std::vector<Point> measured = points(step, name);
    rounds.resize(std::max(rounds.size(), measured.size()));
    for (std::size_t round = 0; round < measured.size(); ++round) rounds[round].push_back(measured[round]);
  }
  std::vector<double> fitted;
  for (const std::vector<Point>& round : rounds) {
    const std::optional<double> exponent = growth_exponent(round);
    if (round.size() >= kSizesToFit && exponent) fitted.push_back(*exponent);
  }
  return fitted;
}

/// "^ 1.21 ±0.03"; without the second part for a single round.
std::string exponent_cell(const std::vector<double>& rounds) {
  if (rounds.empty()) return "-";
  const double middle = median(rounds);
  std::string text = fmt::format("^ {:.2f}", std::abs(middle) < 0.005 ? 0 : middle);  // no -0.00
  if (rounds.size() > 1)
    text += fmt::format(" ±{:.2f}", (std::ranges::max(rounds) - std::ranges::min(rounds)) / 2);
  return text;
}

std::string family_rows(std::span<const StepRuns> steps, const std::string& family, const Names& names) {
  std::string rows = row(fmt::format("{}: {}", family, unit_of(family)), steps,
                         [&](std::size_t n) { return exponent_cell(exponents(steps[n], names)); });
  for (const std::string& name : names) {
    double context = 0;
    for (const StepRuns& step : steps)
      context = std::max(context, counter(step, name, "context").value_or(0));
    rows += row(fmt::format("  {:g}", context), steps, [&](std::size_t n) -> std::string {
      std::vector<double> values;
      for (const Point& known : points(steps[n], name)) values.push_back(known.value);
      return values.empty() ? "-" : four_digits(median(values));
    });
  }
  return rows;
}

std::string growth(std::span<const StepRuns> steps, const Names& names) {
  Names families;
  std::map<std::string, Names> members;
  for (const std::string& name : names) {
    const std::string family = family_of(name);
    if (members[family].empty()) families.push_back(family);
    members[family].push_back(name);
  }
  std::string rows;
  for (const std::string& family : families) {
    if (!family.empty() && members[family].size() >= kSizesToFit)
      rows += family_rows(steps, family, members[family]);
  }
  return rows.empty() ? "" : "\nhow time grows: at each context, in tokens; ^ b: as context^b\n" + rows;
}

// ---- the whole table ----

/// Times and growth of the workloads in `names`.
std::string section(std::span<const StepRuns> steps, const Names& names) {
  std::string table = row("ms", steps, [&](std::size_t n) { return steps[n].name(); });
  std::string flaws;
  for (const std::string& name : names) {
    const std::string here = flaw_rows(steps, name);
    flaws += here;
    table += row(name, steps, [&](std::size_t n) { return time_cell(steps, n, name); });
    table += detail_rows(steps, name) + here;
  }
  if (!flaws.empty()) table += "! not what the workload is meant to measure; give the cache more memory\n";
  return table + growth(steps, names) + "\n";
}

/// A section for the workloads that several steps have; below it one section for each step's own workloads.
std::string sections(std::span<const StepRuns> steps) {
  const auto steps_with = [&](const std::string& name) {
    return std::ranges::count_if(steps, [&](const StepRuns& step) { return !times(step, name).empty(); });
  };
  Names common = workload_names(steps);
  if (steps.size() == 1) return section(steps, common);
  std::erase_if(common, [&](const std::string& name) { return steps_with(name) == 1; });
  std::string text = common.empty() ? "" : section(steps, common);
  for (std::size_t n = 0; n < steps.size(); ++n) {
    Names own = workload_names(steps.subspan(n, 1));
    std::erase_if(own, [&](const std::string& name) { return steps_with(name) > 1; });
    if (!own.empty()) text += section(steps.subspan(n, 1), own);
  }
  return text;
}

}  // namespace

std::string benchmark_table(std::span<const StepRuns> steps) {
  std::string text = steps.front().settings + "\n";
  if (!steps.front().when.empty()) text += steps.front().when + "\n";
  text += "\n" + sections(steps) + wrapped(kNote, kLineWidth);
  Names notes;
  for (const StepRuns& step : steps) {
    for (const std::string& note : step.notes) {
      if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
    }
  }
  for (const std::string& note : notes) text += "\n" + wrapped(note, kLineWidth);
  return text;
}

}  // namespace kvcache
