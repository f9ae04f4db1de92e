// Step 4's bookkeeping against a plain model of what should be true. The model keys blocks and host blocks by
// the salt and the whole prefix that they hold, and searches lists; it has no hash, no identity and no undo.
// Random operations drive both. After each one, everything visible must be equal and the invariants must
// hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <list>
#include <random>
#include <set>
#include <utility>

#include "tests/support/cache_in_play.h"

namespace kvcache {
namespace {

/// Takes an element out of a list of values.
template <typename List, typename Value>
bool take_out(List& list, const Value& value) {
  const auto found = std::find(list.begin(), list.end(), value);
  if (found == list.end()) return false;
  list.erase(found);
  return true;
}

/// Two prefixes are equal if their tokens and their salts are equal.
Tokens under_salt(const std::string& salt, const Tokens& tokens) {
  Tokens prefix(salt.begin(), salt.end());
  prefix.push_back(-1);  // no token, so that salt and tokens cannot be mistaken for each other
  return joined(prefix, tokens);
}

class PlainModel {
 public:
  PlainModel(std::int64_t blocks, std::int64_t block_size, const SharingSettings& settings)
      : block_size_(block_size),
        prefix_cache_(settings.prefix_cache),
        held_(static_cast<std::size_t>(blocks)),
        host_(static_cast<std::size_t>(settings.host_blocks)) {
    for (std::int32_t block = 0; block < blocks; ++block) queue_.push_back(block);
  }

  /// How many tokens of a new sequence are found.
  std::int64_t cached(const Tokens& tokens, const std::string& salt) const {
    return find(tokens, salt).tokens;
  }

  /// The fault in `plan`, "" if there is none; then the model has made the pass, too.
  std::string follow(const std::map<std::int32_t, Tokens>& wanted,
                     const std::map<std::int32_t, std::string>& salts, const std::optional<PassPlan>& plan) {
    const std::int64_t needed = demand(wanted, salts);
    const auto free = static_cast<std::int64_t>(queue_.size());
    if (plan.has_value() != (needed <= free))
      return fmt::format("{}: {} blocks wanted, {} free", plan ? "accepted" : "refused", needed, free);
    if (!plan) return "";

    // All hits are taken before anything is allocated.
    std::map<std::int32_t, Found> found;
    std::list<Tokens> coming_back;  // host blocks that are read from
    std::size_t s = 0;
    for (const auto& [id, tokens] : wanted) {
      if (!sequences_.contains(id)) {
        found[id] = find(tokens, salts.at(id));
        Sequence& sequence = sequences_[id];
        sequence.salt = salts.at(id);
        for (std::size_t n = 0; n < found[id].choices.size(); ++n) {
          std::int32_t block = plan->block_table[s * static_cast<std::size_t>(plan->table_width) + n];
          // The last block may be a copy by now; then the block it was copied from must be right.
          for (const BlockCopy& copy : plan->copies) block = copy.to == block ? copy.from : block;
          if (std::ranges::count(found[id].choices[n], block) == 0) return "a hit on a wrong block";
          take_out(queue_, block);
          sequence.table.push_back(block);
        }
        for (const Tokens& prefix : found[id].in_host) {
          if (std::ranges::count(coming_back, prefix) == 0) coming_back.push_back(prefix);
        }
      }
      ++s;
    }
    std::vector<std::int32_t> evicted;
    const auto allocate = [&] {
      const std::int32_t block = queue_.front();
      queue_.pop_front();
      if (!held_[index(block)].empty()) evicted.push_back(block);
      return block;
    };
    std::vector<std::pair<std::int32_t, Tokens>> brought_back;
    std::int64_t copies = 0;
    s = 0;
    for (const auto& [id, tokens] : wanted) {
      Sequence& sequence = sequences_.at(id);
      const bool is_new = found.contains(id);
      const std::int64_t first = is_new ? found[id].tokens : length(sequence);
      if (plan->tokens() == 0 || plan->positions[index(plan->row_begin[s])] != first)
        return fmt::format("sequence {} must be computed from {}", id, first);
      if (is_new) {
        sequence.cached = first;
        for (const Tokens& prefix : found[id].in_host) {
          sequence.table.push_back(allocate());
          brought_back.emplace_back(sequence.table.back(), prefix);
        }
        counters_.prefix_hits += static_cast<std::int64_t>(sequence.table.size());
      }
      sequence.tokens = tokens;
      if (first % block_size_ != 0 && references(sequence.table.back()) > 1) {
        sequence.table.back() = allocate();
        ++copies;
      }
      while (static_cast<std::int64_t>(sequence.table.size()) < blocks_for(length(sequence)))
        sequence.table.push_back(allocate());
      const auto row = plan->block_table.begin() + static_cast<std::ptrdiff_t>(s++) * plan->table_width;
      if (!std::equal(sequence.table.begin(), sequence.table.end(), row))
        return fmt::format("sequence {} must have the blocks {}", id, sequence.table);
    }
    counters_.copies += copies;
    counters_.evictions += static_cast<std::int64_t>(evicted.size());
    counters_.swaps_in += static_cast<std::int64_t>(brought_back.size());
    std::vector<Tokens> perhaps_lost;
    if (!evicted.empty()) perhaps_lost.assign(host_.begin(), host_.end());
    for (const std::int32_t block : evicted) perhaps_lost.push_back(held_[index(block)]);
    const std::int64_t moved = move_to_host(evicted, coming_back);
    counters_.swaps_out += moved;
    if (static_cast<std::int64_t>(plan->copies.size()) != copies) return fmt::format("{} copies", copies);
    if (plan->swaps_in.size() != brought_back.size()) return fmt::format("{} in", brought_back.size());
    if (static_cast<std::int64_t>(plan->swaps_out.size()) != moved) return fmt::format("{} out", moved);

    for (const std::int32_t block : evicted) held_[index(block)].clear();
    for (const auto& [block, prefix] : brought_back) held_[index(block)] = prefix;
    for (const Tokens& prefix : perhaps_lost) mark_what_follows(prefix);
    for (const auto& [id, tokens] : wanted) {
      const Sequence& sequence = sequences_.at(id);
      for (std::int64_t n = 0; prefix_cache_ && n < length(sequence) / block_size_; ++n)
        held_[index(sequence.table[static_cast<std::size_t>(n)])] =
            under_salt(sequence.salt, first_of(tokens, (n + 1) * block_size_));
    }
    return "";
  }

