/// @file
/// What prefix_caching_manager.cpp leaves out: fork, pin and discard, how many blocks copy-on-write takes,
/// and what the host tier does in `plan` and `commit`.
#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {

void PrefixCachingManager::fork(std::int32_t parent, std::int32_t child) {
  const Sequence& original = sequences_.at(parent);
  const auto [added, is_new] = sequences_.try_emplace(child);
  if (!is_new) throw std::logic_error("a fork needs an id that no sequence has");
  Sequence& copy = added->second;
  // Assignment keeps a vector's capacity: so the child's first token reallocates nothing.
  copy.token_ids.reserve(original.token_ids.size() + static_cast<std::size_t>(shape_.block_size));
  copy = original;
  copy.cached_tokens = copy.length;  // the child has computed nothing
  pool_.share(copy.blocks);
}

void PrefixCachingManager::pin(std::int32_t sequence) {
  if (!sequences_.contains(sequence)) throw std::logic_error("only a sequence that is there can be pinned");
  if (pinned_ && pinned_->sequence != sequence) free(pinned_->sequence);
  pinned_ = PinnedPrefix{sequence, sequence_or_empty(sequence).token_ids, sequence_or_empty(sequence).salt};
}

/// Of the sequence itself: its copy in `pinned_` is for another thread, which calls `capacity_for`.
PinnedBlocks PrefixCachingManager::pinned_blocks() const {
  const Sequence& sequence = sequence_or_empty(pinned_->sequence);
  return {sequence.blocks, std::span(sequence.token_ids).first(static_cast<std::size_t>(sequence.length))};
}

/// The sequence may have been freed before, and then its table is gone. So its blocks are looked up as
/// PrefixFinder::find does, here with all twins.
void PrefixCachingManager::discard(const Work& work, std::int64_t cached_tokens) {
  free(work.sequence);
  const std::optional<BlockParent> root = root_of(work.salt);
  if (!root) return;
  const PrefixIndex& index = pool_.index();
  HashChain hashes(index, work.token_ids, std::ssize(work.token_ids) / shape_.block_size, *root,
                   settings_.hash_bits);
  std::uint64_t parent_identity = root->identity;
  for (std::int64_t n = 0; n < hashes.size(); ++n) {
    // Every place of this content: its blocks in the pool, and one host block at most.
    const auto host_block = host_.find(hashes[n], parent_identity, hashes.token_ids(n));
    std::vector<std::int32_t> blocks;
    for (auto twin = index.find(hashes[n], parent_identity, hashes.token_ids(n)); twin;
         twin = index.next_twin(*twin))
      blocks.push_back(*twin);
    if (blocks.empty() && !host_block) return;  // no later block can be found
    parent_identity = (host_block ? host_.content(*host_block) : index.content(blocks.front())).identity;
    if (n < cached_tokens / shape_.block_size) continue;
    std::ranges::sort(blocks);
    for (const std::int32_t block : blocks) pool_.forget(block);
    if (host_block) host_.forget(*host_block);
  }
}

/// If three sequences share a block and all write to it, two copy it: the third is then alone with it. If a
/// fourth shares the block and does not write, all three copy it.
std::int64_t PrefixCachingManager::blocks_to_copy(std::span<const Work> work) const {
  std::unordered_map<std::int32_t, std::int32_t> writers;  // how many, of each shared block
  for (std::size_t n = 0; n < work.size(); ++n) {
    const Sequence& sequence = *open_plan_[n].sequence;
    if (writes_to_shared(sequence, work[n])) ++writers[sequence.blocks.back()];
  }
  std::int64_t blocks = 0;
  for (const auto& [block, count] : writers) blocks += std::min(count, pool_.reference_count(block) - 1);
  return blocks;
}

void PrefixCachingManager::bring_back(std::span<const std::int32_t> host_blocks, Sequence& sequence,
                                      PassPlan& plan) {
  for (const std::int32_t host_block : host_blocks) {
    sequence.blocks.push_back(pool_.allocate());
    plan.swaps_in.push_back({host_block, sequence.blocks.back()});
  }
}

/// Makes the plan final in the pool and the host tier.
void PrefixCachingManager::settle(const PassPlan& plan) {
  // 1. `store` before the pool's `settle`, which erases the contents of evicted blocks that `store` reads.
  // 2. That `settle` before `publish`: a block that comes back may lie where an evicted one lay.
  // 3. `publish` before the host tier's `settle`, which erases the contents that `publish` reads.
  host_.store(plan.swaps_out, pool_.index());
  pool_.settle();
  for (const auto& [host_block, block] : plan.swaps_in)
    pool_.publish(block, host_.content(host_block), host_.token_ids(host_block));
  host_.settle(plan.swaps_in);
}

}  // namespace kvcache
