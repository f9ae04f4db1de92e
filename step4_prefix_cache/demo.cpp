/// @file
/// See demo.h.
#include "step4_prefix_cache/demo.h"

#include <map>

#include "common/cli/terminal.h"
#include "fmt/format.h"
#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBlocks = 8, kBlockSize = 4;

/// The manager, the sequences that play, and what is drawn of them.
class Sharing {
 public:
  explicit Sharing(const std::vector<std::int32_t>& system_prompt)
      : system_prompt_(system_prompt), manager_({kBlocks, kBlockSize, 1}) {}

  void play() {
    fmt::print(
        "\nA pool of {} blocks of {} tokens; every question begins with the same {} tokens of "
        "instructions.\n",
        kBlocks, kBlockSize, system_prompt_.size());
    ask(0, 3);
    draw("A asks first and computes everything. Its full blocks can be found from now on.");
    ask(1, 2);
    draw("B begins alike: it shares A's first two blocks, whose reference count is now 2.");
    manager_.free(0);
    draw("A ends. Its own full block (if any) stays findable in the queue; what B uses stays in use.");
    manager_.free(1);
    draw("B ends. Nobody refers to any block, and the instructions are still there.");
    ask(2, 3);
    draw("C asks what A asked: the hit takes its blocks back out of the queue.");
    store(3, numbered(3, 16));
    draw("D has nothing in common and needs four blocks: the least recently used content is evicted first.");
    manager_.free(3);
    manager_.fork(2, 4);
    draw("D ends. C forks: E shares all of C's blocks, the partly filled one too.");
    std::vector<std::int32_t> longer = tokens_[4] = tokens_[2];
    longer.push_back(7);
    store(4, longer);
    draw(
        "E writes its next token: the shared tail is copied first (copy-on-write). C goes on in the old "
        "one.");
  }

 private:
  /// `count` ids that no other sequence uses.
  static std::vector<std::int32_t> numbered(std::int32_t sequence, std::int32_t count) {
    std::vector<std::int32_t> ids;
    for (std::int32_t n = 0; n < count; ++n) ids.push_back(-1000 * (sequence + 1) - n);
    return ids;
  }

  /// The system prompt and a question of `words` tokens; A and C ask the same.
  void ask(std::int32_t sequence, std::int32_t words) {
    std::vector<std::int32_t> ids = system_prompt_;
    const std::vector<std::int32_t> question = numbered(sequence == 2 ? 0 : sequence, words);
    ids.insert(ids.end(), question.begin(), question.end());
    store(sequence, ids);
  }

  void store(std::int32_t sequence, const std::vector<std::int32_t>& ids) {
    const Work work{sequence, ids};
    const CountersReport before = manager_.counters();
    const PassPlan plan = manager_.plan({&work, 1}).value();
    manager_.commit(plan);
    tokens_[sequence] = ids;
    fmt::print("\n{}: {} tokens, {} of them found, {} computed", letter_of(sequence), ids.size(),
               static_cast<std::int64_t>(ids.size()) - plan.tokens(), plan.tokens());
    const CountersReport after = manager_.counters();
    if (after.evictions > before.evictions) fmt::print("; {} evicted", after.evictions - before.evictions);
    for (const BlockCopy& copy : plan.copies) fmt::print("; block {} copied to {}", copy.from, copy.to);
    fmt::print("\n");
  }

  void draw(const char* what) const {
    fmt::print("{}\n", what);
    std::vector<std::string> cells(kBlocks, std::string(kBlockSize, '.'));
    std::vector<std::int32_t> owners(kBlocks, -1);
    for (const auto& [sequence, ids] : tokens_) {
      const std::vector<std::int32_t> table = manager_.block_table(sequence);
      for (std::size_t n = 0; n < table.size(); ++n) {
        const auto block = static_cast<std::size_t>(table[n]);
        if (owners[block] < 0) owners[block] = sequence;
        for (std::size_t offset = 0; offset < kBlockSize && n * kBlockSize + offset < ids.size(); ++offset) {
          if (cells[block][offset] == '.') cells[block][offset] = letter_of(owners[block]);
        }
      }
    }
    const std::vector<std::int32_t> queue = manager_.free_queue();
    const BlocksReport blocks = manager_.blocks();
    fmt::print("  block      ");
    for (std::int64_t block = 0; block < kBlocks; ++block) fmt::print("{:^7}", block);
    fmt::print("\n  pool       ");
    for (std::size_t block = 0; block < kBlocks; ++block) {
      const std::string cell = "[" + cells[block] + "]";
      fmt::print("{} ", owners[block] < 0 ? cell : paint(cell, owners[block]));
    }
    fmt::print("\n  references ");
    for (std::int32_t block = 0; block < kBlocks; ++block)
      fmt::print("{:^7}", manager_.reference_count(block));
    fmt::print("\n  free queue, next to be taken first: {}  ({} free, {} cached, {} in use)\n",
               fmt::join(queue, " "), blocks.free, blocks.cached, blocks.in_use);
  }

  std::vector<std::int32_t> system_prompt_;
  PrefixCachingManager manager_;
  std::map<std::int32_t, std::vector<std::int32_t>> tokens_;  // of each sequence that played
};

}  // namespace

void print_sharing(const Program&, const Report& report) {
  std::vector<std::int32_t> system_prompt = report.sequences.front().prompt_ids;
  while (system_prompt.size() < 2 * kBlockSize)
    system_prompt.push_back(static_cast<std::int32_t>(system_prompt.size()));
  system_prompt.resize(2 * kBlockSize);
  Sharing(system_prompt).play();
}

}  // namespace kvcache
