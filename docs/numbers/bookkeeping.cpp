/// @file
/// See bookkeeping.h.
#include "docs/numbers/bookkeeping.h"

#include <algorithm>

#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/paged_manager.h"

namespace kvcache {

std::vector<std::vector<std::int32_t>> sequences_of(std::span<const std::int64_t> lengths) {
  std::vector<std::vector<std::int32_t>> sequences;
  for (const std::int64_t length : lengths)
    sequences.emplace_back(static_cast<std::size_t>(length), static_cast<std::int32_t>(sequences.size()));
  return sequences;
}

std::int64_t admit_until_refused(KvManager& manager, std::span<const std::vector<std::int32_t>> sequences) {
  std::int32_t admitted = 0;
  for (const std::vector<std::int32_t>& token_ids : sequences) {
    const Work prefill[] = {{admitted, token_ids}};
    const std::optional<PassPlan> plan = manager.plan(prefill);
    if (!plan) break;
    manager.commit(*plan);
    ++admitted;
  }
  return admitted;
}

KvMemoryReport flat_memory(std::span<const std::int64_t> lengths, std::int64_t max_seq_len,
                           std::int64_t bytes_per_token) {
  FlatCacheManager manager({static_cast<std::int64_t>(lengths.size()), max_seq_len, bytes_per_token});
  admit_until_refused(manager, sequences_of(lengths));
  return manager.memory();
}

KvMemoryReport paged_memory(std::span<const std::int64_t> lengths, std::int64_t block_size,
                            std::int64_t bytes_per_token) {
  PagedShape shape{0, block_size, bytes_per_token};
  for (const std::int64_t length : lengths) shape.blocks += shape.blocks_for(length);
  shape.blocks += shape.blocks / 50 + 1;  // above the watermark
  PagedManager manager(shape);
  admit_until_refused(manager, sequences_of(lengths));
  return manager.memory();
}

std::int64_t most_slots_wasted(std::int64_t longest, std::int64_t block_size) {
  std::int64_t most = 0;
  for (std::int64_t length = 1; length <= longest; ++length) {
    const KvMemoryReport memory = paged_memory({{length}}, block_size, /*bytes_per_token=*/1);
    most = std::max(most, memory.reserved_bytes - memory.used_bytes);
  }
  return most;
}

bool grows_at_multiples_only(std::int64_t longest, std::int64_t block_size) {
  PagedManager manager({longest, block_size, /*bytes_per_token=*/1});
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(longest + 1));
  std::int64_t reserved = 0;
  for (std::int64_t length = 0; length <= longest; ++length) {
    const Work work[] = {{0, std::span(ids).first(static_cast<std::size_t>(length + 1))}};
    manager.commit(manager.plan(work).value());
    const bool grew = manager.memory().reserved_bytes > reserved;
    if (grew != (length % block_size == 0)) return false;
    reserved = manager.memory().reserved_bytes;
  }
  return true;
}

}  // namespace kvcache
