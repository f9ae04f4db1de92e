/// @file
/// See prefix_caching_manager.h. Read `plan` first: look, take the hits, count, take the rest. Then `commit`.
///
/// A hit is a block that an earlier sequence computed: `acquire` adds a reference to it, `unshare` gives a
/// writer a copy. Blocks without references wait in the pool's queue. Blocks of equal content are twins and
/// have one identity. On a first reading skip the host tier, the pinned prefix and salts.
#include "step4_prefix_cache/prefix_caching_manager.h"

#include <iterator>
#include <stdexcept>

#include "step4_prefix_cache/block_hash.h"

namespace kvcache {

std::optional<PassPlan> PrefixCachingManager::plan(std::span<const Work> work) {
  if (!open_plan_.empty()) throw std::logic_error("the plan before is neither committed nor aborted");
  check_work(work, [this](std::int32_t sequence) { return length(sequence); });

  // Look: nothing changes.
  std::vector<PrefixHits> hits(work.size());
  for (std::size_t n = 0; n < work.size(); ++n) {
    const bool is_new = !sequences_.contains(work[n].sequence);  // an old one has its blocks already
    if (is_new) hits[n] = look_up(work[n].token_ids, work[n].salt);
  }
  // Take the hits: a block with a reference is not in the queue, so no allocation below can evict it.
  for (std::size_t n = 0; n < work.size(); ++n) take_hits(work[n], hits[n]);
  // Count the rest: either the pool has room for all of it, or nothing changes. `blocks_to_copy`, for
  // copy-on-write, is in prefix_caching_extras.cpp.
  if (blocks_to_add(work) + blocks_to_copy(work) + blocks_to_keep_free(work) > pool_.free_count()) {
    undo();
    return std::nullopt;
  }
  // Take the rest.
  PassPlan plan;
  std::vector<const std::vector<std::int32_t>*> tables;
  for (std::size_t n = 0; n < work.size(); ++n) {
    Sequence& sequence = *open_plan_[n].sequence;
    bring_back(hits[n].host_blocks, sequence, plan);  // from the host tier
    extend(sequence, work[n], plan);
    tables.push_back(&sequence.blocks);
  }
  plan.swaps_out = host_.swap_out(pool_);  // decides which of the evicted blocks move to the host tier
  plan.set_block_table(tables);
  return plan;
}

PrefixHits PrefixCachingManager::look_up(std::span<const std::int32_t> token_ids,
                                         std::string_view salt) const {
  const std::optional<BlockParent> root = root_of(salt);  // nothing: no block can be found, so no hits
  PrefixHits hits = root ? finder().find(token_ids, *root) : PrefixHits{};
  if (pinned_ && pinned_->salt == salt_or_default(salt))
    share_pinned(hits, pinned_blocks(), token_ids, pool_.index());
  return hits;
}

/// Registers a new sequence with its hits. Of an old sequence it only notes what `undo` needs.
void PrefixCachingManager::take_hits(const Work& wanted, const PrefixHits& hits) {
  const auto [entry, is_new] = sequences_.try_emplace(wanted.sequence);
  Sequence& sequence = entry->second;
  open_plan_.push_back({.id = wanted.sequence,
                        .sequence = &sequence,
                        .is_new = is_new,
                        .blocks_before = sequence.blocks.size(),
                        .tail_before = is_new ? -1 : sequence.blocks.back(),
                        .prefix_hits = std::ssize(hits.blocks) + std::ssize(hits.host_blocks)});
  if (!is_new) return;
  sequence.salt = salt_or_default(wanted.salt);
  sequence.cached_tokens = hits.tokens;
  sequence.blocks = hits.blocks;
  pool_.acquire(hits.blocks);
  for (const std::int32_t host_block : hits.host_blocks) host_.set_aside(host_block);
}

/// Blocks that no table has yet. `take_hits` has put the hits of the pool into the tables.
std::int64_t PrefixCachingManager::blocks_to_add(std::span<const Work> work) const {
  std::int64_t blocks = 0;
  for (std::size_t n = 0; n < work.size(); ++n)
    blocks += shape_.blocks_for(std::ssize(work[n].token_ids)) - std::ssize(open_plan_[n].sequence->blocks);
  return blocks;
}

/// Step 3's watermark, if a new sequence (`take_hits` has registered it) is to run beside others.
std::int64_t PrefixCachingManager::blocks_to_keep_free(std::span<const Work> work) const {
  const std::size_t pinned = pinned_ ? 1 : 0;  // a pinned prefix does not run
  const bool beside_others = work.size() > 1 || sequences_.size() > 1 + pinned;  // + the new one
  return beside_others && std::ranges::any_of(open_plan_, &Planned::is_new) ? shape_.watermark() : 0;
}

/// Whether the first new row goes to the last block of the table, and other sequences use that block too:
/// then it must be copied. This happens to a tail after a fork or behind a pinned prefix, and to a full block
/// if the pinned prefix is the whole prompt, whose last token is computed again.
bool PrefixCachingManager::writes_to_shared(const Sequence& sequence, const Work& wanted) const {
  const std::int64_t first =
      first_computed_position(sequence.stored_or_found(), std::ssize(wanted.token_ids));
  return first / shape_.block_size < std::ssize(sequence.blocks) &&
         pool_.reference_count(sequence.blocks.back()) > 1;
}

void PrefixCachingManager::extend(Sequence& sequence, const Work& wanted, PassPlan& plan) {
  const auto new_ids = wanted.token_ids.subspan(sequence.token_ids.size());  // of a new sequence: all
  sequence.token_ids.insert(sequence.token_ids.end(), new_ids.begin(), new_ids.end());
  if (writes_to_shared(sequence, wanted)) {
    std::int32_t& tail = sequence.blocks.back();
    const std::int32_t copy = pool_.unshare(tail);
    plan.copies.push_back({tail, copy});
    tail = copy;
  }
  plan.add(wanted.sequence, wanted.token_ids, static_cast<std::int32_t>(sequence.stored_or_found()));
  while (std::ssize(sequence.blocks) < shape_.blocks_for(std::ssize(wanted.token_ids))) {
    sequence.blocks.push_back(pool_.allocate());
    plan.fresh_blocks.push_back(sequence.blocks.back());
  }
  plan.add_slots(sequence.blocks, shape_.block_size);
}

void PrefixCachingManager::commit(const PassPlan& plan) {
  update_counters(plan);  // prefix_caching_reports.cpp
  settle(plan);           // evicted blocks lose their old content (prefix_caching_extras.cpp)
  open_plan_.clear();
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    Sequence& sequence = sequences_.at(plan.sequences[s]);
    sequence.length = plan.context_len[s];
    // A GPU's pass was planned before its last id was chosen; the caller has put it into the plan since (skip
    // it on a first reading).
    sequence.token_ids.back() = plan.token_ids[static_cast<std::size_t>(plan.logits_rows[s])];
    const std::int64_t first_position = plan.positions[static_cast<std::size_t>(plan.row_begin[s])];
    if (settings_.prefix_cache) publish(sequence, first_position / shape_.block_size);
  }
}

