/// @file
/// Step 4's bookkeeping: blocks that sequences share. Compare step3_paged/paged_manager.h: tables, slots
/// and plans are the same; what is new is who owns a block. Integers only. Chapter:
/// step4_prefix_cache/README.md.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/kv/kv_manager.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/free_block_queue.h"
#include "step4_prefix_cache/host_tier.h"
#include "step4_prefix_cache/prefix_index.h"

namespace kvcache {

/// What can be switched.
struct SharingSettings {
  bool prefix_cache = true;      ///< off: blocks are shared by fork and pinned prefix alone
  std::string salt = {};         ///< of sequences that bring none of their own; empty: none
  std::int64_t host_blocks = 0;  ///< slots of the host tier
  int hash_bits = 64;            ///< for tests: fewer bits make collisions, which must change nothing
};

/// Full blocks of a pinned prefix of these ids that a sequence of `token_ids` shares for certain.
/// @param prefix_cache  blocks are found by their hashes; else a prefix is found as a whole or not at all
std::int64_t shared_with_prefix(std::span<const std::int32_t> token_ids, std::span<const std::int32_t> prefix,
                                std::int64_t block_size, bool prefix_cache);

/// Blocks have reference counts. A full block can be found by what it holds, also after its last user has
/// gone, until its memory is needed for something else.
class PrefixCachingManager final : public KvManager {
 public:
  /// The watermark is step 3's: `blocks / 100` stay free when a sequence is admitted beside others.
  explicit PrefixCachingManager(const PagedShape& shape, SharingSettings settings = {});

  std::optional<PassPlan> plan(std::span<const Work> work) override;
  void commit(const PassPlan& plan) override;
  void abort(const PassPlan& plan) override;
  void free(std::int32_t sequence) override;
  /// A block that it computed and that others use can be found as long as they use it.
  void discard(const Work& work, std::int64_t cached_tokens) override;
  /// Both go on from all that `parent` holds; who writes to a block while it is shared copies it first.
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
  std::vector<std::int32_t> block_table(std::int32_t sequence) const override;
  std::int64_t cached_tokens(std::int32_t sequence) const override;
  BlocksReport blocks() const override;
  CountersReport counters() const override { return counters_; }
  CacheState state() const override;

  /// Tokens that a new sequence of these `token_ids` and this `salt` would not have to compute. Changes
  /// nothing, not even the order of use.
  std::int64_t peek(std::span<const std::int32_t> token_ids, std::string_view salt = {}) const {
    return find_prefix(token_ids, salt_or_default(salt)).tokens;
  }
  /// How many sequences and pins refer to `block`.
  std::int32_t reference_count(std::int32_t block) const {
    return references_[static_cast<std::size_t>(block)];
  }
  /// Whether a block can be found by what it holds, in use or not.
  bool findable(std::int32_t block) const { return index_.contains(block); }
  /// The hash under which it is found; 0 if it is not.
  std::uint64_t hash(std::int32_t block) const { return index_.content(block).hash; }
  /// Blocks of the host tier that hold something.
  std::int64_t host_blocks_stored() const { return host_.stored(); }
  /// Salts that are remembered: those of findable blocks, and some more, but never more than twice as many as
  /// there are blocks and slots of the host tier.
  std::int64_t salts_known() const { return std::ssize(salts_); }
  /// Blocks that nobody refers to, the next to be taken first.
  std::vector<std::int32_t> free_queue() const { return queue_.in_order(); }
  /// @throws std::logic_error saying what does not hold: total = free + cached + in use, every reference
  /// counted, no block in two places, every full block findable and no other. Not between `plan` and `commit`
  /// or `abort`.
  void check_invariants() const;

 private:
  struct Sequence {
    std::vector<std::int32_t> blocks;     // [blocks_for(length)] in order of position
    std::vector<std::int32_t> token_ids;  // [length], and those of the outstanding plan
    std::int64_t length = 0;              // tokens stored
    std::int64_t cached_tokens = 0;       // of the prompt, when it was admitted
    std::string salt;
  };