  void fork(std::int32_t parent, std::int32_t child) {
    Sequence copy = sequences_.at(parent);
    copy.cached = length(copy);
    sequences_[child] = copy;
  }

  void free(std::int32_t id) {
    const std::vector<std::int32_t> table = sequences_.at(id).table;
    sequences_.erase(id);
    for (auto block = table.rbegin(); block != table.rend(); ++block) {
      if (references(*block) > 0) continue;
      if (condemned_.erase(*block) > 0) mark_what_follows(std::exchange(held_[index(*block)], {}));
      if (held_[index(*block)].empty()) {
        queue_.push_front(*block);
      } else {
        queue_.push_back(*block);
      }
    }
    if (pinned_ == id) pinned_.reset();
  }

  /// The blocks of `tokens` from number `first` on can no longer be found, once no sequence uses them.
  void discard(std::int32_t id, const std::string& salt, const Tokens& tokens, std::int64_t first) {
    if (sequences_.contains(id)) free(id);
    const auto full = static_cast<std::int64_t>(tokens.size()) / block_size_;
    std::vector<Tokens> gone;
    for (std::int64_t n = 0; n < full; ++n) {
      const Tokens prefix = under_salt(salt, first_of(tokens, (n + 1) * block_size_));
      if (!is_held(prefix)) break;
      if (n < first) continue;
      gone.push_back(prefix);
      if (take_out(host_, prefix)) host_.emplace_front();
      for (std::int32_t block = 0; index(block) < held_.size(); ++block) {
        if (held_[index(block)] != prefix) continue;
        if (references(block) > 0) {
          condemned_.insert(block);
          continue;
        }
        held_[index(block)].clear();
        take_out(queue_, block);
        queue_.push_front(block);
      }
    }
    for (const Tokens& prefix : gone) mark_what_follows(prefix);
  }

  void pin(std::int32_t id) {
    if (pinned_ && *pinned_ != id) free(*pinned_);
    pinned_ = id;
  }

