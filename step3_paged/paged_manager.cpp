/// @file
/// See paged_manager.h.
#include "step3_paged/paged_manager.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace kvcache {

std::optional<PassPlan> PagedManager::plan(std::span<const Work> work) {
  if (planned_) throw std::logic_error("the plan before is neither committed nor aborted");
  // Refuses a sequence twice, without tokens, or shorter than stored.
  check_work(work, [this](std::int32_t sequence) { return length(sequence); });
  // Count before taking anything: a refusal then has nothing to undo.
  if (blocks_to_add(work) + blocks_to_keep_free(work) > pool_.free_count()) return std::nullopt;

  PassPlan plan;
  std::vector<const std::vector<std::int32_t>*> tables;
  for (const Work& wanted : work) {
    BlockTable& table = tables_[wanted.sequence];  // makes an empty table for a new sequence
    extend(table, wanted, plan);
    tables.push_back(&table.blocks);  // stays valid: a growing unordered_map moves no element
  }
  plan.set_block_table(tables);
  planned_ = true;
  return plan;
}

/// Blocks that no table has yet. `token_ids` are all tokens of a sequence, stored ones too.
std::int64_t PagedManager::blocks_to_add(std::span<const Work> work) const {
  std::int64_t blocks = 0;
  for (const Work& wanted : work)
    blocks += shape_.blocks_for(std::ssize(wanted.token_ids)) - shape_.blocks_for(length(wanted.sequence));
  return blocks;
}

/// The watermark (README.md, "When memory runs out") if a new sequence is to run beside others, else 0.
std::int64_t PagedManager::blocks_to_keep_free(std::span<const Work> work) const {
  const bool beside_others = pool_.in_use_count() > 0 || work.size() > 1;
  const auto is_new = [this](const Work& wanted) { return !tables_.contains(wanted.sequence); };
  return beside_others && std::ranges::any_of(work, is_new) ? shape_.watermark() : 0;
}

/// Adds the new rows of a sequence to the plan, and takes the blocks that they need.
void PagedManager::extend(BlockTable& table, const Work& wanted, PassPlan& plan) {
  plan.add(wanted.sequence, wanted.token_ids, static_cast<std::int32_t>(table.length));
  while (std::ssize(table.blocks) < shape_.blocks_for(std::ssize(wanted.token_ids))) {
    table.blocks.push_back(pool_.allocate().value());  // counted above, so never empty
    plan.fresh_blocks.push_back(table.blocks.back());
  }
  plan.add_slots(table.blocks, shape_.block_size);
}

void PagedManager::commit(const PassPlan& plan) {
  for (std::size_t s = 0; s < plan.sequences.size(); ++s)
    tables_.at(plan.sequences[s]).length = plan.context_len[s];
  planned_ = false;
}

void PagedManager::abort(const PassPlan& plan) {
  // `plan` changed no length, so the length says which blocks the table had. They are freed in reverse, so
  // that the pool gives out the same blocks next time.
  for (auto sequence = plan.sequences.rbegin(); sequence != plan.sequences.rend(); ++sequence) {
    BlockTable& table = tables_.at(*sequence);
    while (std::ssize(table.blocks) > shape_.blocks_for(table.length)) {
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

std::int64_t PagedManager::length(std::int32_t sequence) const {
  const auto table = tables_.find(sequence);
  return table == tables_.end() ? 0 : table->second.length;
}

}  // namespace kvcache
