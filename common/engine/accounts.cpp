/// @file
/// See accounts.h.
#include "common/engine/accounts.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace kvcache {

void Accounts::pass(const PassPlan& plan, const KvManager& manager) {
  report_.kv_rows.computed += plan.tokens();
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const auto index = static_cast<std::size_t>(plan.sequences[s]);
    if (index >= projected_.size()) continue;
    const std::int64_t first = plan.context_len[s] - (plan.row_begin[s + 1] - plan.row_begin[s]);
    report_.kv_rows.recomputed += std::max<std::int64_t>(0, projected_[index] - first);
    projected_[index] = std::max<std::int64_t>(projected_[index], plan.context_len[s]);
  }

  const KvMemoryReport now = manager.memory();
  KvMemoryReport& most = report_.kv_memory;
  if (std::pair(now.reserved_bytes, now.used_bytes) < std::pair(most.reserved_bytes, most.used_bytes)) return;
  most = now;
}

void Accounts::prefill(const PassPlan& plan, double ms) {
  report_.timing.prefill_tokens += plan.tokens();
  report_.timing.prefill_ms += ms;
}

Report Accounts::finish(const KvManager& manager, std::int64_t preemptions) {
  TimingReport& timing = report_.timing;
  for (const SequenceReport& sequence : report_.sequences)
    timing.decode_tokens += sequence.outputs_fed_back();
  for (const double ms : timing.decode_pass_ms) timing.decode_ms += ms;
  const auto per_second = [](std::int64_t tokens, double ms) {
    return ms > 0 ? std::optional(static_cast<double>(tokens) / ms * 1e3) : std::nullopt;
  };
  if (decode_passes() > 0) timing.ms_per_token = timing.decode_ms / static_cast<double>(decode_passes());
  timing.prefill_tokens_per_s = per_second(timing.prefill_tokens, timing.prefill_ms);
  timing.decode_tokens_per_s = per_second(timing.decode_tokens, timing.decode_ms);
  report_.blocks = manager.blocks();
  report_.counters = manager.counters();
  report_.counters.preemptions = preemptions;
  return std::move(report_);
}

}  // namespace kvcache
