/// @file
/// What a PrefixCachingManager says of itself: capacity, counters, memory, state, whether all is in order.
#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "step4_prefix_cache/block_hash.h"
#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {

/// All blocks, less those of the pinned prefix that the sequence does not share.
std::int64_t PrefixCachingManager::capacity_for(std::span<const std::int32_t> token_ids,
                                                std::string_view salt) const {
  if (!pinned_) return capacity();
  const std::int64_t shared =
      salt_or_default(salt) == pinned_->salt
          ? shared_with_prefix(token_ids, pinned_->token_ids, shape_.block_size, settings_.prefix_cache)
          : 0;
  const std::int64_t taken = shape_.blocks_for(std::ssize(pinned_->token_ids)) - shared;
  return (shape_.blocks - taken) * shape_.block_size;
}

void PrefixCachingManager::update_counters(const PassPlan& plan) {
  for (const Planned& planned : open_plan_) counters_.prefix_hits += planned.prefix_hits;
  counters_.evictions += std::ssize(pool_.evicted());
  counters_.copies += std::ssize(plan.copies);
  counters_.swaps_out += std::ssize(plan.swaps_out);
  counters_.swaps_in += std::ssize(plan.swaps_in);
}

KvMemoryReport PrefixCachingManager::memory() const {
  KvMemoryReport report;
  report.bytes_per_token = shape_.bytes_per_token;
  report.reserved_bytes = pool_.in_use_count() * shape_.block_bytes();
  report.pool_bytes = pool_.total() * shape_.block_bytes();
  std::unordered_map<std::int32_t, std::int64_t> shared;  // tokens in each block of several sequences
  std::int64_t tokens = 0;
  for (const auto& [id, sequence] : sequences_) {
    std::int64_t left = sequence.length;
    for (const std::int32_t block : sequence.blocks) {
      const std::int64_t stored = std::clamp<std::int64_t>(left, 0, shape_.block_size);
      left -= stored;
      if (pool_.reference_count(block) == 1) {
        tokens += stored;
      } else {
        shared[block] = std::max(shared[block], stored);
      }
    }
  }
  for (const auto& [block, stored] : shared) tokens += stored;  // each once
  report.used_bytes = tokens * shape_.bytes_per_token;
  return report;
}

BlocksReport PrefixCachingManager::blocks() const {
  const std::int64_t cached = pool_.cached_count();
  return {shape_.block_size, pool_.total(), pool_.free_count() - cached, cached, pool_.in_use_count()};
}

CacheState PrefixCachingManager::state() const {
  const std::unordered_set<std::uint64_t> salts = salts_.identities();  // no blocks: a trace shows 0 for them
  const auto as_seen = [&salts](const BlockContent& content) {
    return CacheState::Content{content.hash, content.identity,
                               salts.contains(content.parent_identity) ? 0 : content.parent_identity};
  };
  CacheState state;
  state.block_size = shape_.block_size;
  for (const auto& [id, sequence] : sequences_) state.sequences[id] = {sequence.blocks, sequence.length};
  state.references = pool_.references();
  state.free = pool_.free_in_order();
  for (std::int32_t n = 0; n < pool_.total(); ++n)
    state.contents.push_back(as_seen(pool_.index().content(n)));
  for (std::int32_t n = 0; n < host_.total(); ++n) state.host.push_back(as_seen(host_.content(n)));
  return state;
}

void PrefixCachingManager::check_invariants() const {
  const auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  };
  expect(open_plan_.empty(), "a plan is neither committed nor aborted");
  pool_.check_invariants();
  host_.check_invariants();
  std::vector<std::int32_t> counted(static_cast<std::size_t>(shape_.blocks), 0);
  for (const auto& [id, sequence] : sequences_) {
    expect(std::ssize(sequence.token_ids) == sequence.length, "a sequence knows other tokens than it stores");
    expect(std::ssize(sequence.blocks) == shape_.blocks_for(sequence.length),
           "a sequence holds more or fewer blocks than its tokens need");
    for (const std::int32_t block : sequence.blocks) ++counted[static_cast<std::size_t>(block)];
    check_blocks_are_found(sequence);
  }
  expect(counted == pool_.references(), "a block's reference count differs from the tables that hold it");
  expect(!pinned_ || sequences_.contains(pinned_->sequence), "the pinned prefix is gone");
}

/// Each full block of `sequence` is findable by what it holds, and its other blocks are not.
void PrefixCachingManager::check_blocks_are_found(const Sequence& sequence) const {
  const auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  };
  const std::int64_t full = settings_.prefix_cache ? sequence.length / shape_.block_size : 0;
  const std::optional<BlockParent> root = full > 0 ? salts_.find(sequence.salt) : kNoSalt;
  expect(root.has_value(), "the salt of a findable block is forgotten");
  BlockParent parent = *root;
  for (std::int64_t n = 0; n < std::ssize(sequence.blocks); ++n) {
    const std::int32_t block = sequence.blocks[static_cast<std::size_t>(n)];
    expect(findable(block) == (n < full), "a full block cannot be found, or a partly filled one can");
    if (n >= full) continue;
    const BlockContent& content = pool_.index().content(block);
    const auto tokens = tokens_of_block(sequence.token_ids, n, shape_.block_size);
    expect(std::ranges::equal(pool_.index().token_ids(block), tokens),
           "a block is found by other tokens than it holds");
    expect(content.parent_identity == parent.identity, "a block is found after another one than it follows");
    expect(content.hash == block_hash(parent.hash, tokens, settings_.hash_bits),
           "a block has the hash of something else");
    parent = {content.hash, content.identity};
  }
}

}  // namespace kvcache
