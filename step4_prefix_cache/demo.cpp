/// @file
/// See demo.h.
#include "step4_prefix_cache/demo.h"

#include <map>
#include <numeric>

#include "common/cli/terminal.h"
#include "fmt/format.h"
#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBlocks = 8, kBlockSize = 4;

/// The manager, the sequences, and the drawing of both.
class Sharing {
 public:
  explicit Sharing(const std::vector<std::int32_t>& system_prompt)
      : system_prompt_(system_prompt), manager_({kBlocks, kBlockSize, 1}) {}

  void play() {
    fmt::print(
        "\nA pool of {} blocks of {} tokens; every question begins with the same {} tokens of instructions.\n"
        "A block shows who computed each of its tokens; in small letters when nobody refers to it and it "
        "can\n"
        "still be found.\n\n",
        kBlocks, kBlockSize, system_prompt_.size());
    store(A, asking(A));
    draw("A asks first and computes everything. Its full blocks can be found from now on.");
    store(B, asking(B));
    draw("B begins alike: it shares A's first two blocks, whose reference count is now 2.");
    free(A);
    draw("A ends. Its full blocks can still be found; B goes on using the first two.");
    free(B);
    draw("B ends. The tails of both are free at once; full blocks wait, a sequence's last before its first.");
    store(C, asking(A));
    draw("C asks what A asked: the hit takes A's three full blocks back out of the queue.");
    store(D, numbered(D, 4 * kBlockSize));
    draw("D has nothing in common and needs four blocks: three hold nothing, the fourth is the last of B.");
    free(D);
    store(E, asking(B));
    draw(
        "D ends and E asks what B asked: the instructions are found, B's own block has to be computed "
        "again.");
    free(E);
    fork(C, F);
    draw("E ends. C forks: F shares all of C's blocks, the partly filled one too.");
    std::vector<std::int32_t> longer = tokens_.at(F);
    longer.push_back(numbered(F, 1).front());
    store(F, longer);
    draw(
        "F writes its next token: the shared tail is copied first (copy-on-write). C goes on in the old "
        "one.");
  }

 private:
  enum : std::int32_t { A, B, C, D, E, F };

  /// `count` ids that no other sequence uses.
  static std::vector<std::int32_t> numbered(std::int32_t sequence, std::int64_t count) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    std::iota(ids.begin(), ids.end(), -1000 * (sequence + 1));
    return ids;
  }

  /// The system prompt, and a question of one and a half blocks.
  std::vector<std::int32_t> asking(std::int32_t who) const {
    std::vector<std::int32_t> ids = system_prompt_;
    const std::vector<std::int32_t> question = numbered(who, kBlockSize + kBlockSize / 2);
    ids.insert(ids.end(), question.begin(), question.end());
    return ids;
  }

  void store(std::int32_t sequence, const std::vector<std::int32_t>& ids) {
    const Work work{sequence, ids};
    const std::int64_t evictions = manager_.counters().evictions;
    const PassPlan plan = manager_.plan({&work, 1}).value();
    for (const std::int32_t block : plan.fresh_blocks) cell(block).assign(kBlockSize, '.');
    for (const BlockCopy& copy : plan.copies) cell(copy.to) = cell(copy.from);
    for (const std::int64_t slot : plan.slots)
      cell(slot / kBlockSize)[static_cast<std::size_t>(slot % kBlockSize)] = letter_of(sequence);
    manager_.commit(plan);
    tokens_[sequence] = ids;
    fmt::print("{}: {} tokens, {} of them there already, {} computed", letter_of(sequence), ids.size(),
               static_cast<std::int64_t>(ids.size()) - plan.tokens(), plan.tokens());
    const std::int64_t evicted = manager_.counters().evictions - evictions;
    if (evicted > 0) fmt::print("; {} evicted", evicted);
    for (const BlockCopy& copy : plan.copies) fmt::print("; block {} copied to {}", copy.from, copy.to);
    fmt::print("\n");
  }

  void free(std::int32_t sequence) {
    manager_.free(sequence);
    tokens_.erase(sequence);
  }

  void fork(std::int32_t parent, std::int32_t child) {
    manager_.fork(parent, child);
    tokens_[child] = tokens_.at(parent);
  }

  std::string& cell(std::int64_t block) { return cells_[static_cast<std::size_t>(block)]; }

  void draw(const char* what) {
    fmt::print("{}\n  block      ", what);
    for (std::int32_t block = 0; block < kBlocks; ++block) fmt::print("{:^7}", block);
    fmt::print("\n  pool       ");
    for (std::int32_t block = 0; block < kBlocks; ++block) fmt::print("{} ", drawn(block));
    fmt::print("\n  references ");
    for (std::int32_t block = 0; block < kBlocks; ++block)
      fmt::print("{:^7}", manager_.reference_count(block));
    fmt::print("\n  tables      ");
    for (const auto& [sequence, ids] : tokens_)
      fmt::print("{}: {}   ", letter_of(sequence), fmt::join(manager_.block_table(sequence), " "));
    const BlocksReport blocks = manager_.blocks();
    fmt::print("\n  free queue, next to be taken first: {}  ({} free, {} cached, {} in use)\n\n",
               fmt::join(manager_.free_queue(), " "), blocks.free, blocks.cached, blocks.in_use);
  }

  std::string drawn(std::int32_t block) {
    if (manager_.reference_count(block) > 0) return paint("[" + cell(block) + "]", cell(block)[0] - 'A');
    std::string faded(kBlockSize, '.');
    if (manager_.findable(block)) {
      faded = cell(block);
      for (char& letter : faded) letter = static_cast<char>(letter - 'A' + 'a');
    }
    return "[" + faded + "]";
  }

  std::vector<std::int32_t> system_prompt_;
  PrefixCachingManager manager_;
  std::map<std::int32_t, std::vector<std::int32_t>> tokens_;  // of each sequence in play
  std::vector<std::string> cells_ =                           // [blocks] who computed each token
      std::vector<std::string>(kBlocks, std::string(kBlockSize, '.'));
};

}  // namespace

void print_sharing(const Report& report) {
  std::vector<std::int32_t> system_prompt = report.sequences.front().prompt_ids;
  while (system_prompt.size() < 2 * kBlockSize)
    system_prompt.push_back(static_cast<std::int32_t>(system_prompt.size()));
  system_prompt.resize(2 * kBlockSize);
  Sharing(system_prompt).play();
}

}  // namespace kvcache
