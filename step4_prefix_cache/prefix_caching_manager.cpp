/// @file
/// See prefix_caching_manager.h. Read `plan` first (look, take what is found, count, take the rest), then
/// `commit`, which makes blocks findable.
#include "step4_prefix_cache/prefix_caching_manager.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <unordered_set>

#include "step4_prefix_cache/block_hash.h"

namespace kvcache {
namespace {

/// A lookup in a large pool waits for memory. The hashes of the next blocks do not depend on what it finds,
/// so they are announced to the index while it waits: four blocks halve the time of a long prompt's lookup,
/// more gain nothing, and where the first block is not found they were in vain.
constexpr std::int64_t kHashesAhead = 4;

}  // namespace

PrefixCachingManager::PrefixCachingManager(const PagedShape& shape, SharingSettings settings)
    : shape_(shape),
      settings_(std::move(settings)),
      watermark_(shape.blocks / 100),
      references_(static_cast<std::size_t>(shape.blocks), 0),
      queue_(shape.blocks),
      index_(shape.blocks, shape.block_size),
      host_(settings_.host_blocks, shape.block_size) {}

// Finding

std::uint64_t PrefixCachingManager::hash_of(std::optional<std::uint64_t> parent,
                                            std::span<const std::int32_t> token_ids) const {
  const std::uint64_t hash = block_hash(parent, token_ids);
  return settings_.hash_bits >= 64 ? hash : hash & ((std::uint64_t{1} << settings_.hash_bits) - 1);
}

std::span<const std::int32_t> PrefixCachingManager::tokens_of_block(std::span<const std::int32_t> token_ids,
                                                                    std::int64_t block) const {
  return token_ids.subspan(static_cast<std::size_t>(block * shape_.block_size),
                           static_cast<std::size_t>(shape_.block_size));
}

/// Nothing for a salt under which no block can be found. The hash of a salt only says where to look, as every
/// hash here; what is compared is its identity, and the salts of two identities differ.
std::optional<PrefixCachingManager::ChainRoot> PrefixCachingManager::root_of(std::string_view salt) const {
  if (salt.empty()) return ChainRoot{};
  const auto known = salts_.find(salt);
  return known == salts_.end() ? std::nullopt : std::optional(known->second);
}

/// For a first block that is about to become findable.
PrefixCachingManager::ChainRoot PrefixCachingManager::remembered_root(const std::string& salt) {
  if (const std::optional<ChainRoot> known = root_of(salt)) return *known;
  // Clients choose their salts, so there may be any number of them.
  if (std::ssize(salts_) >= 2 * (shape_.blocks + settings_.host_blocks)) forget_unused_salts();
  return salts_[salt] = {salt_hash(salt), ++identities_};
}

/// At least half of them, since each of the others has a first block in the pool or in the host tier.
void PrefixCachingManager::forget_unused_salts() {
  std::unordered_set<std::uint64_t> parents;
  for (std::int32_t block = 0; block < shape_.blocks; ++block) parents.insert(index_.content(block).parent);
  for (std::int32_t slot = 0; slot < settings_.host_blocks; ++slot)
    parents.insert(host_.content(slot).parent);
  std::erase_if(salts_, [&](const auto& salt) { return !parents.contains(salt.second.identity); });
}

PrefixCachingManager::Hits PrefixCachingManager::find_cached(std::span<const std::int32_t> token_ids,
                                                             std::string_view salt) const {
  Hits hits;
  const std::optional<ChainRoot> root = root_of(salt);
  if (!settings_.prefix_cache || !root) return hits;
  // The last token is always computed: its K and V may be known, but the logits after it are not.
  const std::int64_t blocks = (static_cast<std::int64_t>(token_ids.size()) - 1) / shape_.block_size;
  std::vector<std::uint64_t> hashes;  // of the blocks looked up, and of some ahead
  std::uint64_t parent = root->identity;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::span<const std::int32_t> tokens = tokens_of_block(token_ids, block);
    while (std::ssize(hashes) < std::min(block + kHashesAhead, blocks)) {
      hashes.push_back(hash_of(hashes.empty() ? root->hash : hashes.back(),
                               tokens_of_block(token_ids, std::ssize(hashes))));
      index_.prefetch(hashes.back());
    }
    const std::uint64_t hash = hashes[static_cast<std::size_t>(block)];
    if (const auto found = index_.find(hash, parent, tokens); found && hits.host_slots.empty()) {
      hits.blocks.push_back(twin_to_share(*found, block));
      parent = index_.content(*found).identity;
    } else if (const auto slot = host_.find(hash, parent, tokens)) {
      hits.host_slots.push_back(*slot);
      parent = host_.content(*slot).identity;
    } else {
      break;
    }
    hits.tokens += shape_.block_size;
  }
  return hits;
}

