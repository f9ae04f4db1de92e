/// @file
/// Step 4's bookkeeping: block tables that share blocks. Tables, slots and plans are those of
/// step3_paged/paged_manager.h. New: a sequence may begin with blocks that another sequence has computed.
/// The pool counts who uses a block (shared_block_pool.h). Integers only. Chapter:
/// step4_prefix_cache/README.md.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/kv/kv_manager.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/host_tier.h"
#include "step4_prefix_cache/pinned_prefix.h"
#include "step4_prefix_cache/prefix_finder.h"
#include "step4_prefix_cache/salts.h"
#include "step4_prefix_cache/shared_block_pool.h"

namespace kvcache {

/// What the user can switch.
struct SharingSettings {
  bool prefix_cache = true;      ///< off: only a fork and the pinned prefix share blocks
  std::string salt = {};         ///< of sequences that bring none of their own; empty: none
  std::int64_t host_blocks = 0;  ///< size of the host tier
  int hash_bits = 64;            ///< for tests: fewer bits make collisions, which must change nothing
};

/// Gives each sequence its blocks when it needs them: first the blocks that already hold its beginning, then
/// new ones. A full block can be found by its content. It stays findable after its last user has gone, until
/// the pool takes it for something else.
class PrefixCachingManager final : public KvManager {
 public:
  /// All blocks are free. The watermark is step 3's, `shape.watermark()`.
  explicit PrefixCachingManager(const PagedShape& shape, SharingSettings settings = {})
      : shape_(shape),
        settings_(std::move(settings)),
        pool_(shape.blocks, shape.block_size),
        host_(settings_.host_blocks, shape.block_size) {}

  [[nodiscard]] std::optional<PassPlan> plan(std::span<const Work> work) override;
  void commit(const PassPlan& plan) override;
  void abort(const PassPlan& /*plan*/) override { undo(); }
  void free(std::int32_t sequence) override;
  /// A block that `work.sequence` computed and that others use stays findable while they use it.
  void discard(const Work& work, std::int64_t cached_tokens) override;
  /// Parent and child share every block. The first to write to a shared block copies it.
  /// @throws std::logic_error if there is a `child` already.
  void fork(std::int32_t parent, std::int32_t child) override;
  bool can_fork() const override { return true; }
  /// Keeps `sequence` as a prefix: later sequences whose tokens begin with all of its tokens share its
  /// blocks. The sequence pinned before is freed.
  /// @throws std::logic_error if there is no such sequence.
  void pin(std::int32_t sequence) override;

  std::int64_t capacity() const override { return shape_.blocks * shape_.block_size; }
  std::int64_t capacity_for(std::span<const std::int32_t> token_ids, std::string_view salt) const override;
  KvMemoryReport memory() const override;
  std::vector<std::int32_t> block_table(std::int32_t sequence) const override {
    return sequence_or_empty(sequence).blocks;
  }
  std::int64_t cached_tokens(std::int32_t sequence) const override {
    return sequence_or_empty(sequence).cached_tokens;
  }
  BlocksReport blocks() const override;
  CountersReport counters() const override { return counters_; }
  CacheState state() const override;

  /// Tokens whose K and V are kept for `sequence`; 0 for an unknown one.
  std::int64_t length(std::int32_t sequence) const { return sequence_or_empty(sequence).length; }
  /// Tokens that a new sequence of these `token_ids` and this `salt` would find. Changes nothing, not even
  /// the order of eviction.
  [[nodiscard]] std::int64_t peek(std::span<const std::int32_t> token_ids, std::string_view salt = {}) const {
    return look_up(token_ids, salt).tokens;
  }

  // For tests and the demo

