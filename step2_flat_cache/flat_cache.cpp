/// @file
/// See flat_cache.h.
#include "step2_flat_cache/flat_cache.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_set>

#include "common/cpu/attention.h"
#include "common/cpu/scatter.h"

namespace kvcache {

std::optional<PassPlan> FlatCacheManager::plan(std::span<const Work> work) {
  if (planned_) throw std::logic_error("the plan before is neither committed nor aborted");
  check_work(work, [this](std::int32_t sequence) { return length(sequence); });
  PassPlan plan;
  for (const Work& wanted : work) {
    Reservation* reservation = find(wanted.sequence);
    if (reservation == nullptr) reservation = find(kNobody);
    // A refusal frees the reservations that this plan has given.
    if (reservation == nullptr || static_cast<std::int64_t>(wanted.token_ids.size()) > shape_.max_seq_len) {
      abort(plan);
      return std::nullopt;
    }
    reservation->sequence = wanted.sequence;
    plan.add(wanted.sequence, wanted.token_ids, static_cast<std::int32_t>(reservation->length));
    const std::int64_t first_slot = (reservation - reservations_.data()) * shape_.max_seq_len;
    for (std::size_t row = plan.slots.size(); row < plan.positions.size(); ++row) {
      plan.slots.push_back(first_slot + plan.positions[row]);
    }
  }
  planned_ = true;
  return plan;
}

void FlatCacheManager::commit(const PassPlan& plan) {
  // Once per pass, not once per layer: every layer of a pass writes the same positions.
  for (std::size_t s = 0; s < plan.sequences.size(); ++s)
    find(plan.sequences[s])->length = plan.context_len[s];
  planned_ = false;
}

void FlatCacheManager::abort(const PassPlan& plan) {
  for (const std::int32_t sequence : plan.sequences) {
    Reservation* reservation = find(sequence);
    if (reservation->length == 0) reservation->sequence = kNobody;
  }
  planned_ = false;
}

void FlatCacheManager::free(std::int32_t sequence) {
  // The rows may stay in the buffer: nothing reads beyond a sequence's length.
  if (Reservation* reservation = find(sequence)) *reservation = Reservation{};
}

KvMemoryReport FlatCacheManager::memory() const {
  KvMemoryReport report;
  report.bytes_per_token = shape_.bytes_per_token;
  report.reserved_bytes = shape_.sequences * shape_.max_seq_len * shape_.bytes_per_token;
  report.pool_bytes = report.reserved_bytes;
  for (const Reservation& reservation : reservations_) {
    report.used_bytes += reservation.length * shape_.bytes_per_token;
  }
  return report;
}

CacheState FlatCacheManager::state() const {
  CacheState state;
  state.block_size = shape_.max_seq_len;
  for (std::size_t n = 0; n < reservations_.size(); ++n) {
    const auto& [sequence, length] = reservations_[n];
    const auto id = static_cast<std::int32_t>(n);
    state.references.push_back(sequence == kNobody ? 0 : 1);
    if (sequence == kNobody) {
      state.free.push_back(id);
    } else {
      state.sequences[sequence] = {{id}, length};
    }
  }
  return state;
}

std::int64_t FlatCacheManager::length(std::int32_t sequence) const {
  const Reservation* reservation = find(sequence);
  return reservation == nullptr ? 0 : reservation->length;
}

void FlatCacheManager::check_invariants() const {
  std::unordered_set<std::int32_t> seen;
  for (const Reservation& reservation : reservations_) {
    if ((reservation.sequence == kNobody) != (reservation.length == 0)) {
      throw std::logic_error("a reservation is held but empty, or filled but free");
    }
    if (reservation.length > shape_.max_seq_len) throw std::logic_error("a reservation is overfull");
    if (reservation.sequence != kNobody && !seen.insert(reservation.sequence).second) {
      throw std::logic_error("a sequence has two reservations");
    }
  }
}

FlatCacheManager::Reservation* FlatCacheManager::find(std::int32_t sequence) {
  const auto at =
      std::find_if(reservations_.begin(), reservations_.end(),
                   [&](const Reservation& reservation) { return reservation.sequence == sequence; });
  return at == reservations_.end() ? nullptr : &*at;
}

const FlatCacheManager::Reservation* FlatCacheManager::find(std::int32_t sequence) const {
  return const_cast<FlatCacheManager*>(this)->find(sequence);
}

FlatCacheStore::FlatCacheStore(const ModelConfig& config, const FlatCacheShape& shape, DType dtype,
                               ThreadPool& threads)
    : config_(config),
      dtype_(dtype),
      threads_(threads),
      layer_bytes_(shape.sequences * shape.max_seq_len * config.kv_width() * size_of(dtype)),
      k_(config.layers * layer_bytes_, 2 * config.layers * layer_bytes_),
      v_(config.layers * layer_bytes_, 2 * config.layers * layer_bytes_) {}

void FlatCacheStore::store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                                      Matrix& out) {
  std::byte* const k = k_.data() + layer * layer_bytes_;
  std::byte* const v = v_.data() + layer * layer_bytes_;
  cpu::rotate_and_store(heads, config_.head_dim, rows, plan_->slots, dtype_, k, v, threads_);
  std::vector<cpu::AttentionSequence> sequences;
  for (std::size_t s = 0; s < plan_->sequences.size(); ++s) {
    const std::int32_t begin = plan_->row_begin[s], end = plan_->row_begin[s + 1];
    const std::int64_t first_slot =
        plan_->slots[static_cast<std::size_t>(begin)] - plan_->positions[static_cast<std::size_t>(begin)];
    sequences.push_back({begin, end, plan_->context_len[s], cpu::SlotMap{.first = first_slot}});
  }
  cpu::attention({config_.heads, config_.kv_heads, config_.head_dim}, {dtype_, k, v}, sequences,
                 rows.q.row(0), out.row(0), rows.q.stride, dtype_, threads_);
}

}  // namespace kvcache
