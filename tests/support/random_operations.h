/// @file
/// Drives a manager with random operations beside a plain model of what should be true, and compares the two
/// after each operation.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/kv_manager.h"

namespace kvcache {

/// What should be true, kept as plainly as possible.
struct PlainModel {
  struct Stored {
    std::vector<std::int32_t> token_ids;  // [length]
    std::vector<std::int64_t> slots;      // [length] where each token was put
  };
  std::map<std::int32_t, Stored> sequences;
  std::map<std::int64_t, std::int32_t> memory;  // slot -> the token id written there last

  std::int64_t length(std::int32_t sequence) const {
    const auto stored = sequences.find(sequence);
    return stored == sequences.end() ? 0 : static_cast<std::int64_t>(stored->second.token_ids.size());
  }
  std::int64_t tokens() const {
    std::int64_t sum = 0;
    for (const auto& [sequence, stored] : sequences) sum += length(sequence);
    return sum;
  }
};

inline bool same_plan(const PassPlan& a, const PassPlan& b) {
  return a.sequences == b.sequences && a.token_ids == b.token_ids && a.positions == b.positions &&
         a.row_begin == b.row_begin && a.context_len == b.context_len && a.logits_rows == b.logits_rows &&
         a.slots == b.slots && a.block_table == b.block_table && a.table_width == b.table_width &&
         a.fresh_blocks == b.fresh_blocks;
}

/// A random user of a manager: registers sequences, appends to several at once, aborts plans, and frees.
class RandomOperations {
 public:
  /// Whether work should fit, according to the plain model.
  using Fits = std::function<bool(const PlainModel&, std::span<const Work>)>;
  /// Expects what else must be true of this kind of manager between operations.
  using Check = std::function<void(const PlainModel&)>;

  /// @param longest  the most tokens that one operation appends
  RandomOperations(KvManager& manager, std::uint32_t seed, std::int64_t longest, Fits fits, Check check)
      : manager_(manager),
        seed_(seed),
        random_(seed),
        longest_(longest),
        fits_(std::move(fits)),
        check_(std::move(check)) {}

