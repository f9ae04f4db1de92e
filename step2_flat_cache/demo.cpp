/// @file
/// See demo.h.
#include "step2_flat_cache/demo.h"

#include <algorithm>
#include <string>

#include "fmt/format.h"

namespace kvcache {

void print_reservations(const Report& report, std::int64_t max_seq_len) {
  constexpr std::int64_t kCells = 60;
  fmt::print("\nWhat each sequence reserved ({} positions) and what it filled\n\n", max_seq_len);
  std::int64_t filled_by_all = 0;
  for (std::size_t s = 0; s < report.sequences.size(); ++s) {
    const SequenceReport& sequence = report.sequences[s];
    const std::int64_t filled = sequence.stored_tokens();
    filled_by_all += filled;
    const std::int64_t cells =
        std::clamp<std::int64_t>((filled * kCells + max_seq_len - 1) / max_seq_len, 1, kCells);
    std::string bar;
    for (std::int64_t cell = 0; cell < kCells; ++cell) bar += cell < cells ? "█" : "░";
    fmt::print("  {:>3}  {}  {} of {}\n", s + 1, bar, filled, max_seq_len);
  }
  const std::int64_t reserved = max_seq_len * static_cast<std::int64_t>(report.sequences.size());
  fmt::print(
      "\nOf {} reserved positions {} were ever filled; {:.1f}% of the reservation was waste, and nobody else "
      "could use it.\n"
      "Each new token computed one K/V row ({} in all, none of them twice).\n"
      "Step 3 gives memory out in small blocks, as sequences grow.\n",
      reserved, filled_by_all,
      100.0 * static_cast<double>(reserved - filled_by_all) / static_cast<double>(reserved),
      report.kv_rows.computed);
}

}  // namespace kvcache
