/// @file
/// See paged_manager.h.
#include "step3_paged/paged_manager.h"

#include <stdexcept>

namespace kvcache {

PagedManager::Demand PagedManager::demand(std::span<const Work> work) const {
  Demand result;
  for (const Work& wanted : work) {
    const auto table = tables_.find(wanted.sequence);
    const std::int64_t held =
        table == tables_.end() ? 0 : static_cast<std::int64_t>(table->second.blocks.size());
    result.blocks += shape_.blocks_for(static_cast<std::int64_t>(wanted.token_ids.size())) - held;
    result.admits = result.admits || table == tables_.end();
  }
  return result;
}

std::optional<PassPlan> PagedManager::plan(std::span<const Work> work) {
  if (planned_) throw std::logic_error("the plan before is neither committed nor aborted");
  check_work(work, [this](std::int32_t sequence) { return length(sequence); });
  // Count before taking anything: a refusal then has nothing to undo.
  const Demand needed = demand(work);
  const bool beside_others = pool_.in_use_count() > 0 || work.size() > 1;
  const std::int64_t kept_free = needed.admits && beside_others ? watermark_ : 0;
  if (needed.blocks + kept_free > pool_.free_count()) return std::nullopt;

  PassPlan plan;
  std::vector<const std::vector<std::int32_t>*> rows;
  for (const Work& wanted : work) {
    BlockTable& table = tables_[wanted.sequence];
    plan.add(wanted.sequence, wanted.token_ids, static_cast<std::int32_t>(table.length));
    while (static_cast<std::int64_t>(table.blocks.size()) < shape_.blocks_for(plan.context_len.back())) {
      table.blocks.push_back(pool_.allocate().value());
      plan.fresh_blocks.push_back(table.blocks.back());
    }
    plan.add_slots(table.blocks, shape_.block_size);
    rows.push_back(&table.blocks);
  }
  plan.set_block_table(rows);
  planned_ = true;
  return plan;
}

void PagedManager::commit(const PassPlan& plan) {
  for (std::size_t s = 0; s < plan.sequences.size(); ++s)
    tables_.at(plan.sequences[s]).length = plan.context_len[s];
  planned_ = false;
}

void PagedManager::abort(const PassPlan& plan) {
  // In reverse, so that the pool hands out the same blocks next time.
  for (auto sequence = plan.sequences.rbegin(); sequence != plan.sequences.rend(); ++sequence) {
    BlockTable& table = tables_.at(*sequence);
    while (static_cast<std::int64_t>(table.blocks.size()) > shape_.blocks_for(table.length)) {
      pool_.free(table.blocks.back());
      table.blocks.pop_back();
    }
    if (table.length == 0) tables_.erase(*sequence);
  }
  planned_ = false;
}

void PagedManager::free(std::int32_t sequence) {
  const auto table = tables_.find(sequence);
  if (table == tables_.end()) return;
  for (auto block = table->second.blocks.rbegin(); block != table->second.blocks.rend(); ++block)
    pool_.free(*block);
  tables_.erase(table);
}

KvMemoryReport PagedManager::memory() const {
  KvMemoryReport report;
  report.bytes_per_token = shape_.bytes_per_token;
  report.reserved_bytes = pool_.in_use_count() * shape_.block_size * shape_.bytes_per_token;
  report.pool_bytes = pool_.total() * shape_.block_size * shape_.bytes_per_token;
  for (const auto& [sequence, table] : tables_) report.used_bytes += table.length * shape_.bytes_per_token;
  return report;
}

std::vector<std::int32_t> PagedManager::block_table(std::int32_t sequence) const {
  const auto table = tables_.find(sequence);
  return table == tables_.end() ? std::vector<std::int32_t>{} : table->second.blocks;
}

BlocksReport PagedManager::blocks() const {
  return {shape_.block_size, pool_.total(), pool_.free_count(), /*cached=*/0, pool_.in_use_count()};
}

CacheState PagedManager::state() const {
  CacheState state;
  state.block_size = shape_.block_size;
  for (const auto& [id, table] : tables_) state.sequences[id] = {table.blocks, table.length};
  for (std::int32_t block = 0; block < pool_.total(); ++block)
    state.references.push_back(pool_.in_use(block) ? 1 : 0);
  state.free = pool_.free_in_order();
  return state;
}

std::int64_t PagedManager::length(std::int32_t sequence) const {
  const auto table = tables_.find(sequence);
  return table == tables_.end() ? 0 : table->second.length;
}

void PagedManager::check_invariants() const {
  pool_.check_invariants();
  std::vector<bool> held(static_cast<std::size_t>(pool_.total()), false);
  std::int64_t count = 0;
  for (const auto& [sequence, table] : tables_) {
    if (table.length == 0) throw std::logic_error("a registered sequence is empty");
    if (static_cast<std::int64_t>(table.blocks.size()) != shape_.blocks_for(table.length)) {
      throw std::logic_error("a sequence holds more or fewer blocks than its tokens need");
    }
    for (const std::int32_t block : table.blocks) {
      if (!pool_.in_use(block)) throw std::logic_error("a sequence holds a free block");
      if (held[static_cast<std::size_t>(block)]) throw std::logic_error("two sequences hold one block");
      held[static_cast<std::size_t>(block)] = true;
      ++count;
    }
  }
  if (count != pool_.in_use_count()) throw std::logic_error("a block is in use and nobody holds it");
}

}  // namespace kvcache
