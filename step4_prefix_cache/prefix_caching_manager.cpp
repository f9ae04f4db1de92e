/// @file
/// See prefix_caching_manager.h. Read `plan` first (look, take what is found, count, take the rest), then
/// `commit`, which makes blocks findable.
#include "step4_prefix_cache/prefix_caching_manager.h"

#include <iterator>
#include <stdexcept>
#include <utility>

#include "step4_prefix_cache/block_hash.h"

namespace kvcache {

PrefixCachingManager::PrefixCachingManager(const PagedShape& shape, SharingSettings settings)
    : shape_(shape),
      settings_(std::move(settings)),
      watermark_(shape.blocks / 100),
      pool_(shape.blocks, shape.block_size),
      host_(settings_.host_blocks, shape.block_size) {}

// One pass

std::optional<PassPlan> PrefixCachingManager::plan(std::span<const Work> work) {
  if (!changes_.empty()) throw std::logic_error("the plan before is neither committed nor aborted");
  check_work(work, [this](std::int32_t sequence) { return length(sequence); });

  // Look: nothing changes.
  std::vector<PrefixHits> hits(work.size());
  for (std::size_t n = 0; n < work.size(); ++n) {
    if (!sequences_.contains(work[n].sequence))
      hits[n] = find(work[n].token_ids, salt_or_default(work[n].salt));
  }
  // Take what is found: what has a reference is not in the queue, so no allocation below can evict it.
  for (std::size_t n = 0; n < work.size(); ++n) take(work[n], hits[n]);
  // Count the rest. All of it can be had, or nothing changes.
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
  plan.swaps_out = host_.swap_out(pool_);
  plan.set_block_table(tables);
  return plan;
}

PrefixHits PrefixCachingManager::find(std::span<const std::int32_t> token_ids, std::string_view salt) const {
  PinnedPrefix pinned;
  if (pinned_ && pinned_->salt == salt) {
    const Sequence& prefix = known(pinned_->id);  // not the copy: see Pinned
    pinned = {prefix.blocks, std::span(prefix.token_ids).first(static_cast<std::size_t>(prefix.length))};
  }
  return finder(pinned).find(token_ids, root_of(salt));
}

/// Registers a new sequence with what it has found, and notes what `undo` needs of any.
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

/// To write to, and for what comes back from the host tier: no table has either yet.
std::int64_t PrefixCachingManager::blocks_to_add(std::span<const Work> work) const {
  std::int64_t blocks = 0;
  for (std::size_t n = 0; n < work.size(); ++n)
    blocks += shape_.blocks_for(std::ssize(work[n].token_ids)) - std::ssize(changes_[n].sequence->blocks);
  return blocks;
}

/// Copy-on-write: each writer to a shared block copies it, unless it is the last that refers to it. So where
/// all that refer to a block write to it, one of them writes in place.
std::int64_t PrefixCachingManager::blocks_to_copy(std::span<const Work> work) const {
  std::unordered_map<std::int32_t, std::int32_t> writers;  // to each block that is shared
  for (std::size_t n = 0; n < work.size(); ++n) {
    const Sequence& sequence = *changes_[n].sequence;
    if (writes_to_shared(sequence, work[n])) ++writers[sequence.blocks.back()];
  }
  std::int64_t blocks = 0;
  for (const auto& [block, count] : writers) blocks += std::min(count, pool_.reference_count(block) - 1);
  return blocks;
}

/// Step 3's watermark, for running sequences to grow into. A pinned prefix is none of them.
std::int64_t PrefixCachingManager::blocks_to_keep_free(std::span<const Work> work) const {
  const bool admits = std::ranges::any_of(changes_, &Change::is_new);
  const std::size_t alone = pinned_ ? 2 : 1;  // with the sequence itself, which `take` has registered
  const bool beside_others = work.size() > 1 || sequences_.size() > alone;
  return admits && beside_others ? watermark_ : 0;
}

/// Whether the first row to be written lies in a block that others refer to. If the table has a block for
/// that row it is the last one: those before it are full, and their tokens are known.
bool PrefixCachingManager::writes_to_shared(const Sequence& sequence, const Work& wanted) const {
  const std::int64_t first = first_computed(sequence.known_tokens(), std::ssize(wanted.token_ids));
  return first / shape_.block_size < std::ssize(sequence.blocks) &&
         pool_.reference_count(sequence.blocks.back()) > 1;
}

void PrefixCachingManager::bring_back(std::span<const std::int32_t> host_blocks, Sequence& sequence,
                                      PassPlan& plan) {
  for (const std::int32_t host_block : host_blocks) {
    sequence.blocks.push_back(pool_.allocate());
    plan.swaps_in.push_back({host_block, sequence.blocks.back()});
  }
}

/// Adds the rows of a sequence to the plan, with blocks of its own to write to.
void PrefixCachingManager::extend(Sequence& sequence, const Work& wanted, PassPlan& plan) {
  sequence.token_ids.insert(sequence.token_ids.end(),
                            wanted.token_ids.begin() + static_cast<std::ptrdiff_t>(sequence.token_ids.size()),
                            wanted.token_ids.end());
  if (writes_to_shared(sequence, wanted)) {
    std::int32_t& tail = sequence.blocks.back();
    const std::int32_t copy = pool_.unshare(tail);
    plan.copies.push_back({tail, copy});
    tail = copy;
  }
  plan.add(wanted.sequence, wanted.token_ids, static_cast<std::int32_t>(sequence.known_tokens()));
  while (std::ssize(sequence.blocks) < shape_.blocks_for(plan.context_len.back())) {
    sequence.blocks.push_back(pool_.allocate());
    plan.fresh_blocks.push_back(sequence.blocks.back());
  }
  plan.add_slots(sequence.blocks, shape_.block_size);
}

void PrefixCachingManager::commit(const PassPlan& plan) {
  for (const Change& change : changes_) counters_.prefix_hits += change.prefix_hits;
  counters_.evictions += std::ssize(pool_.evicted());
  counters_.copies += std::ssize(plan.copies);
  counters_.swaps_out += std::ssize(plan.swaps_out);
  counters_.swaps_in += std::ssize(plan.swaps_in);
  // What moves out is read from the pool's index, until `pool_.settle` erases it there.
  host_.store(plan.swaps_out, pool_.index());
  pool_.settle();
  // What comes back may take the place of what was erased. It is read here until `host_.settle` empties it.
  for (const auto& [host_block, block] : plan.swaps_in)
    pool_.publish(block, host_.content(host_block), host_.token_ids(host_block));
  host_.settle(plan.swaps_in);
  changes_.clear();
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    Sequence& sequence = sequences_.at(plan.sequences[s]);
    sequence.length = plan.context_len[s];
    // When the pass was planned the last id may have been a placeholder; the plan has the right one now.
    sequence.token_ids.back() = plan.token_ids[static_cast<std::size_t>(plan.logits_rows[s])];
    const std::int64_t first = plan.positions[static_cast<std::size_t>(plan.row_begin[s])];
    if (settings_.prefix_cache) publish(sequence, first / shape_.block_size);
  }
}

