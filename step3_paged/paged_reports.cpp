/// @file
/// PagedManager's reports: memory, blocks, the state for a trace, and the check of its invariants. See
/// paged_manager.h.
#include <stdexcept>

#include "step3_paged/paged_manager.h"

namespace kvcache {

KvMemoryReport PagedManager::memory() const {
  KvMemoryReport report;
  report.bytes_per_token = shape_.bytes_per_token;
  report.reserved_bytes = pool_.in_use_count() * shape_.block_bytes();
  report.pool_bytes = pool_.total() * shape_.block_bytes();
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