/// Of the blocks that hold what `found`, block `n` of a sequence, holds: the pinned prefix's own, which
/// stays; else one that is in use, since a copy that nobody uses would be taken from the free blocks.
std::int32_t PrefixCachingManager::twin_to_share(std::int32_t found, std::int64_t n) const {
  if (pinned_) {
    const std::vector<std::int32_t>& pinned = sequences_.at(*pinned_).blocks;
    const auto at = static_cast<std::size_t>(n);
    if (at < pinned.size() && index_.content(pinned[at]).identity == index_.content(found).identity)
      return pinned[at];
  }
  for (std::optional<std::int32_t> twin = found; twin; twin = index_.next_twin(*twin)) {
    if (reference_count(*twin) > 0) return *twin;
  }
  return found;
}

PrefixCachingManager::Hits PrefixCachingManager::find_prefix(std::span<const std::int32_t> token_ids,
                                                             std::string_view salt) const {
  Hits hits = find_cached(token_ids, salt);
  if (!pinned_) return hits;
  const Sequence& prefix = sequences_.at(*pinned_);
  if (prefix.salt != salt) return hits;
  const auto length = static_cast<std::int64_t>(token_ids.size());
  const std::int64_t shared = std::min(prefix.length, length - 1);
  if (length >= prefix.length && shared > hits.tokens &&
      std::equal(token_ids.begin(), token_ids.begin() + prefix.length, prefix.token_ids.begin())) {
    hits.blocks.assign(prefix.blocks.begin(), prefix.blocks.begin() + shape_.blocks_for(shared));
    hits.host_slots.clear();
    hits.tokens = shared;
  }
  return hits;
}

// One pass