  /// The visible fault of `manager`, "" if there is none.
  std::string difference(const PrefixCachingManager& manager) const {
    if (!std::ranges::equal(manager.free_queue(), queue_))
      return fmt::format("the queue is {} and must be {}", manager.free_queue(), queue_);
    std::int64_t cached_blocks = 0;
    for (std::int32_t block = 0; index(block) < held_.size(); ++block) {
      const bool findable = !held_[index(block)].empty();
      if (manager.reference_count(block) != references(block)) return fmt::format("references of {}", block);
      if (manager.findable(block) != findable) return fmt::format("findable: {}", block);
      cached_blocks += findable && references(block) == 0 ? 1 : 0;
    }
    for (const auto& [id, sequence] : sequences_) {
      if (manager.block_table(id) != sequence.table) return fmt::format("table of {}", id);
      if (manager.cached_tokens(id) != sequence.cached) return fmt::format("cached tokens of {}", id);
    }
    const BlocksReport blocks = manager.blocks();
    const auto free = static_cast<std::int64_t>(queue_.size());
    if (blocks.cached != cached_blocks || blocks.free != free - cached_blocks ||
        blocks.in_use != blocks.total - free)
      return "the report of blocks";
    const CountersReport seen = manager.counters();
    if (seen.prefix_hits != counters_.prefix_hits || seen.evictions != counters_.evictions ||
        seen.copies != counters_.copies || seen.swaps_out != counters_.swaps_out ||
        seen.swaps_in != counters_.swaps_in)
      return "the counters";
    const auto stored = std::ranges::count_if(host_, [](const Tokens& held) { return !held.empty(); });
    if (manager.host_blocks_stored() != stored) return "the host tier";
    return "";
  }

  const CountersReport& counters() const { return counters_; }

 private:
  struct Sequence {
    Tokens tokens;
    std::vector<std::int32_t> table;
    std::int64_t cached = 0;
    std::string salt = {};
  };
  struct Found {
    // For each hit, the blocks that hold the same: those in use, or all if none is in use.
    std::vector<std::vector<std::int32_t>> choices;
    std::vector<Tokens> in_host;  // prefixes to bring back
    std::int64_t tokens = 0;
  };

  bool is_held(const Tokens& prefix) const {
    return std::ranges::count(held_, prefix) + std::ranges::count(host_, prefix) > 0;
  }
  /// After a prefix is lost, blocks computed after it are never found again, even if the prefix is computed
  /// anew: a mark that no sequence has keeps them apart.
  void mark_what_follows(const Tokens& gone) {
    if (gone.empty() || is_held(gone)) return;
    ++marks_;
    const auto mark = [&](Tokens& held) {
      if (held.size() > gone.size() && std::equal(gone.begin(), gone.end(), held.begin()))
        held.insert(held.begin(), -marks_);
    };
    std::ranges::for_each(held_, mark);
    std::ranges::for_each(host_, mark);
  }

  static std::size_t index(std::int32_t number) { return static_cast<std::size_t>(number); }
  static std::int64_t length(const Sequence& sequence) {
    return static_cast<std::int64_t>(sequence.tokens.size());
  }
  std::int64_t blocks_for(std::int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }
  std::int32_t references(std::int32_t block) const {
    std::int32_t count = 0;
    for (const auto& [id, sequence] : sequences_)
      count += static_cast<std::int32_t>(std::ranges::count(sequence.table, block));
    return count;
  }

  Found find(const Tokens& tokens, const std::string& salt) const {
    Found found;
    const auto wanted = static_cast<std::int64_t>(tokens.size());
    for (std::int64_t end = block_size_; prefix_cache_ && end <= wanted - 1; end += block_size_) {
      const Tokens prefix = under_salt(salt, first_of(tokens, end));
      std::vector<std::int32_t> choices;
      for (std::int32_t block = 0; index(block) < held_.size(); ++block) {
        if (held_[index(block)] == prefix) choices.push_back(block);
      }
      const auto is_free = [this](std::int32_t block) { return references(block) == 0; };
      if (!std::ranges::all_of(choices, is_free)) std::erase_if(choices, is_free);
      if (!choices.empty() && found.in_host.empty()) {
        found.choices.push_back(choices);
      } else if (std::ranges::count(host_, prefix) > 0) {
        found.in_host.push_back(prefix);
      } else {
        break;
      }
      found.tokens = end;
    }
    if (!pinned_) return found;
    const Sequence& prefix = sequences_.at(*pinned_);
    const std::int64_t shared = std::min(length(prefix), wanted - 1);
    const bool begins_with_it = prefix.salt == salt && wanted >= length(prefix) &&
                                std::equal(prefix.tokens.begin(), prefix.tokens.end(), tokens.begin());
    if (begins_with_it && shared > found.tokens) {
      found = {};
      found.tokens = shared;
      for (std::int64_t n = 0; n < blocks_for(shared); ++n)
        found.choices.push_back({prefix.table[static_cast<std::size_t>(n)]});
    }
    return found;
  }

