/// @file
/// See no_cache.h.
#include "step1_no_cache/no_cache.h"

#include <numeric>

#include "common/cpu/attention.h"
#include "common/cpu/scatter.h"

namespace kvcache {

std::optional<PassPlan> NoCacheManager::plan(std::span<const Work> work) {
  check_work(work, [](std::int32_t) { return 0; });
  PassPlan plan;
  for (const Work& wanted : work) plan.add(wanted.sequence, wanted.token_ids, /*first=*/0);
  plan.slots.resize(plan.token_ids.size());
  std::iota(plan.slots.begin(), plan.slots.end(), 0);  // slot = row: the store is a buffer for this pass
  return plan;
}

void NoCacheStore::begin(const PassPlan& plan) {
  plan_ = &plan;
  const std::int64_t bytes = plan.tokens() * config_.kv_width() * size_of(dtype_);
  k_.resize(static_cast<std::size_t>(bytes));
  v_.resize(static_cast<std::size_t>(bytes));
}

void NoCacheStore::store_and_attend(std::int64_t, const HeadSettings& heads, const NewRows& rows,
                                    Matrix& out) {
  cpu::rotate_and_store(heads, config_.head_dim, rows, plan_->slots, dtype_, k_.data(), v_.data(), threads_);
  std::vector<cpu::AttentionSequence> sequences;
  for (std::size_t s = 0; s < plan_->sequences.size(); ++s) {
    const std::int64_t begin = plan_->row_begin[s], end = plan_->row_begin[s + 1];
    sequences.push_back({begin, end, plan_->context_len[s], cpu::SlotMap{.first = begin}});
  }
  cpu::attention({config_.heads, config_.kv_heads, config_.head_dim}, {dtype_, k_.data(), v_.data()},
                 sequences, rows.q.row(0), out.row(0), rows.q.stride, dtype_, threads_);
}

}  // namespace kvcache