std::optional<PassPlan> PrefixCachingManager::plan(std::span<const Work> work) {
  if (!pending_.changes.empty()) throw std::logic_error("the plan before is neither committed nor aborted");
  check_work(work, [this](std::int32_t id) {
    const auto sequence = sequences_.find(id);
    return sequence == sequences_.end() ? 0 : sequence->second.length;
  });

  // Look: nothing changes.
  std::vector<Hits> hits(work.size());
  bool admits = false;
  for (std::size_t n = 0; n < work.size(); ++n) {
    if (sequences_.contains(work[n].sequence)) continue;
    hits[n] = find_prefix(work[n].token_ids, salt_or_default(work[n].salt));
    admits = true;
  }
  // Take the hits: what has a reference is not in the queue, so no allocation below can evict it.
  for (const Hits& found : hits) {
    for (const std::int32_t block : found.blocks) acquire(block);
    for (const std::int32_t slot : found.host_slots) host_.set_aside(slot);
  }
  // Count what else is needed.
  const bool beside_others = sequences_.size() > (pinned_ ? 1U : 0U) || work.size() > 1;
  const std::int64_t kept_free = admits && beside_others ? watermark_ : 0;
  if (demand(work, hits) + kept_free > queue_.size()) {
    give_back();
    return std::nullopt;
  }

  // Take the rest.
  PassPlan plan;
  pending_.counters = counters_;
  for (const Work& wanted : work) {
    const bool is_new = !sequences_.contains(wanted.sequence);
    Sequence& sequence = sequences_[wanted.sequence];
    if (is_new) sequence.salt = salt_or_default(wanted.salt);
    pending_.changes.push_back(
        {is_new, sequence.blocks.size(), sequence.blocks.empty() ? -1 : sequence.blocks.back()});
  }
  std::vector<const std::vector<std::int32_t>*> tables;
  for (std::size_t n = 0; n < work.size(); ++n) {
    Sequence& sequence = sequences_.at(work[n].sequence);
    if (pending_.changes[n].is_new) take_hits(sequence, hits[n], plan);
    const std::int64_t stored = pending_.changes[n].is_new ? hits[n].tokens : sequence.length;
    const std::int64_t first = std::min(stored, std::ssize(work[n].token_ids) - 1);  // one row at least
    sequence.token_ids.insert(
        sequence.token_ids.end(),
        work[n].token_ids.begin() + static_cast<std::ptrdiff_t>(sequence.token_ids.size()),
        work[n].token_ids.end());
    make_tail_writable(sequence, first, plan);
    plan.add(work[n].sequence, work[n].token_ids, static_cast<std::int32_t>(first));
    while (static_cast<std::int64_t>(sequence.blocks.size()) < shape_.blocks_for(plan.context_len.back())) {
      sequence.blocks.push_back(allocate());
      plan.fresh_blocks.push_back(sequence.blocks.back());
    }
    plan.add_slots(sequence.blocks, shape_.block_size);
    tables.push_back(&sequence.blocks);
  }
  swap_out_evicted(plan);
  plan.set_block_table(tables);
  return plan;
}

/// Blocks that must leave the queue for `work`, where the new sequences have taken `hits` already.
std::int64_t PrefixCachingManager::demand(std::span<const Work> work, std::span<const Hits> hits) const {
  std::int64_t blocks = 0;
  std::unordered_map<std::int32_t, std::int32_t> writers;  // to each block that is held already
  for (std::size_t n = 0; n < work.size(); ++n) {
    const auto known = sequences_.find(work[n].sequence);
    const bool is_new = known == sequences_.end();
    const std::vector<std::int32_t>& held = is_new ? hits[n].blocks : known->second.blocks;
    const std::int64_t stored = is_new ? hits[n].tokens : known->second.length;
    const std::int64_t length = std::ssize(work[n].token_ids);
    blocks += shape_.blocks_for(length) - std::ssize(held);
    // A new sequence writes to what it has found only in the tail of the pinned prefix.
    const bool is_in_held = std::min(stored, length - 1) / shape_.block_size < std::ssize(held);
    if (is_in_held) ++writers[held.back()];
  }
  // Of those who share a block all but the last holder copy it before they write.
  for (const auto& [block, count] : writers) blocks += std::min(count, reference_count(block) - 1);
  return blocks;
}

void PrefixCachingManager::acquire(std::int32_t block) {
  if (references_[static_cast<std::size_t>(block)]++ == 0) {
    queue_.remove(block);
    pending_.unqueued.push_back(block);
  }
  pending_.acquired.push_back(block);
}

/// The least recently used free block.
std::int32_t PrefixCachingManager::allocate() {
  const std::int32_t block = queue_.front();
  acquire(block);
  if (index_.contains(block)) {
    pending_.evicted.push_back(block);
    ++pending_.counters.evictions;
  }
  return block;
}

void PrefixCachingManager::take_hits(Sequence& sequence, const Hits& hits, PassPlan& plan) {
  sequence.blocks = hits.blocks;
  for (const std::int32_t slot : hits.host_slots) {
    sequence.blocks.push_back(allocate());
    plan.swaps_in.push_back({slot, sequence.blocks.back()});
    ++pending_.counters.swaps_in;
  }
  sequence.cached_tokens = hits.tokens;
  pending_.counters.prefix_hits += static_cast<std::int64_t>(sequence.blocks.size());
}