/// The pass is queued, and what is planned from here on runs after it: the blocks that it fills may be found.
void PrefixCachingManager::publish(const Sequence& sequence, std::int64_t first_block) {
  for (std::int64_t n = first_block; n < sequence.length / shape_.block_size; ++n) {
    const std::int32_t block = sequence.blocks[static_cast<std::size_t>(n)];
    if (findable(block)) continue;  // all of it was known; only its last token was computed, for the logits
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

// Sequences come and go

void PrefixCachingManager::free(std::int32_t id) {
  const auto sequence = sequences_.find(id);
  if (sequence == sequences_.end()) return;
  pool_.release(sequence->second.blocks);
  sequences_.erase(sequence);
  if (pinned_ && pinned_->id == id) pinned_.reset();
}

void PrefixCachingManager::discard(const Work& work, std::int64_t cached_tokens) {
  free(work.sequence);
  // It may have been freed before, so nobody knows which blocks were its own: all places of what it computed
  // are forgotten.
  const std::optional<BlockParent> root = root_of(salt_or_default(work.salt));
  if (!root) return;
  const std::vector<PrefixPlaces> places = finder().find_all(work.token_ids, *root);
  for (std::int64_t n = cached_tokens / shape_.block_size; n < std::ssize(places); ++n) {
    const PrefixPlaces& place = places[static_cast<std::size_t>(n)];
    for (const std::int32_t block : place.blocks) pool_.forget(block);
    if (place.host_block) host_.forget(*place.host_block);
  }
}

void PrefixCachingManager::fork(std::int32_t parent, std::int32_t child) {
  const Sequence& original = sequences_.at(parent);
  const auto [added, is_new] = sequences_.try_emplace(child);
  if (!is_new) throw std::logic_error("a fork needs an id that no sequence has");
  Sequence& copy = added->second;
  // Room for a block more, which the assignment keeps: else the child's first token would move the list, and
  // what looks like the price of copy-on-write would be that of fresh memory.
  copy.token_ids.reserve(original.token_ids.size() + static_cast<std::size_t>(shape_.block_size));
  copy = original;
  copy.cached_tokens = copy.length;  // the child has computed nothing
  pool_.share(copy.blocks);
}

void PrefixCachingManager::pin(std::int32_t sequence) {
  if (!sequences_.contains(sequence)) throw std::logic_error("only a sequence that is there can be pinned");
  if (pinned_ && pinned_->id != sequence) free(pinned_->id);
  pinned_ = Pinned{sequence, known(sequence).token_ids, known(sequence).salt};
}

/// All blocks but those of the pinned prefix that the sequence does not share.
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

}  // namespace kvcache
