/// @file
/// Step 4's bookkeeping at work without a model. In place of K and V, each slot keeps a number that depends
/// on the token and on all tokens before it, as K and V do. It also depends on the sequence's salt, so that
/// sharing across salts shows. After every pass each sequence must read its own numbers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {

using Tokens = std::vector<std::int32_t>;

/// `count` ids that no other `kind` has.
inline Tokens unlike_ids(std::int32_t kind, std::int64_t count) {
  Tokens ids;
  for (std::int32_t n = 0; n < count; ++n) ids.push_back(kind * 10000 + n);
  return ids;
}

inline Tokens joined(Tokens first, const Tokens& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// The first `count` of `ids`.
inline Tokens first_of(const Tokens& ids, std::int64_t count) {
  return {ids.begin(), ids.begin() + count};
}

class CacheInPlay {
 public:
  explicit CacheInPlay(std::int64_t blocks, std::int64_t block_size, const SharingSettings& settings = {})
      : manager(PagedShape{blocks, block_size, 1}, settings),
        default_salt_(settings.salt),
        block_size_(static_cast<std::size_t>(block_size)),
        pool_(static_cast<std::size_t>(blocks), std::vector<std::uint64_t>(block_size_)),
        host_(static_cast<std::size_t>(settings.host_blocks), std::vector<std::uint64_t>(block_size_)) {}

  /// Plans, runs and commits one pass over several sequences; nothing if it is refused.
  std::optional<PassPlan> pass(const std::map<std::int32_t, Tokens>& wanted) {
    std::optional<PassPlan> plan = manager.plan(work_of(wanted));
    if (!plan) return plan;
    run(*plan);
    manager.commit(*plan);
    for (const auto& [sequence, tokens] : wanted) tokens_[sequence] = tokens;
    check();
    return plan;
  }
  /// A pass of one sequence that must not be refused.
  PassPlan store(std::int32_t sequence, const Tokens& tokens) {
    std::optional<PassPlan> plan = pass({{sequence, tokens}});
    EXPECT_TRUE(plan.has_value()) << "sequence " << sequence << " does not fit";
    return plan.value_or(PassPlan{});
  }
  PassPlan append(std::int32_t sequence, std::int32_t id) {
    return store(sequence, joined(tokens_.at(sequence), {id}));
  }
  bool refuses(std::int32_t sequence, const Tokens& tokens) {
    const std::string before = observed();
    const bool refused = !manager.plan(work_of({{sequence, tokens}})).has_value();
    EXPECT_EQ(observed(), before) << "a refusal must change nothing";
    return refused;
  }
  void free(std::int32_t sequence) {
    manager.free(sequence);
    tokens_.erase(sequence);
    check();
  }
  /// @param tokens  of a sequence that holds blocks, or held some
  void discard(std::int32_t sequence, const Tokens& tokens, std::int64_t cached_tokens = 0) {
    manager.discard({sequence, tokens, salt_of(sequence)}, cached_tokens);
    tokens_.erase(sequence);
    check();
  }
  void fork(std::int32_t parent, std::int32_t child) {
    manager.fork(parent, child);
    tokens_[child] = tokens_.at(parent);
    salts[child] = salts[parent];
    check();
  }
  void pin(std::int32_t sequence) {
    manager.pin(sequence);
    if (pinned_ && *pinned_ != sequence) tokens_.erase(*pinned_);
    pinned_ = sequence;
    check();
  }

  /// Does what a store does with a plan.
  void run(const PassPlan& plan) {
    for (const BlockCopy& move : plan.swaps_out) host_.at(index(move.to)) = pool_.at(index(move.from));
    for (const BlockCopy& move : plan.swaps_in) pool_.at(index(move.to)) = host_.at(index(move.from));
    for (const std::int32_t block : plan.fresh_blocks) pool_.at(index(block)).assign(block_size_, 0);
    for (const BlockCopy& copy : plan.copies) pool_.at(index(copy.to)) = pool_.at(index(copy.from));
    for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
      for (std::int32_t row = plan.row_begin[s]; row < plan.row_begin[s + 1]; ++row) {
        const auto slot = static_cast<std::size_t>(plan.slots[index(row)]);
        const std::uint64_t before = plan.positions[index(row)] == 0
                                         ? number_of_salt(plan.sequences[s])
                                         : number_at(row_of_table(plan, s), plan.positions[index(row)] - 1);
        pool_.at(slot / block_size_)[slot % block_size_] = number_of(before, plan.token_ids[index(row)]);
      }
    }
  }

  /// Expects that the bookkeeping is in order, and that every sequence would read its own K and V.
  void check() const {
    ASSERT_NO_THROW(manager.check_invariants());
    const BlocksReport blocks = manager.blocks();
    ASSERT_EQ(blocks.free + blocks.cached + blocks.in_use, blocks.total);
    for (const auto& [sequence, tokens] : tokens_) {
      const std::vector<std::int32_t> table = manager.block_table(sequence);
      ASSERT_EQ(table.size(), (tokens.size() + block_size_ - 1) / block_size_);
      std::uint64_t number = number_of_salt(sequence);
      for (std::size_t position = 0; position < tokens.size(); ++position) {
        number = number_of(number, tokens[position]);
        ASSERT_EQ(number_at(table, static_cast<std::int32_t>(position)), number)
            << "sequence " << sequence << " reads something else at position " << position;
      }
    }
  }

  /// Everything visible of the manager, to compare before and after.
  std::string observed() const {
    const CountersReport counters = manager.counters();
    const BlocksReport blocks = manager.blocks();
    const KvMemoryReport memory = manager.memory();
    std::string seen = fmt::format(
        "queue {}, hits {} evictions {} copies {} out {} in {}, free {} cached {} in use {}, bytes {} of {}, "
        "host {}",
        manager.free_queue(), counters.prefix_hits, counters.evictions, counters.copies, counters.swaps_out,
        counters.swaps_in, blocks.free, blocks.cached, blocks.in_use, memory.used_bytes,
        memory.reserved_bytes, manager.host_blocks_stored());
    for (std::int32_t block = 0; block < blocks.total; ++block)
      seen += fmt::format(" {}{}", manager.reference_count(block), manager.findable(block) ? "f" : "");
    for (const auto& [sequence, tokens] : tokens_) {
      seen += fmt::format(", {}: {} cached {} peek {}", sequence, manager.block_table(sequence),
                          manager.cached_tokens(sequence), manager.peek(tokens, salt_of(sequence)));
    }
    return seen;
  }

  std::vector<Work> work_of(const std::map<std::int32_t, Tokens>& wanted) const {
    std::vector<Work> work;
    for (const auto& [sequence, tokens] : wanted) work.push_back({sequence, tokens, salt_of(sequence)});
    return work;
  }
  /// Tokens that a new sequence would not have to compute.
  std::int64_t peek(const Tokens& tokens, const std::string& salt = "") const {
    return manager.peek(tokens, salt);
  }
  std::vector<std::int32_t> table(std::int32_t sequence) const { return manager.block_table(sequence); }
  const std::map<std::int32_t, Tokens>& sequences() const { return tokens_; }

  PrefixCachingManager manager;
  std::map<std::int32_t, std::string> salts;  // of sequences that have one

 private:
  std::string_view salt_of(std::int32_t sequence) const {
    const auto own = salts.find(sequence);
    return own == salts.end() || own->second.empty() ? default_salt_ : own->second;
  }
  std::uint64_t number_of_salt(std::int32_t sequence) const {
    const std::string_view salt = salt_of(sequence);
    return salt.empty() ? 0 : std::hash<std::string_view>()(salt);
  }
  static std::size_t index(std::int32_t number) { return static_cast<std::size_t>(number); }
  static std::uint64_t number_of(std::uint64_t before, std::int32_t token) {
    std::uint64_t mixed = (before ^ static_cast<std::uint32_t>(token)) + 0x9e3779b97f4a7c15U;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
    return mixed ^ (mixed >> 27) ^ 1U;
  }
  std::uint64_t number_at(const std::vector<std::int32_t>& table, std::int32_t position) const {
    return pool_.at(index(table.at(index(position) / block_size_)))[index(position) % block_size_];
  }
  static std::vector<std::int32_t> row_of_table(const PassPlan& plan, std::size_t sequence) {
    const auto begin = plan.block_table.begin() + static_cast<std::ptrdiff_t>(sequence) * plan.table_width;
    return {begin, begin + plan.table_width};
  }

  std::string default_salt_;
  std::size_t block_size_;
  std::vector<std::vector<std::uint64_t>> pool_, host_;  // [blocks, block_size]
  std::map<std::int32_t, Tokens> tokens_;                // of every sequence that holds blocks
  std::optional<std::int32_t> pinned_;
};

}  // namespace kvcache