  /// Where a chain of blocks begins: what stands for the parent of a first block.
  struct ChainRoot {
    std::optional<std::uint64_t> hash;  // of the salt
    std::uint64_t identity = 0;         // of the salt, as if it were a block; 0: there is none
  };
  std::string_view salt_or_default(std::string_view salt) const {
    return salt.empty() ? settings_.salt : salt;
  }
  std::optional<ChainRoot> root_of(std::string_view salt) const;
  ChainRoot remembered_root(const std::string& salt);
  void forget_unused_salts();

  /// What a new sequence finds: first some blocks of the pool, then some slots of the host tier.
  struct Hits {
    std::vector<std::int32_t> blocks;      // to share
    std::vector<std::int32_t> host_slots;  // to bring back
    std::int64_t tokens = 0;               // that need not be computed
  };
  Hits find_cached(std::span<const std::int32_t> token_ids, std::string_view salt) const;
  Hits find_prefix(std::span<const std::int32_t> token_ids, std::string_view salt) const;
  std::int32_t twin_to_share(std::int32_t found, std::int64_t n) const;
  std::uint64_t hash_of(std::optional<std::uint64_t> parent, std::span<const std::int32_t> token_ids) const;
  std::span<const std::int32_t> tokens_of_block(std::span<const std::int32_t> token_ids,
                                                std::int64_t block) const;

  // Parts of `plan`.
  std::int64_t demand(std::span<const Work> work, std::span<const Hits> hits) const;
  void acquire(std::int32_t block);
  std::int32_t allocate();
  void take_hits(Sequence& sequence, const Hits& hits, PassPlan& plan);
  void make_tail_writable(Sequence& sequence, std::int64_t first, PassPlan& plan);
  void swap_out_evicted(PassPlan& plan);

  // Parts of `commit`, `abort` and `free`.
  void settle_moves(const PassPlan& plan);
  void publish(const Sequence& sequence, std::int64_t first_block);
  void give_back();
  void release(std::int32_t block);
  void forget(std::int32_t block);

  /// What the outstanding plan has changed: `abort` undoes it, `commit` makes it final.
  struct Pending {
    /// What became of one sequence.
    struct Change {
      bool is_new = false;            ///< admitted by this plan
      std::size_t blocks_before = 0;  ///< of its table
      std::int32_t tail_before = -1;  ///< the last of them, which copy-on-write may have replaced
    };
    std::vector<Change> changes;         // [sequences of the plan]
    std::vector<std::int32_t> acquired;  // blocks that gained a reference, once each time
    std::vector<std::int32_t> released;  // blocks that lost one to copy-on-write
    std::vector<std::int32_t> unqueued;  // blocks that left the queue, in order
    std::vector<std::int32_t> evicted;   // those of them that were findable and will hold something else
    CountersReport counters;             // as they will be
  };

  PagedShape shape_;
  SharingSettings settings_;
  std::int64_t watermark_;
  std::vector<std::int32_t> references_;  // [blocks]
  FreeBlockQueue queue_;                  // blocks with no reference, findable or not
  PrefixIndex index_;                     // full blocks of the pool
  HostTier host_;
  std::map<std::string, ChainRoot, std::less<>> salts_;  // under which blocks were published
  std::unordered_set<std::int32_t> condemned_;  // findable blocks in use that nobody is to find afterwards
  std::unordered_map<std::int32_t, Sequence> sequences_;
  std::optional<std::int32_t> pinned_;
  std::vector<std::int32_t> pinned_token_ids_;  // of that sequence
  std::string pinned_salt_;                     // of that sequence
  std::uint64_t identities_ = 0;                // given out so far
  CountersReport counters_;
  Pending pending_;
};

}  // namespace kvcache