/// What was evicted moves to the host tier, the most recently used first, as long as there is room.
void PrefixCachingManager::swap_out_evicted(PassPlan& plan) {
  std::unordered_set<std::uint64_t> moved;  // identities: of blocks that hold the same, one is enough
  for (auto block = pending_.evicted.rbegin(); block != pending_.evicted.rend(); ++block) {
    const BlockContent& content = index_.content(*block);
    if (!moved.insert(content.identity).second) continue;
    // A slot that holds the same already, or the least recently stored one.
    auto slot = host_.find(content.hash, content.parent, index_.token_ids(*block));
    if (!slot || !host_.set_aside(*slot)) slot = host_.set_aside_oldest();
    if (!slot) break;
    plan.swaps_out.push_back({*block, *slot});
    ++pending_.counters.swaps_out;
  }
  std::ranges::reverse(plan.swaps_out);  // stored in the order of their last use
}

/// Copy-on-write: if position `first` lies in a block that others refer to, the sequence gets a copy of its
/// own.
void PrefixCachingManager::make_tail_writable(Sequence& sequence, std::int64_t first, PassPlan& plan) {
  if (first / shape_.block_size >= std::ssize(sequence.blocks)) return;  // it opens a block
  std::int32_t& tail = sequence.blocks.back();
  if (reference_count(tail) == 1) return;
  const std::int32_t copy = allocate();
  plan.copies.push_back({tail, copy});
  ++pending_.counters.copies;
  --references_[static_cast<std::size_t>(tail)];
  pending_.released.push_back(tail);
  tail = copy;
}

void PrefixCachingManager::commit(const PassPlan& plan) {
  settle_moves(plan);
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    Sequence& sequence = sequences_.at(plan.sequences[s]);
    sequence.length = plan.context_len[s];
    // The last id may not have been known when the pass was planned.
    sequence.token_ids.back() = plan.token_ids[static_cast<std::size_t>(plan.logits_rows[s])];
    // K and V are written now, so blocks that this pass has filled may be found from here on.
    const std::int64_t first = plan.positions[static_cast<std::size_t>(plan.row_begin[s])];
    if (settings_.prefix_cache) publish(sequence, first / shape_.block_size);
  }
  counters_ = pending_.counters;
  pending_ = Pending{};
}

/// The evicted are forgotten, and what changed places is found where it is now.
void PrefixCachingManager::settle_moves(const PassPlan& plan) {
  for (const BlockCopy& move : plan.swaps_out)
    host_.store(move.to, index_.content(move.from), index_.token_ids(move.from));
  for (const std::int32_t block : pending_.evicted) index_.erase(block);
  for (const BlockCopy& move : plan.swaps_in)
    index_.insert(move.to, host_.content(move.from), host_.token_ids(move.from));
  for (const BlockCopy& move : plan.swaps_in) host_.remove(move.from);
  host_.settle();
}

void PrefixCachingManager::publish(const Sequence& sequence, std::int64_t first_block) {
  for (std::int64_t n = first_block; n < sequence.length / shape_.block_size; ++n) {
    const std::int32_t block = sequence.blocks[static_cast<std::size_t>(n)];
    if (index_.contains(block)) continue;  // its last token was computed once more
    ChainRoot parent;
    if (n == 0) {
      parent = remembered_root(sequence.salt);
    } else {
      const BlockContent& before = index_.content(sequence.blocks[static_cast<std::size_t>(n - 1)]);
      parent = {before.hash, before.identity};
    }
    const std::span<const std::int32_t> tokens = tokens_of_block(sequence.token_ids, n);
    BlockContent content{.hash = hash_of(parent.hash, tokens), .identity = 0, .parent = parent.identity};
    // A second block with the same content has the same identity: what follows the one follows the other.
    if (const auto twin = index_.find(content.hash, content.parent, tokens)) {
      content.identity = index_.content(*twin).identity;
    } else if (const auto slot = host_.find(content.hash, content.parent, tokens)) {
      content.identity = host_.content(*slot).identity;
    } else {
      content.identity = ++identities_;
    }
    index_.insert(block, content, tokens);
  }
}