void PrefixCachingManager::publish(const Sequence& sequence, std::int64_t first_block) {
  for (std::int64_t n = first_block; n < sequence.length / shape_.block_size; ++n) {
    const std::int32_t block = sequence.blocks[static_cast<std::size_t>(n)];
    // Published before: the plan had no new token. KvManager::plan allows that; no program does it.
    if (findable(block)) continue;
    const BlockParent parent =  // a first block follows the salt: kNoSalt without one
        n == 0 ? salts_.remember(sequence.salt, pool_, host_)
               : pool_.index().as_parent(sequence.blocks[static_cast<std::size_t>(n - 1)]);
    const auto tokens = tokens_of_block(sequence.token_ids, n, shape_.block_size);
    const BlockContent content =
        finder().content_of(parent, tokens);  // a twin's identity, if there is a twin
    pool_.publish(block, content, tokens);
  }
}

void PrefixCachingManager::undo() {
  for (const Planned& planned : open_plan_) {
    if (planned.is_new) {
      sequences_.erase(planned.id);
      continue;
    }
    Sequence& sequence = *planned.sequence;
    sequence.token_ids.resize(static_cast<std::size_t>(sequence.length));
    sequence.blocks.resize(planned.blocks_before);
    sequence.blocks.back() = planned.tail_before;  // copy-on-write may have replaced it
  }
  open_plan_.clear();
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