  /// The exact number of blocks that `wanted` takes out of the queue, with the watermark.
  std::int64_t demand(const std::map<std::int32_t, Tokens>& wanted,
                      const std::map<std::int32_t, std::string>& salts) const {
    std::int64_t blocks = 0;
    std::set<std::vector<std::int32_t>> revived;        // each by those that hold the same
    std::map<std::int32_t, std::int32_t> writers, hit;  // how many write to a block, and hit it
    bool admits = false;
    for (const auto& [id, tokens] : wanted) {
      blocks += blocks_for(static_cast<std::int64_t>(tokens.size()));
      const auto known = sequences_.find(id);
      if (known != sequences_.end()) {
        blocks -= static_cast<std::int64_t>(known->second.table.size());
        if (length(known->second) % block_size_ != 0) ++writers[known->second.table.back()];
        continue;
      }
      admits = true;
      const Found found = find(tokens, salts.at(id));
      blocks -= static_cast<std::int64_t>(found.choices.size());
      for (const std::vector<std::int32_t>& choices : found.choices) {
        if (references(choices.front()) == 0) revived.insert(choices);
      }
      if (found.tokens % block_size_ != 0) {
        ++writers[found.choices.back().front()];
        ++hit[found.choices.back().front()];
      }
    }
    // Of the sequences that share a tail and write to it, the last holder needs no copy.
    for (const auto& [block, count] : writers) blocks += std::min(count, references(block) + hit[block] - 1);
    const bool beside_others = sequences_.size() > (pinned_ ? 1U : 0U) || wanted.size() > 1;
    if (admits && beside_others) blocks += static_cast<std::int64_t>(held_.size()) / 100;
    return blocks + std::ssize(revived);
  }

  /// Moves the prefixes of the `evicted` blocks to the host tier, in the order of their last use. Returns how
  /// many.
  std::int64_t move_to_host(const std::vector<std::int32_t>& evicted, const std::list<Tokens>& coming_back) {
    for (const Tokens& prefix : coming_back) take_out(host_, prefix);
    std::list<Tokens> entering;
    for (auto block = evicted.rbegin(); block != evicted.rend(); ++block) {
      const Tokens& prefix = held_[index(*block)];
      if (std::ranges::count(entering, prefix) > 0) continue;
      if (!take_out(host_, prefix)) {
        if (host_.empty()) break;
        host_.pop_front();
      }
      entering.push_front(prefix);
    }
    const auto moved = static_cast<std::int64_t>(entering.size());
    host_.splice(host_.end(), entering);
    for (std::size_t n = 0; n < coming_back.size(); ++n)
      host_.emplace_front();  // empty host blocks are filled first
    return moved;
  }

  std::int64_t block_size_;
  bool prefix_cache_;
  std::map<std::int32_t, Sequence> sequences_;
  std::optional<std::int32_t> pinned_;
  std::list<std::int32_t> queue_;  // free blocks, the next to be taken first
  std::vector<Tokens> held_;  // [blocks] salt and prefix that end with what a findable block holds; or none
  std::list<Tokens> host_;    // [host blocks] the same for them, the next to be given up first
  std::set<std::int32_t> condemned_;  // blocks in use that are forgotten afterwards
  std::int32_t marks_ = 0;
  CountersReport counters_;
};

struct Setting {
  std::int64_t blocks, block_size;
  SharingSettings sharing;
};

std::string as_text(const PassPlan& plan) {
  std::string text = fmt::format("{} {} {}", plan.slots, plan.block_table, plan.fresh_blocks);
  for (const std::vector<BlockCopy>* moves : {&plan.swaps_out, &plan.swaps_in, &plan.copies}) {
    for (const BlockCopy& move : *moves) text += fmt::format(" {}>{}", move.from, move.to);
    text += ";";
  }
  return text;
}

/// One random life of a manager and its model.
class RandomLife {
 public:
  RandomLife(const Setting& setting, std::uint32_t seed)
      : setting_(setting),
        random_(seed),
        cache_(setting.blocks, setting.block_size, setting.sharing),
        model_(setting.blocks, setting.block_size, setting.sharing) {}

