/// @file
/// Step 4's bookkeeping: block tables that share blocks. Compare step3_paged/paged_manager.h: tables,
/// slots and plans are the same; what is new is that a sequence may begin with blocks that are there already.
/// Who uses a block is the pool's business (shared_block_pool.h). Integers only. Chapter:
/// step4_prefix_cache/README.md.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/kv/kv_manager.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/host_tier.h"
#include "step4_prefix_cache/prefix_finder.h"
#include "step4_prefix_cache/salts.h"
#include "step4_prefix_cache/shared_block_pool.h"

namespace kvcache {

/// What can be switched.
struct SharingSettings {
  bool prefix_cache = true;      ///< off: blocks are shared by fork and pinned prefix alone
  std::string salt = {};         ///< of sequences that bring none of their own; empty: none
  std::int64_t host_blocks = 0;  ///< of the host tier
  int hash_bits = 64;            ///< for tests: fewer bits make collisions, which must change nothing
};

/// Gives sequences the blocks they need, when they need them: those that hold the beginning of the sequence
/// already, and new ones. A full block can be found by what it holds, also after its last user has gone,
/// until its memory is needed for something else.
class PrefixCachingManager final : public KvManager {
 public:
  /// The watermark is step 3's: `blocks / 100` stay free when a sequence is admitted beside others.
  explicit PrefixCachingManager(const PagedShape& shape, SharingSettings settings = {});

  [[nodiscard]] std::optional<PassPlan> plan(std::span<const Work> work) override;
  void commit(const PassPlan& plan) override;
  void abort(const PassPlan& /*plan*/) override { undo(); }
  void free(std::int32_t sequence) override;
  /// A block that it computed and that others use can be found as long as they use it.
  void discard(const Work& work, std::int64_t cached_tokens) override;
  /// Parent and child share every block. The first to write to a shared block copies it.
  /// @throws std::logic_error if there is a `child` already.
  void fork(std::int32_t parent, std::int32_t child) override;
  bool can_fork() const override { return true; }
  /// `sequence` stays, as a prefix for later ones whose tokens begin with all of its tokens. The one pinned
  /// before is freed.
  /// @throws std::logic_error if there is no such sequence.
  void pin(std::int32_t sequence) override;

  std::int64_t capacity() const override { return shape_.blocks * shape_.block_size; }
  std::int64_t capacity_for(std::span<const std::int32_t> token_ids, std::string_view salt) const override;
  KvMemoryReport memory() const override;
  std::vector<std::int32_t> block_table(std::int32_t sequence) const override {
    return known(sequence).blocks;
  }
  std::int64_t cached_tokens(std::int32_t sequence) const override { return known(sequence).cached_tokens; }
  BlocksReport blocks() const override;
  CountersReport counters() const override { return counters_; }
  CacheState state() const override;

  /// Tokens whose K and V are kept for `sequence`; 0 for an unknown one.
  std::int64_t length(std::int32_t sequence) const { return known(sequence).length; }
  /// Tokens that a new sequence of these `token_ids` and this `salt` would not have to compute. Changes
  /// nothing, not even the order of use.
  [[nodiscard]] std::int64_t peek(std::span<const std::int32_t> token_ids, std::string_view salt = {}) const {
    return find(token_ids, salt_or_default(salt)).tokens;
  }

  // For tests

  /// How many sequences refer to `block`.
  std::int32_t reference_count(std::int32_t block) const { return pool_.reference_count(block); }
  /// Whether a block can be found by what it holds, in use or not.
  bool findable(std::int32_t block) const { return pool_.index().contains(block); }
  /// The hash under which it is found; 0 if it is not.
  std::uint64_t hash(std::int32_t block) const { return pool_.index().content(block).hash; }
  /// Blocks of the host tier that hold something.
  std::int64_t host_blocks_stored() const { return host_.stored(); }
  /// Salts that are remembered: those of findable blocks, and some more, but never more than twice as many as
  /// there are blocks in the pool and in the host tier.
  std::int64_t salts_known() const { return salts_.size(); }
  /// Blocks that nobody refers to, the next to be taken first.
  std::vector<std::int32_t> free_queue() const { return pool_.free_in_order(); }
  /// @throws std::logic_error saying what does not hold: what SharedBlockPool and HostTier check; every
  /// reference counted; every full block findable, by what it holds, and no other. Not between `plan` and
  /// `commit` or `abort`.
  void check_invariants() const;

