/// @file
/// See benchmark_table.h.
#include "common/bench/benchmark_table.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <sstream>
#include <vector>

#include "common/bench/statistics.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

constexpr std::size_t kLabelWidth = 43, kColumnWidth = 20, kLineWidth = 112;
constexpr std::size_t kSizesToFit = 4;

constexpr const char* kNote =
    "Cells: the median of the rounds in ms; its ratio to the same in the step before (both forms of step 3 "
    "to "
    "step 2; step 4 to step 3 without gather), x0.95 or 1/20 for a twentieth; the spread, (slowest - "
    "fastest) "
    "/ median. The steps took turns, so that what else the machine did met them all; a ratio that differs "
    "from "
    "1 by less than the spreads says nothing. Exponents: a cached token costs the weights, the same at every "
    "context, and attention over it, so it lies between 0 and 1, nearer to 1 where the model is small; "
    "without "
    "a cache it is about 1, and above where attention weighs.";

/// The names of all workloads, in the order in which they first appear.
std::vector<std::string> workload_names(std::span<const StepRuns> steps) {
  std::vector<std::string> names;
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

/// The median of a counter over all runs of a workload; nothing if none has it.
std::optional<double> counter(const StepRuns& step, const std::string& name, const char* key) {
  std::vector<double> values;
  for (const BenchmarkRun& run : step.runs) {
    const auto found = run.counters.find(key);
    if (run.name == name && found != run.counters.end()) values.push_back(found->second);
  }
  if (values.empty()) return std::nullopt;
  return median(values);
}

/// The greatest of a counter over all runs of a workload: one failure is one too many.
double worst(const StepRuns& step, const std::string& name, const char* key) {
  double greatest = 0;
  for (const BenchmarkRun& run : step.runs) {
    const auto found = run.counters.find(key);
    if (run.name == name && found != run.counters.end()) greatest = std::max(greatest, found->second);
  }
  return greatest;
}

/// What column `n` is compared with: the last one before it of another step, gather aside.
const StepRuns* step_before(std::span<const StepRuns> steps, std::size_t n) {
  for (std::size_t before = n; before-- > 0;) {
    if (steps[before].step != steps[n].step && !steps[before].gather) return &steps[before];
  }
  return nullptr;
}

// ---- text ----

/// Four digits, more for what is 10,000 or above.
std::string four_digits(double number) {
  return fmt::format("{:.{}f}", number, number < 10 ? 3 : number < 100 ? 2 : number < 1000 ? 1 : 0);
}

/// "x1.03"; "1/171" of what is less than a tenth.
std::string ratio(double now, double before) {
  const double times = now / before;
  if (times < 0.1) return fmt::format("1/{:.0f}", 1 / times);
  return fmt::format("x{:.{}f}", times, times < 10 ? 2 : times < 1000 ? 1 : 0);
}

std::string row(const std::string& label, std::span<const std::string> cells) {
  std::string line = fmt::format("{:<{}}", label, kLabelWidth);
  for (const std::string& cell : cells) line += fmt::format("{:>{}}", cell, kColumnWidth);
  return line + "\n";
}

/// A row with what `cell` gives of each column.
std::string row(const std::string& label, std::span<const StepRuns> steps,
                const std::function<std::string(std::size_t)>& cell) {
  std::vector<std::string> cells;
  for (std::size_t n = 0; n < steps.size(); ++n) cells.push_back(cell(n));
  return row(label, cells);
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
  const char* kind;     // how their names begin
  const char* counter;  // its name in the JSON
  const char* label;
  double unit;
};
constexpr Detail kDetails[] = {{"shared_prefix/", "cached_tokens", "  cached tokens", 1},
                               {"decode/", "gathered_bytes", "  MB gathered in the whole run", 1e6},
                               {"grow/", "bytes_moved", "  MB moved", 1e6},
                               {"", "gpu_ms", "  ms on the GPU", 1}};

std::string detail_rows(std::span<const StepRuns> steps, const std::string& name) {
  std::string rows;
  for (const Detail& detail : kDetails) {
    const auto has_it = [&](const StepRuns& step) {
      return counter(step, name, detail.counter).value_or(0) > 0 ||
             std::string_view(detail.counter) == "cached_tokens";
    };
    if (!name.starts_with(detail.kind) || std::ranges::none_of(steps, has_it)) continue;
    rows += row(detail.label, steps, [&](std::size_t n) -> std::string {
      const std::optional<double> value = counter(steps[n], name, detail.counter);
      if (!value) return "-";
      return detail.unit == 1 && *value == static_cast<double>(static_cast<std::int64_t>(*value))
                 ? fmt::format("{:.0f}", *value)
                 : four_digits(*value / detail.unit);
    });
  }
  return rows;
}

/// What spoils a time.
constexpr std::pair<const char*, const char*> kFlaws[] = {
    {"failed", "! requests that failed"},
    {"preemptions", "! preemptions"},
    {"extra_passes", "! passes because some requests waited"}};

std::string flaw_rows(std::span<const StepRuns> steps, const std::string& name) {
  std::string rows;
  for (const auto& [key, label] : kFlaws) {
    const auto number = [&](const StepRuns& step) { return worst(step, name, key); };
    if (std::ranges::all_of(steps, [&](const StepRuns& step) { return number(step) == 0; })) continue;
    rows += row(label, steps, [&](std::size_t n) { return fmt::format("{:.0f}", number(steps[n])); });
  }
  return rows;
}

// ---- growth ----

/// "decode/context" of "decode/context:512"; empty if the name does not end in a number.
std::string family_of(const std::string& name) {
  const std::size_t colon = name.rfind(':');
  const bool ends_in_number =
      colon != std::string::npos && name.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  return ends_in_number ? name.substr(0, colon) : "";
}

/// A workload's context and ms per token.
std::optional<Point> point(const StepRuns& step, const std::string& name) {
  const std::optional<double> context = counter(step, name, "context");
  const std::optional<double> per_second = counter(step, name, "tokens_per_s");
  if (!context || !per_second || *context <= 0 || *per_second <= 0) return std::nullopt;
  return Point{*context, 1e3 / *per_second};
}

std::string family_rows(std::span<const StepRuns> steps, const std::string& family,
                        std::span<const std::string> names) {
  std::string rows = row(family, steps, [&](std::size_t n) -> std::string {
    std::vector<Point> points;
    for (const std::string& name : names) {
      if (const std::optional<Point> known = point(steps[n], name)) points.push_back(*known);
    }
    const std::optional<double> exponent = growth_exponent(points);
    return points.size() >= kSizesToFit && exponent ? fmt::format("^ {:.2f}", *exponent) : "-";
  });
  for (const std::string& name : names) {
    double context = 0;
    for (const StepRuns& step : steps)
      context = std::max(context, counter(step, name, "context").value_or(0));
    rows += row(fmt::format("  {:g}", context), steps, [&](std::size_t n) -> std::string {
      const std::optional<Point> known = point(steps[n], name);
      return known ? four_digits(known->value) : "-";
    });
  }
  return rows;
}

std::string growth(std::span<const StepRuns> steps) {
  std::vector<std::string> families;
  std::map<std::string, std::vector<std::string>> members;
  for (const std::string& name : workload_names(steps)) {
    const std::string family = family_of(name);
    if (members[family].empty()) families.push_back(family);
    members[family].push_back(name);
  }
  std::string rows;
  for (const std::string& family : families) {
    if (!family.empty() && members[family].size() >= kSizesToFit)
      rows += family_rows(steps, family, members[family]);
  }
  if (rows.empty()) return "";
  return "How the ms per token grow: ^ b, where ms = a * context^b by least squares through the logarithms "
         "of the "
         "points below it,\neach a context and the ms per token that came back there\n" +
         rows + "\n";
}

/// Broken between words.
std::string wrapped(const std::string& text) {
  std::istringstream words(text);
  std::string lines;
  std::size_t length = 0;
  for (std::string word; words >> word;) {
    if (length > 0 && length + 1 + word.size() > kLineWidth) {
      lines += "\n";
      length = 0;
    }
    lines += (length > 0 ? " " : "") + word;
    length += word.size() + (length > 0 ? 1 : 0);
  }
  return lines + "\n";
}

}  // namespace

std::string benchmark_table(std::span<const StepRuns> steps) {
  const std::vector<std::string> names = workload_names(steps);
  std::string table = row(steps.front().settings, steps, [&](std::size_t n) { return steps[n].name(); });
  bool flawed = false;
  for (const std::string& name : names) {
    const std::string flaws = flaw_rows(steps, name);
    flawed |= !flaws.empty();
    table += row(name, steps, [&](std::size_t n) { return time_cell(steps, n, name); });
    table += detail_rows(steps, name) + flaws;
  }
  if (flawed) table += "! not what the workload is meant to measure; give the cache more memory\n";
  table += "\n" + growth(steps) + wrapped(kNote);
  std::vector<std::string> notes;
  for (const StepRuns& step : steps) {
    for (const std::string& note : step.notes) {
      if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
    }
  }
  for (const std::string& note : notes) table += wrapped(note);
  return table;
}

}  // namespace kvcache