  /// How many sequences refer to `block`.
  std::int32_t reference_count(std::int32_t block) const { return pool_.reference_count(block); }
  /// Whether `block` can be found by its content, in use or not.
  bool findable(std::int32_t block) const { return pool_.index().contains(block); }
  /// The hash under which it is found; 0 if it is not.
  std::uint64_t hash(std::int32_t block) const { return pool_.index().content(block).hash; }
  /// Blocks of the host tier that hold something.
  std::int64_t host_blocks_stored() const { return host_.stored(); }
  /// Salts that are remembered: at most two for each block of the pool and the host tier.
  std::int64_t salts_known() const { return salts_.size(); }
  /// Blocks without references, the next to be taken first.
  std::vector<std::int32_t> free_queue() const { return pool_.free_in_order(); }
  /// Checks what SharedBlockPool and HostTier check; that each block's reference count is the number of
  /// tables that hold it; that with the prefix cache every full block, and no other, is findable by its
  /// content. Not to be called between `plan` and `commit` or `abort`.
  /// @throws std::logic_error saying what does not hold.
  void check_invariants() const;

 private:
  struct Sequence {
    std::vector<std::int32_t> blocks;     // [blocks_for(length)] in order of position
    std::vector<std::int32_t> token_ids;  // [length], and the new ones of the open plan
    std::int64_t length = 0;              // tokens stored
    std::int64_t cached_tokens = 0;       // found for the prompt when the sequence was admitted
    std::string salt;
    /// Tokens with K and V. In its first plan `length` is 0 and `cached_tokens` counts; later `length` does.
    std::int64_t stored_or_found() const { return std::max(length, cached_tokens); }
  };

  /// One sequence of the open plan, and what `undo` needs to take the plan back.
  struct Planned {
    std::int32_t id;
    Sequence* sequence;         // stays valid: an unordered_map that grows moves no element
    bool is_new;                // admitted by this plan: `undo` erases it
    std::size_t blocks_before;  // length of an old sequence's table
    std::int32_t tail_before;   // its last block
    std::int64_t prefix_hits;   // blocks found for a new sequence, for the counters at `commit`
  };

  /// The sequence with this id, or an empty one.
  const Sequence& sequence_or_empty(std::int32_t id) const {
    static const Sequence none;
    const auto sequence = sequences_.find(id);
    return sequence == sequences_.end() ? none : sequence->second;
  }
  std::string_view salt_or_default(std::string_view salt) const {
    return salt.empty() ? settings_.salt : salt;
  }
  /// What first blocks under `salt` follow. Nothing: no block can be found, because the salt is unknown or
  /// the prefix cache is off.
  std::optional<BlockParent> root_of(std::string_view salt) const {
    return settings_.prefix_cache ? salts_.find(salt_or_default(salt)) : std::nullopt;
  }
  PrefixFinder finder() const { return {pool_, host_, settings_.hash_bits}; }
  PinnedBlocks pinned_blocks() const;

  // Parts of `plan`
  PrefixHits look_up(std::span<const std::int32_t> token_ids, std::string_view salt) const;
  void take_hits(const Work& wanted, const PrefixHits& hits);
  std::int64_t blocks_to_add(std::span<const Work> work) const;
  std::int64_t blocks_to_copy(std::span<const Work> work) const;
  std::int64_t blocks_to_keep_free(std::span<const Work> work) const;
  bool writes_to_shared(const Sequence& sequence, const Work& wanted) const;
  void bring_back(std::span<const std::int32_t> host_blocks, Sequence& sequence, PassPlan& plan);
  void extend(Sequence& sequence, const Work& wanted, PassPlan& plan);
  void undo();

  // Parts of `commit`
  void update_counters(const PassPlan& plan);
  void settle(const PassPlan& plan);
  void publish(const Sequence& sequence, std::int64_t first_block);

  void check_blocks_are_found(const Sequence& sequence) const;

  PagedShape shape_;
  SharingSettings settings_;
  SharedBlockPool pool_;
  HostTier host_;
  Salts salts_;
  std::unordered_map<std::int32_t, Sequence> sequences_;
  std::optional<PinnedPrefix> pinned_;
  std::vector<Planned> open_plan_;  // in the order of its work; empty: no plan is open
  CountersReport counters_;
};

}  // namespace kvcache
