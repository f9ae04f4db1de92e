/// @file
/// See demo.h.
#include "step1_no_cache/demo.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "fmt/format.h"

namespace kvcache {
namespace {

constexpr std::size_t kBars = 12;
constexpr double kBarWidth = 40;

/// One bar: a run of consecutive decode passes.
struct Bar {
  std::int64_t first_rows, last_rows;  // K/V rows computed by the first and the last of these passes
  double median_ms;
};

/// K/V rows that decode pass `pass` (from 0) computed: all rows of each sequence that was still running.
std::int64_t rows_of_pass(const Report& report, std::size_t pass) {
  std::int64_t rows = 0;
  for (const SequenceReport& sequence : report.sequences) {
    // Decode pass n computes the prompt and the outputs 0 to n, and gives output n + 1.
    if (sequence.output_ids.size() > pass + 1) {
      rows += static_cast<std::int64_t>(sequence.prompt_ids.size() + pass + 1);
    }
  }
  return rows;
}

std::vector<Bar> bars(const Report& report) {
  const std::vector<double>& pass_ms = report.timing.decode_pass_ms;
  const std::size_t count = std::min(kBars, pass_ms.size());
  std::vector<Bar> result;
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t begin = n * pass_ms.size() / count, end = (n + 1) * pass_ms.size() / count;
    std::vector<double> sorted(pass_ms.begin() + static_cast<std::ptrdiff_t>(begin),
                               pass_ms.begin() + static_cast<std::ptrdiff_t>(end));
    std::sort(sorted.begin(), sorted.end());
    result.push_back({rows_of_pass(report, begin), rows_of_pass(report, end - 1), sorted[sorted.size() / 2]});
  }
  return result;
}

}  // namespace

void print_growth(const Report& report) {
  const std::vector<Bar> all = bars(report);
  if (all.empty()) {
    fmt::print("\nNothing was decoded, so there is no growth to draw; ask for more with --tokens.\n");
    return;
  }
  double longest = 0;
  for (const Bar& bar : all) longest = std::max(longest, bar.median_ms);
  fmt::print("\nTime per new token as the sequence grows (median of each run of passes)\n\n");
  fmt::print("  {:>17}  {:>9}\n", "K/V rows computed", "ms");
  for (const Bar& bar : all) {
    std::string drawn;
    const std::int64_t cells = std::lround(bar.median_ms / longest * kBarWidth);
    for (std::int64_t cell = 0; cell < std::max<std::int64_t>(cells, 1); ++cell) drawn += "█";
    fmt::print("  {:>8} to {:<5}  {:>9.3f}  {}\n", bar.first_rows, bar.last_rows, bar.median_ms, drawn);
  }
  const KvRowsReport& rows = report.kv_rows;
  fmt::print(
      "\nOf {} K/V rows computed, {} ({:.1f}%) had been computed before and were forgotten.\n"
      "Step 2 remembers them: one new row per token, whatever the length.\n",
      rows.computed, rows.recomputed,
      100.0 * static_cast<double>(rows.recomputed) / static_cast<double>(rows.computed));
}

}  // namespace kvcache
