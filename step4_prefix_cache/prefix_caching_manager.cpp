/// @file
/// See prefix_caching_manager.h. Read `plan` first: look, take the hits, count, take the rest. Then `commit`.
#include "step4_prefix_cache/prefix_caching_manager.h"

#include <iterator>
#include <stdexcept>

#include "step4_prefix_cache/block_hash.h"

namespace kvcache {

std::optional<PassPlan> PrefixCachingManager::plan(std::span<const Work> work) {
  if (!changes_.empty()) throw std::logic_error("the plan before is neither committed nor aborted");
  check_work(work, [this](std::int32_t sequence) { return length(sequence); });

  // Look: nothing changes.
  std::vector<PrefixHits> hits(work.size());
  for (std::size_t n = 0; n < work.size(); ++n) {
    if (!sequences_.contains(work[n].sequence))
      hits[n] = look_up(work[n].token_ids, salt_or_default(work[n].salt));
  }
  // Take the hits: a block with a reference is not in the queue, so no allocation below can evict it.
  for (std::size_t n = 0; n < work.size(); ++n) take(work[n], hits[n]);
  // Count the rest: either the pool has room for all of it, or nothing changes.
  if (blocks_to_add(work) + blocks_to_copy(work) + blocks_to_keep_free(work) > pool_.free_count()) {
    undo();
    return std::nullopt;
  }
  // Take the rest.
  PassPlan plan;
  std::vector<const std::vector<std::int32_t>*> tables;
  for (std::size_t n = 0; n < work.size(); ++n) {
    Sequence& sequence = *changes_[n].sequence;
    bring_back(hits[n].host_blocks, sequence, plan);
    extend(sequence, work[n], plan);
    tables.push_back(&sequence.blocks);
  }
  plan.swaps_out = host_.swap_out(pool_);  // decides which of the evicted blocks move to the host tier
  plan.set_block_table(tables);
  return plan;
}

PrefixHits PrefixCachingManager::look_up(std::span<const std::int32_t> token_ids,
                                         std::string_view salt) const {
  const std::optional<BlockParent> root = root_of(salt);
  PrefixHits hits = root ? finder().find(token_ids, *root) : PrefixHits{};
  if (pinned_ && pinned_->salt == salt) share_pinned(hits, pinned_blocks(), token_ids, pool_.index());
  return hits;
}

/// Registers a new sequence with its hits, and notes for every sequence what `undo` needs.
void PrefixCachingManager::take(const Work& wanted, const PrefixHits& hits) {
  const auto [entry, is_new] = sequences_.try_emplace(wanted.sequence);
  Sequence& sequence = entry->second;
  Change& change =
      changes_.emplace_back(Change{.id = wanted.sequence, .sequence = &sequence, .is_new = is_new});
  if (!is_new) {
    change.blocks_before = sequence.blocks.size();
    change.tail_before = sequence.blocks.back();
    return;
  }
  change.prefix_hits = std::ssize(hits.blocks) + std::ssize(hits.host_blocks);
  sequence.salt = salt_or_default(wanted.salt);
  sequence.cached_tokens = hits.tokens;
  sequence.blocks = hits.blocks;
  pool_.acquire(hits.blocks);
  for (const std::int32_t host_block : hits.host_blocks) host_.set_aside(host_block);
}

/// Blocks that no table has yet: for new rows, and for blocks that come back from the host tier.
std::int64_t PrefixCachingManager::blocks_to_add(std::span<const Work> work) const {
  std::int64_t blocks = 0;
  for (std::size_t n = 0; n < work.size(); ++n)
    blocks += shape_.blocks_for(std::ssize(work[n].token_ids)) - std::ssize(changes_[n].sequence->blocks);
  return blocks;
}

/// Of three sequences that share a block and all write to it, two copy it; the third is then alone with it.
std::int64_t PrefixCachingManager::blocks_to_copy(std::span<const Work> work) const {
  std::unordered_map<std::int32_t, std::int32_t> writers;  // to each shared block
  for (std::size_t n = 0; n < work.size(); ++n) {
    const Sequence& sequence = *changes_[n].sequence;
    if (writes_to_shared(sequence, work[n])) ++writers[sequence.blocks.back()];
  }
  std::int64_t blocks = 0;
  for (const auto& [block, count] : writers) blocks += std::min(count, pool_.reference_count(block) - 1);
  return blocks;
}

/// Step 3's watermark, for running sequences to grow into. A pinned prefix does not count as one.
std::int64_t PrefixCachingManager::blocks_to_keep_free(std::span<const Work> work) const {
  if (std::ranges::none_of(changes_, &Change::is_new)) return 0;
  const std::size_t alone = pinned_ ? 2 : 1;  // sequences_ already holds the new one, and the pinned one
  return work.size() > 1 || sequences_.size() > alone ? shape_.watermark() : 0;
}

/// Whether the first row to write lies in a shared block, the table's last: all before it are computed.
/// If all blocks are full, the first row lies behind the table, unless only the last token is computed again.
bool PrefixCachingManager::writes_to_shared(const Sequence& sequence, const Work& wanted) const {
  const std::int64_t first = first_computed_position(sequence.known_tokens(), std::ssize(wanted.token_ids));
  return first / shape_.block_size < std::ssize(sequence.blocks) &&
         pool_.reference_count(sequence.blocks.back()) > 1;
}

void PrefixCachingManager::extend(Sequence& sequence, const Work& wanted, PassPlan& plan) {
  const auto new_ids = wanted.token_ids.subspan(sequence.token_ids.size());
  sequence.token_ids.insert(sequence.token_ids.end(), new_ids.begin(), new_ids.end());
  if (writes_to_shared(sequence, wanted)) {
    std::int32_t& tail = sequence.blocks.back();
    const std::int32_t copy = pool_.unshare(tail);
    plan.copies.push_back({tail, copy});
    tail = copy;
  }
  plan.add(wanted.sequence, wanted.token_ids, static_cast<std::int32_t>(sequence.known_tokens()));
  while (std::ssize(sequence.blocks) < shape_.blocks_for(std::ssize(wanted.token_ids))) {
    sequence.blocks.push_back(pool_.allocate());
    plan.fresh_blocks.push_back(sequence.blocks.back());
  }
  plan.add_slots(sequence.blocks, shape_.block_size);
}

void PrefixCachingManager::commit(const PassPlan& plan) {
  update_counters(plan);
  // 1. `store` before the pool's `settle`, which erases the contents of evicted blocks that `store` reads.
  // 2. That `settle` before `publish`: a block that comes back may lie where an evicted one lay.
  // 3. `publish` before the host tier's `settle`, which erases the contents that `publish` reads.
  host_.store(plan.swaps_out, pool_.index());
  pool_.settle();
  for (const auto& [host_block, block] : plan.swaps_in)
    pool_.publish(block, host_.content(host_block), host_.token_ids(host_block));
  host_.settle(plan.swaps_in);
  changes_.clear();
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    Sequence& sequence = sequences_.at(plan.sequences[s]);
    sequence.length = plan.context_len[s];
    // The last id may have been a placeholder when the pass was planned; the plan has the chosen id now.
    sequence.token_ids.back() = plan.token_ids[static_cast<std::size_t>(plan.logits_rows[s])];
    const std::int64_t first = plan.positions[static_cast<std::size_t>(plan.row_begin[s])];
    if (settings_.prefix_cache) publish(sequence, first / shape_.block_size);
  }
}