  /// Stops at the first wrong operation. The message has its seed and number.
  void run(int operations) {
    for (int operation = 0; operation < operations && !testing::Test::HasFailure(); ++operation) {
      SCOPED_TRACE("seed " + std::to_string(seed_) + ", operation " + std::to_string(operation));
      try {
        below(4) == 0 ? free_one() : plan_some();
        check_all();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }

  int committed = 0, aborted = 0, refused = 0, freed = 0;

 private:
  std::int64_t below(std::int64_t bound) { return static_cast<std::int64_t>(random_()) % bound; }

  /// A sequence that is stored, or -1.
  std::int32_t any_stored() {
    if (model_.sequences.empty()) return -1;
    return std::next(model_.sequences.begin(), below(static_cast<std::int64_t>(model_.sequences.size())))
        ->first;
  }

  void free_one() {
    const bool unknown = below(8) == 0;
    const std::int32_t sequence = unknown ? next_sequence_ + 1000 : any_stored();
    if (sequence < 0) return;
    manager_.free(sequence);
    model_.sequences.erase(sequence);
    ++freed;
  }

  /// Some new and some stored sequences, each with its tokens and a few more. Every token of the run has an
  /// id of its own, so that a token written over another shows.
  std::map<std::int32_t, std::vector<std::int32_t>> wanted() {
    std::map<std::int32_t, std::vector<std::int32_t>> sequences;
    for (std::int64_t n = 1 + below(4); n > 0; --n) {
      const std::int32_t sequence =
          below(3) == 0 || model_.sequences.empty() ? next_sequence_++ : any_stored();
      std::vector<std::int32_t> ids;
      if (model_.length(sequence) > 0) ids = model_.sequences[sequence].token_ids;
      // Sometimes no new token: the last token's logits are wanted once more.
      const bool again = !ids.empty() && below(16) == 0;
      for (std::int64_t more = again ? 0 : 1 + below(longest_); more > 0; --more) ids.push_back(next_id_++);
      sequences[sequence] = std::move(ids);
    }
    return sequences;
  }

  void plan_some() {
    const auto sequences = wanted();
    std::vector<Work> work;
    for (const auto& [sequence, ids] : sequences) work.push_back({sequence, ids});
    std::shuffle(work.begin(), work.end(), random_);

    const std::optional<PassPlan> plan = manager_.plan(work);
    ASSERT_EQ(plan.has_value(), fits_(model_, work));
    if (!plan) {
      ++refused;
      return;
    }
    check_plan(*plan, work);
    // Even a pass that is aborted has written, so it must never write over stored tokens.
    for (std::size_t row = 0; row < plan->slots.size(); ++row)
      model_.memory[plan->slots[row]] = plan->token_ids[row];
    if (below(4) == 0) {
      manager_.abort(*plan);
      ++aborted;
      check_all();
      const std::optional<PassPlan> again = manager_.plan(work);
      ASSERT_TRUE(again.has_value()) << "what fitted before the abort does not fit after it";
      ASSERT_TRUE(same_plan(*plan, *again)) << "abort is not the inverse of plan";
      manager_.abort(*again);
    } else {
      manager_.commit(*plan);
      ++committed;
      for (std::size_t s = 0; s < work.size(); ++s) {
        PlainModel::Stored& stored = model_.sequences[work[s].sequence];
        stored.token_ids.assign(work[s].token_ids.begin(), work[s].token_ids.end());
        stored.slots.resize(stored.token_ids.size());
        for (auto row = plan->row_begin[s]; row < plan->row_begin[s + 1]; ++row) {
          const auto at = static_cast<std::size_t>(row);
          stored.slots[static_cast<std::size_t>(plan->positions[at])] = plan->slots[at];
        }
      }
    }
  }

  /// Expects that the plan computes exactly the tokens that are not stored, and at least the last one, whose
  /// logits it asks for.
  void check_plan(const PassPlan& plan, const std::vector<Work>& work) {
    ASSERT_EQ(plan.sequences.size(), work.size());
    ASSERT_EQ(plan.slots.size(), plan.token_ids.size());
    std::int32_t row = 0;
    for (std::size_t s = 0; s < work.size(); ++s) {
      const auto length = static_cast<std::int32_t>(work[s].token_ids.size());
      ASSERT_EQ(plan.sequences[s], work[s].sequence);
      ASSERT_EQ(plan.context_len[s], length);
      ASSERT_EQ(plan.row_begin[s], row);
      const auto stored = static_cast<std::int32_t>(model_.length(work[s].sequence));
      for (std::int32_t position = std::min(stored, length - 1); position < length; ++position, ++row) {
        ASSERT_EQ(plan.positions[static_cast<std::size_t>(row)], position);
        ASSERT_EQ(plan.token_ids[static_cast<std::size_t>(row)],
                  work[s].token_ids[static_cast<std::size_t>(position)]);
      }
      ASSERT_EQ(plan.logits_rows[s], row - 1);
    }
    ASSERT_EQ(plan.row_begin.back(), row);
    ASSERT_EQ(plan.tokens(), row);
  }

  void check_all() {
    for (const auto& [sequence, stored] : model_.sequences) {
      for (std::size_t position = 0; position < stored.slots.size(); ++position) {
        ASSERT_EQ(model_.memory.at(stored.slots[position]), stored.token_ids[position])
            << "sequence " << sequence << " reads another token at position " << position;
      }
    }
    check_(model_);
  }

  KvManager& manager_;
  std::uint32_t seed_;
  std::mt19937 random_;
  std::int64_t longest_;
  Fits fits_;
  Check check_;
  PlainModel model_;
  std::int32_t next_sequence_ = 0, next_id_ = 0;
};

}  // namespace kvcache