  /// The first fault, or "".
  std::string step() {
    std::string wrong;
    const std::int64_t chance = below(100);
    if (chance < 20) {
      wrong = pass({{new_id(), new_prompt()}});
    } else if (chance < 55) {
      wrong = pass(grown_sequences());
    } else if (chance < 68) {
      if (const auto parent = any_sequence(); parent && cache_.sequences().size() < 12) {
        model_.fork(*parent, next_id_);
        cache_.fork(*parent, next_id_++);
      }
    } else if (chance < 70) {
      if (const auto sequence = any_sequence()) {
        model_.pin(*sequence);
        cache_.pin(*sequence);
        pinned_ = sequence;
      }
    } else if (chance < 80) {
      if (const auto sequence = any_sequence()) {  // preempted, and perhaps back at once
        const Tokens tokens = cache_.sequences().at(*sequence);
        free(*sequence);
        if (below(2) == 0) wrong = pass({{*sequence, tokens}});
      }
    } else if (chance < 84) {
      if (pinned_) wrong = pass(pinned_prefix_and_one_that_begins_with_it());
    } else if (chance < 88) {
      if (const auto sequence = any_sequence()) {  // it may have given its memory back before
        const Tokens tokens = cache_.sequences().at(*sequence);
        if (below(3) == 0) free(*sequence);
        const std::int64_t cached = below(3) == 0 ? 0 : below(static_cast<std::int64_t>(tokens.size()) + 1);
        if (pinned_ == *sequence) pinned_.reset();
        model_.discard(*sequence, cache_.salts.at(*sequence), tokens, cached / setting_.block_size);
        cache_.discard(*sequence, tokens, cached);
        ++discards;
      }
    } else if (const auto sequence = any_sequence()) {
      free(*sequence);
    }
    if (wrong.empty()) wrong = model_.difference(cache_.manager);
    if (wrong.empty()) {
      const Tokens probe = new_prompt();
      const std::string salt = any_salt();
      if (cache_.peek(probe, salt) != model_.cached(probe, salt)) wrong = "what a new prompt would find";
    }
    return wrong;
  }

  const CountersReport& counters() const { return model_.counters(); }
  std::int64_t refusals = 0, aborts = 0, discards = 0;

 private:
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint32_t>(end));
  }
  std::string any_salt() {
    return std::array{"", "", "", "alice", "mallory"}[static_cast<std::size_t>(below(5))];
  }
  /// The tokens and the salt of a new sequence.
  std::int32_t new_id() {
    cache_.salts[next_id_] = any_salt();
    return next_id_++;
  }
  std::optional<std::int32_t> any_sequence() {
    if (cache_.sequences().empty()) return std::nullopt;
    auto sequence = cache_.sequences().begin();
    std::advance(sequence, below(static_cast<std::int64_t>(cache_.sequences().size())));
    return sequence->first;
  }
  Tokens with_random_tail(Tokens tokens, std::int64_t most) {
    for (std::int64_t more = 1 + below(most); more > 0; --more)
      tokens.push_back(static_cast<std::int32_t>(below(2)));
    return tokens;
  }
  /// Mostly the beginning of an earlier sequence, then other tokens.
  Tokens new_prompt() {
    Tokens prompt;
    if (!seen_.empty() && below(4) > 0) {
      prompt = seen_[static_cast<std::size_t>(below(static_cast<std::int64_t>(seen_.size())))];
      prompt.resize(static_cast<std::size_t>(below(static_cast<std::int64_t>(prompt.size()) + 1)));
    }
    return with_random_tail(prompt, 2 * setting_.block_size + 1);
  }
  /// Some of the sequences, each with some more tokens, and sometimes a new one.
  std::map<std::int32_t, Tokens> grown_sequences() {
    std::map<std::int32_t, Tokens> wanted;
    const std::int64_t most = below(3) == 0 ? 2 * setting_.block_size : 1;
    for (const auto& [id, tokens] : cache_.sequences()) {
      if (below(2) == 0) wanted[id] = with_random_tail(tokens, most);
    }
    for (std::int64_t more = below(8) == 0 ? 2 : 0; more > 0; --more) wanted[new_id()] = new_prompt();
    if (wanted.empty()) wanted[new_id()] = new_prompt();
    return wanted;
  }
  /// Both sequences write to the prefix's tail.
  std::map<std::int32_t, Tokens> pinned_prefix_and_one_that_begins_with_it() {
    const Tokens prefix = cache_.sequences().at(*pinned_);
    const std::int32_t other = new_id();
    cache_.salts[other] = cache_.salts.at(*pinned_);
    return {{*pinned_, with_random_tail(prefix, 2)}, {other, with_random_tail(prefix, 2)}};
  }
  void free(std::int32_t sequence) {
    if (pinned_ == sequence) pinned_.reset();
    model_.free(sequence);
    cache_.free(sequence);
  }