void PrefixCachingManager::abort(const PassPlan& plan) {
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const Pending::Change& change = pending_.changes[s];
    if (change.is_new) {
      sequences_.erase(plan.sequences[s]);
      continue;
    }
    Sequence& sequence = sequences_.at(plan.sequences[s]);
    sequence.token_ids.resize(static_cast<std::size_t>(sequence.length));
    sequence.blocks.resize(change.blocks_before);
    sequence.blocks.back() = change.tail_before;
  }
  give_back();
}

/// Of an outstanding plan, undoes what happened to blocks and to slots of the host tier.
void PrefixCachingManager::give_back() {
  for (const std::int32_t block : pending_.acquired) --references_[static_cast<std::size_t>(block)];
  for (const std::int32_t block : pending_.released) ++references_[static_cast<std::size_t>(block)];
  for (auto block = pending_.unqueued.rbegin(); block != pending_.unqueued.rend(); ++block)
    queue_.undo_remove(*block);
  host_.put_back();
  pending_ = Pending{};
}

// Sequences come and go

void PrefixCachingManager::free(std::int32_t id) {
  const auto sequence = sequences_.find(id);
  if (sequence == sequences_.end()) return;
  // The tail enters the queue before the head, so it is evicted first.
  for (auto block = sequence->second.blocks.rbegin(); block != sequence->second.blocks.rend(); ++block)
    release(*block);
  sequences_.erase(sequence);
  if (pinned_ == id) {
    pinned_.reset();
    pinned_token_ids_.clear();
    pinned_salt_.clear();
  }
}

void PrefixCachingManager::release(std::int32_t block) {
  if (--references_[static_cast<std::size_t>(block)] > 0) return;
  if (condemned_.erase(block) > 0) index_.erase(block);
  if (index_.contains(block)) {
    queue_.push_back(block);
  } else {
    queue_.push_front(block);
  }
}

void PrefixCachingManager::discard(const Work& work, std::int64_t cached_tokens) {
  free(work.sequence);
  const std::optional<ChainRoot> root = root_of(salt_or_default(work.salt));
  if (!settings_.prefix_cache || !root) return;
  std::optional<std::uint64_t> hash = root->hash;
  std::uint64_t parent = root->identity;
  for (std::int64_t n = 0; n < std::ssize(work.token_ids) / shape_.block_size; ++n) {
    const std::span<const std::int32_t> tokens = tokens_of_block(work.token_ids, n);
    hash = hash_of(hash, tokens);
    std::vector<std::int32_t> blocks;
    for (auto block = index_.find(*hash, parent, tokens); block; block = index_.next_twin(*block))
      blocks.push_back(*block);
    std::ranges::sort(blocks);
    const std::optional<std::int32_t> slot = host_.find(*hash, parent, tokens);
    if (blocks.empty() && !slot) return;  // then nothing is found after it
    parent = blocks.empty() ? host_.content(*slot).identity : index_.content(blocks.front()).identity;
    if (n < cached_tokens / shape_.block_size) continue;
    for (const std::int32_t block : blocks) forget(block);
    if (!slot) continue;
    host_.set_aside(*slot);
    host_.remove(*slot);
    host_.settle();
  }
}

/// Makes a findable block unfindable: now, or when the last sequence that uses it has let go of it.
void PrefixCachingManager::forget(std::int32_t block) {
  if (reference_count(block) > 0) {
    condemned_.insert(block);
    return;
  }
  index_.erase(block);
  queue_.remove(block);
  queue_.push_front(block);  // as one enters that holds nothing
}