void PrefixCachingManager::publish(const Sequence& sequence, std::int64_t first_block) {
  for (std::int64_t n = first_block; n < sequence.length / shape_.block_size; ++n) {
    const std::int32_t block = sequence.blocks[static_cast<std::size_t>(n)];
    if (findable(block)) continue;  // published before; its last token was computed again, for the logits
    const BlockParent parent =
        n == 0 ? salts_.remember(sequence.salt, pool_, host_)
               : pool_.index().as_parent(sequence.blocks[static_cast<std::size_t>(n - 1)]);
    const auto tokens = tokens_of_block(sequence.token_ids, n, shape_.block_size);
    pool_.publish(block, finder().content_of(parent, tokens), tokens);
  }
}

void PrefixCachingManager::undo() {
  for (const Change& change : changes_) {
    if (change.is_new) {
      sequences_.erase(change.id);
      continue;
    }
    Sequence& sequence = *change.sequence;
    sequence.token_ids.resize(static_cast<std::size_t>(sequence.length));
    sequence.blocks.resize(change.blocks_before);
    sequence.blocks.back() = change.tail_before;
  }
  changes_.clear();
  pool_.undo();
  host_.put_back();
}

void PrefixCachingManager::free(std::int32_t id) {
  const auto sequence = sequences_.find(id);
  if (sequence == sequences_.end()) return;
  pool_.release(sequence->second.blocks);
  sequences_.erase(sequence);
  if (pinned_ && pinned_->sequence == id) pinned_.reset();
}

}  // namespace kvcache