  std::string pass(const std::map<std::int32_t, Tokens>& wanted) {
    const std::string before = cache_.observed();
    const std::vector<Work> work = cache_.work_of(wanted);
    std::string first_plan;
    if (const std::optional<PassPlan> plan = cache_.manager.plan(work); plan && below(3) == 0) {
      first_plan = as_text(*plan);
      cache_.manager.abort(*plan);
      ++aborts;
      if (cache_.observed() != before) return "an abort leaves a trace";
      if (below(4) == 0) return "";
    } else if (plan) {
      cache_.manager.abort(*plan);
    }
    const std::optional<PassPlan> plan = cache_.pass(wanted);
    if (plan && !first_plan.empty() && as_text(*plan) != first_plan) return "an abort changes the next plan";
    if (!plan) ++refusals;
    if (!plan && cache_.observed() != before) return "a refusal leaves a trace";
    if (plan) {
      for (const auto& [id, tokens] : wanted) {
        if (seen_.size() < 30) seen_.emplace_back();
        seen_[static_cast<std::size_t>(below(static_cast<std::int64_t>(seen_.size())))] = tokens;
      }
    }
    return model_.follow(wanted, cache_.salts, plan);
  }

  Setting setting_;
  std::mt19937 random_;
  CacheInPlay cache_;
  PlainModel model_;
  std::optional<std::int32_t> pinned_;
  std::vector<Tokens> seen_;  // some of the sequences that there were
  std::int32_t next_id_ = 0;
};

TEST(PrefixCachingRandom, AManagerIsWhatAPlainModelSaysAfterEveryOperation) {
  std::vector<Setting> settings;
  for (const std::int64_t blocks : {5, 12, 40}) {
    for (const std::int64_t block_size : {1, 3, 4}) {
      for (const int hash_bits : {1, 4, 64}) {
        for (const std::int64_t host_blocks : {0, 3, 50})
          settings.push_back({blocks, block_size, {.host_blocks = host_blocks, .hash_bits = hash_bits}});
      }
      settings.push_back({blocks, block_size, {.prefix_cache = false, .host_blocks = 3}});
    }
  }
  settings.push_back({200, 1, {.salt = "salt", .host_blocks = 50}});
  constexpr std::int64_t operations = 2600;  // in each setting
  CountersReport total;
  std::int64_t refusals = 0, aborts = 0, discards = 0, all_operations = 0;
  for (std::uint32_t seed = 1; const Setting& setting : settings) {
    RandomLife life(setting, seed);
    for (std::int64_t operation = 0; operation < operations; ++operation, ++all_operations) {
      std::string wrong;
      ASSERT_NO_THROW(wrong = life.step());
      ASSERT_TRUE(wrong.empty() && !testing::Test::HasFailure())
          << wrong << "\nseed " << seed << ", operation " << operation << ": " << setting.blocks
          << " blocks of " << setting.block_size << ", " << setting.sharing.hash_bits << " hash bits, "
          << setting.sharing.host_blocks << " host blocks, prefix cache " << setting.sharing.prefix_cache;
    }
    total.prefix_hits += life.counters().prefix_hits;
    total.evictions += life.counters().evictions;
    total.copies += life.counters().copies;
    total.swaps_out += life.counters().swaps_out;
    total.swaps_in += life.counters().swaps_in;
    refusals += life.refusals;
    aborts += life.aborts;
    discards += life.discards;
    ++seed;
  }
  // Every kind of event has happened often.
  EXPECT_GE(all_operations, 100000);
  for (const std::int64_t count : {total.prefix_hits, total.evictions, total.copies, total.swaps_out,
                                   total.swaps_in, refusals, aborts, discards})
    EXPECT_GT(count, 2000);
}

}  // namespace
}  // namespace kvcache