void PrefixCachingManager::fork(std::int32_t parent, std::int32_t child) {
  const auto [added, is_new] = sequences_.emplace(child, sequences_.at(parent));
  if (!is_new) throw std::logic_error("a fork needs an id that no sequence has");
  Sequence& copy = added->second;
  copy.cached_tokens = copy.length;
  for (const std::int32_t block : copy.blocks) ++references_[static_cast<std::size_t>(block)];
}

void PrefixCachingManager::pin(std::int32_t sequence) {
  if (!sequences_.contains(sequence)) throw std::logic_error("only a sequence that is there can be pinned");
  if (pinned_ && *pinned_ != sequence) free(*pinned_);
  pinned_ = sequence;
  pinned_token_ids_ = sequences_.at(sequence).token_ids;
  pinned_salt_ = sequences_.at(sequence).salt;
}

std::int64_t shared_with_prefix(std::span<const std::int32_t> token_ids, std::span<const std::int32_t> prefix,
                                std::int64_t block_size, bool prefix_cache) {
  const auto common = std::ranges::mismatch(token_ids, prefix).in1 - token_ids.begin();
  if (!prefix_cache && common < std::ssize(prefix)) return 0;
  return std::max<std::int64_t>(0, std::min(common, std::ssize(token_ids) - 1)) / block_size;
}

std::int64_t PrefixCachingManager::capacity_for(std::span<const std::int32_t> token_ids,
                                                std::string_view salt) const {
  const std::int64_t pinned = shape_.blocks_for(std::ssize(pinned_token_ids_));
  const std::int64_t shared =
      salt_or_default(salt) == pinned_salt_
          ? shared_with_prefix(token_ids, pinned_token_ids_, shape_.block_size, settings_.prefix_cache)
          : 0;
  return (shape_.blocks - pinned + shared) * shape_.block_size;
}

// Reports

KvMemoryReport PrefixCachingManager::memory() const {
  std::unordered_map<std::int32_t, std::int64_t> stored;  // tokens in each block, shared or not
  for (const auto& [id, sequence] : sequences_) {
    for (std::size_t n = 0; n < sequence.blocks.size(); ++n) {
      const std::int64_t tokens =
          std::min(shape_.block_size, sequence.length - static_cast<std::int64_t>(n) * shape_.block_size);
      std::int64_t& in_block = stored[sequence.blocks[n]];
      in_block = std::max(in_block, tokens);
    }
  }
  KvMemoryReport report;
  report.bytes_per_token = shape_.bytes_per_token;
  report.reserved_bytes = (shape_.blocks - queue_.size()) * shape_.block_size * shape_.bytes_per_token;
  report.pool_bytes = shape_.blocks * shape_.block_size * shape_.bytes_per_token;
  for (const auto& [block, tokens] : stored) report.used_bytes += tokens * shape_.bytes_per_token;
  return report;
}

std::vector<std::int32_t> PrefixCachingManager::block_table(std::int32_t sequence) const {
  const auto known = sequences_.find(sequence);
  return known == sequences_.end() ? std::vector<std::int32_t>{} : known->second.blocks;
}

std::int64_t PrefixCachingManager::cached_tokens(std::int32_t sequence) const {
  const auto known = sequences_.find(sequence);
  return known == sequences_.end() ? 0 : known->second.cached_tokens;
}

BlocksReport PrefixCachingManager::blocks() const {
  BlocksReport report{.block_size = shape_.block_size, .total = shape_.blocks};
  for (const std::int32_t block : queue_.in_order()) ++(index_.contains(block) ? report.cached : report.free);
  report.in_use = shape_.blocks - queue_.size();
  return report;
}