 private:
  struct Sequence {
    std::vector<std::int32_t> blocks;     // [blocks_for(length)] in order of position
    std::vector<std::int32_t> token_ids;  // [length], and those of the outstanding plan
    std::int64_t length = 0;              // tokens stored
    std::int64_t cached_tokens = 0;       // of the prompt, when it was admitted
    std::string salt;
    /// A new sequence has stored nothing yet, and knows what it has found.
    std::int64_t known_tokens() const { return std::max(length, cached_tokens); }
  };

  /// The pinned sequence, as it was when it was pinned. No program asks for more tokens of it, so the
  /// watermark does not count it; a test may. `capacity_for` reads the copies here, because it may run while
  /// another thread changes `sequences_`. `find` runs on the manager's thread and reads the sequence itself:
  /// only that names its blocks, and as many tokens as these hold.
  struct Pinned {
    std::int32_t id;
    std::vector<std::int32_t> token_ids;
    std::string salt;
  };

  /// What the outstanding plan has changed of one sequence, so that `undo` can take it back.
  struct Change {
    std::int32_t id;
    Sequence* sequence;             // where it stays: growing an unordered_map moves no element
    bool is_new;                    // admitted by this plan, so `undo` erases it
    std::size_t blocks_before = 0;  // of the table of one that is not new
    std::int32_t tail_before = -1;  // the last of them, which copy-on-write may replace
    std::int64_t prefix_hits = 0;   // blocks that a new one has found
  };

  std::string_view salt_or_default(std::string_view salt) const {
    return salt.empty() ? settings_.salt : salt;
  }
  /// What first blocks under `salt` follow. Nothing: none can be found (see kNoSalt).
  std::optional<BlockParent> root_of(std::string_view salt) const {
    return settings_.prefix_cache ? salts_.find(salt) : std::nullopt;
  }
  PrefixFinder finder(const PinnedPrefix& pinned = {}) const {
    return {pool_, host_, pinned, settings_.hash_bits};
  }
  PrefixHits find(std::span<const std::int32_t> token_ids, std::string_view salt) const;
  /// The sequence with this id, or an empty one.
  const Sequence& known(std::int32_t id) const {
    static const Sequence none;
    const auto sequence = sequences_.find(id);
    return sequence == sequences_.end() ? none : sequence->second;
  }

  // Parts of `plan`
  void take(const Work& wanted, const PrefixHits& hits);
  std::int64_t blocks_to_add(std::span<const Work> work) const;
  std::int64_t blocks_to_copy(std::span<const Work> work) const;
  std::int64_t blocks_to_keep_free(std::span<const Work> work) const;
  bool writes_to_shared(const Sequence& sequence, const Work& wanted) const;
  void bring_back(std::span<const std::int32_t> host_blocks, Sequence& sequence, PassPlan& plan);
  void extend(Sequence& sequence, const Work& wanted, PassPlan& plan);
  void undo();

  // A part of `commit`
  void publish(const Sequence& sequence, std::int64_t first_block);

  void check_blocks_are_found(const Sequence& sequence) const;

  PagedShape shape_;
  SharingSettings settings_;
  std::int64_t watermark_;
  SharedBlockPool pool_;
  HostTier host_;
  Salts salts_;
  std::unordered_map<std::int32_t, Sequence> sequences_;
  std::optional<Pinned> pinned_;
  CountersReport counters_;
  std::vector<Change> changes_;  // [sequences of the outstanding plan]; empty: there is none
};

}  // namespace kvcache