CacheState PrefixCachingManager::state() const {
  std::unordered_set<std::uint64_t> roots{0};  // what a first block names as its parent
  for (const auto& [salt, root] : salts_) roots.insert(root.identity);
  const auto as_seen = [&roots](const BlockContent& content) {
    return CacheState::Content{content.hash, content.identity,
                               roots.contains(content.parent) ? 0 : content.parent};
  };
  CacheState state;
  state.block_size = shape_.block_size;
  for (const auto& [id, sequence] : sequences_) state.sequences[id] = {sequence.blocks, sequence.length};
  state.references = references_;
  state.free = queue_.in_order();
  for (std::int32_t block = 0; block < shape_.blocks; ++block)
    state.contents.push_back(as_seen(index_.content(block)));
  for (std::int32_t slot = 0; slot < settings_.host_blocks; ++slot)
    state.host.push_back(as_seen(host_.content(slot)));
  return state;
}

void PrefixCachingManager::check_invariants() const {
  const auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  };
  std::vector<std::int32_t> counted(static_cast<std::size_t>(shape_.blocks), 0);
  std::int64_t findable = 0;
  for (const auto& [id, sequence] : sequences_) {
    expect(static_cast<std::int64_t>(sequence.token_ids.size()) == sequence.length,
           "a sequence knows other tokens than it stores");
    expect(static_cast<std::int64_t>(sequence.blocks.size()) == shape_.blocks_for(sequence.length),
           "a sequence holds more or fewer blocks than its tokens need");
    ChainRoot parent;
    if (sequence.length >= shape_.block_size && settings_.prefix_cache) {
      const std::optional<ChainRoot> root = root_of(sequence.salt);
      expect(root.has_value(), "the salt of a findable block is forgotten");
      parent = *root;
    }
    for (std::int64_t n = 0; n < shape_.blocks_for(sequence.length); ++n) {
      const std::int32_t block = sequence.blocks[static_cast<std::size_t>(n)];
      ++counted[static_cast<std::size_t>(block)];
      const bool is_full = n < sequence.length / shape_.block_size;
      expect(index_.contains(block) == (is_full && settings_.prefix_cache),
             "a full block cannot be found, or a partly filled one can");
      if (!index_.contains(block)) continue;
      const BlockContent& content = index_.content(block);
      expect(std::ranges::equal(index_.token_ids(block), tokens_of_block(sequence.token_ids, n)),
             "a block is found by other tokens than it holds");
      expect(content.parent == parent.identity, "a block is found after another one than it follows");
      expect(content.hash == hash_of(parent.hash, index_.token_ids(block)),
             "a block has the hash of something else");
      parent = {content.hash, content.identity};
    }
  }
  expect(!pinned_ || sequences_.contains(*pinned_), "the pinned prefix is gone");
  expect(pending_.changes.empty(), "a plan is neither committed nor aborted");
  const std::vector<std::int32_t> queued = queue_.in_order();
  expect(static_cast<std::int64_t>(queued.size()) == queue_.size(), "the queue miscounts");
  std::vector<bool> in_queue(static_cast<std::size_t>(shape_.blocks), false);
  for (const std::int32_t block : queued) {
    expect(!in_queue[static_cast<std::size_t>(block)], "a block is twice in the queue");
    in_queue[static_cast<std::size_t>(block)] = true;
  }
  for (std::int32_t block = 0; block < shape_.blocks; ++block) {
    expect(reference_count(block) == counted[static_cast<std::size_t>(block)],
           "a reference is not counted, or counted and not there");
    expect((reference_count(block) == 0) == in_queue[static_cast<std::size_t>(block)],
           "a block is free and in use, or neither");
    expect(!condemned_.contains(block) || (reference_count(block) > 0 && index_.contains(block)),
           "a block is to be forgotten later that nobody uses or finds");
    findable += index_.contains(block) ? 1 : 0;
  }
  expect(findable == index_.size(), "the index has an entry for a block that it does not know");
  host_.check_invariants();
}

}  // namespace kvcache
