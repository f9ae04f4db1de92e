/// @file
/// See demo.h.
#include "step3_paged/demo.h"

#include <algorithm>
#include <utility>

#include "common/cli/terminal.h"
#include "fmt/format.h"
#include "step3_paged/paged_manager.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBlockSize = 4;
constexpr std::size_t kPromptTokens = 7;  // of each sequence: one full block and three quarters of a second

/// A manager, and drawings of its state.
class WalkThrough {
 public:
  WalkThrough(const Program& program, const Report& report)
      : program_(program), manager_({kBlocks, kBlockSize, 1}) {
    for (const SequenceReport& sequence : report.sequences) {
      std::vector<std::int32_t> ids = sequence.prompt_ids;
      ids.insert(ids.end(), sequence.output_ids.begin(), sequence.output_ids.end());
      all_ids_.push_back(std::move(ids));
    }
    // The picture needs two sequences of eleven tokens.
    while (all_ids_.size() < 2) all_ids_.push_back(all_ids_.front());
    for (std::vector<std::int32_t>& ids : all_ids_) {
      while (ids.size() < kPromptTokens + kBlockSize)
        ids.push_back(ids[ids.size() % std::max<std::size_t>(1, ids.size() / 2)]);
    }
  }

  void play() {
    fmt::print(
        "\nA pool of {} blocks of {} tokens. A sequence takes a block only when it has a token to put "
        "there.\n",
        kBlocks, kBlockSize);
    store(0, kPromptTokens);
    draw("A arrives with 7 tokens: two blocks, the second with one slot to spare.");
    draw_table(0);
    draw_addresses(0, {0, 3, 6});
    store(1, kPromptTokens);
    draw("B arrives. Its blocks follow in the pool, but nothing depends on that.");
    store(0, kPromptTokens + 1);
    draw("A grows by one token. Its last block had room: no new block.");
    store(0, kPromptTokens + 2);
    draw("A grows again, and its blocks are full: it takes one more, behind B's.");
    draw_table(0);
    draw_addresses(0, {8});
    manager_.free(1);
    draw("B ends. Its blocks go back to the pool, wherever they lie.");
    store(2, kPromptTokens);
    draw("C arrives and gets the blocks that B left.");
    draw_table(2);
  }

 private:
  static constexpr std::int64_t kBlocks = 8;

  const std::vector<std::int32_t>& ids_of(std::int32_t sequence) const {
    return all_ids_[static_cast<std::size_t>(sequence) % all_ids_.size()];
  }

  /// Plans and commits a pass after which `sequence` has its first `tokens` tokens stored.
  void store(std::int32_t sequence, std::size_t tokens) {
    const Work work{sequence, std::span(ids_of(sequence)).first(tokens)};
    manager_.commit(manager_.plan({&work, 1}).value());
  }

  void draw(const char* what) const {
    fmt::print("\n{}\n", what);
    std::vector<std::string> cells(kBlocks, std::string(kBlockSize, '.'));
    std::vector<std::int32_t> owners(kBlocks, -1);
    for (std::int32_t sequence = 0; sequence < 3; ++sequence) {
      const std::vector<std::int32_t> table = manager_.block_table(sequence);
      for (std::size_t logical = 0; logical < table.size(); ++logical) {
        const auto block = static_cast<std::size_t>(table[logical]);
        const std::int64_t stored =
            manager_.length(sequence) - static_cast<std::int64_t>(logical) * kBlockSize;
        owners[block] = sequence;
        for (std::int64_t offset = 0; offset < std::min(stored, kBlockSize); ++offset) {
          cells[block][static_cast<std::size_t>(offset)] = letter_of(sequence);
        }
      }
    }
    fmt::print("  block ");
    for (std::int64_t block = 0; block < kBlocks; ++block) fmt::print("{:^7}", block);
    fmt::print("\n  pool  ");
    for (std::size_t block = 0; block < cells.size(); ++block) {
      const std::string cell = "[" + cells[block] + "]";
      fmt::print("{} ", owners[block] < 0 ? cell : paint(cell, owners[block]));
    }
    fmt::print("\n");
  }

  void draw_table(std::int32_t sequence) const {
    const std::vector<std::int32_t> table = manager_.block_table(sequence);
    fmt::print("\n  block table of {}\n", letter_of(sequence));
    for (std::size_t logical = 0; logical < table.size(); ++logical) {
      const auto first = static_cast<std::int64_t>(logical) * kBlockSize;
      std::string tokens;
      for (std::int64_t at = first; at < std::min(first + kBlockSize, manager_.length(sequence)); ++at) {
        tokens += " " + shown(ids_of(sequence)[static_cast<std::size_t>(at)]);
      }
      fmt::print("    logical block {} -> block {}  {}\n", logical, table[logical], tokens);
    }
  }

  void draw_addresses(std::int32_t sequence, std::initializer_list<std::int64_t> positions) const {
    const std::vector<std::int32_t> table = manager_.block_table(sequence);
    fmt::print("\n  where a token of {} lies: slot = block * {} + offset\n", letter_of(sequence), kBlockSize);
    for (const std::int64_t position : positions) {
      const std::int32_t block = table[static_cast<std::size_t>(position / kBlockSize)];
      fmt::print("    position {}: logical block {}, offset {} -> slot {} * {} + {} = {}\n", position,
                 position / kBlockSize, position % kBlockSize, block, kBlockSize, position % kBlockSize,
                 block * kBlockSize + position % kBlockSize);
    }
  }

  /// A token as text where there is a tokenizer, else its id.
  std::string shown(std::int32_t id) const {
    if (!program_.tokenizer) return fmt::format("{}", id);
    std::string text;
    for (const char byte : text_of_token(*program_.tokenizer, id)) {
      text += byte == '\n' ? "\\n" : byte == '\t' ? "\\t" : std::string(1, byte);
    }
    return "'" + text + "'";
  }

  const Program& program_;
  PagedManager manager_;
  std::vector<std::vector<std::int32_t>> all_ids_;  // of the run's sequences, prompt and output
};

void print_memory_beside_step_2(const Program& program, const Report& report) {
  const std::int64_t context = program.model->config().max_position_embeddings;
  const std::int64_t block_size = report.blocks.block_size;
  fmt::print("\nThe same {} sequence(s) of this run, as step 2 and step 3 keep them\n\n",
             report.sequences.size());
  fmt::print("  {:>9}{:>9}{:>19}{:>9}{:>19}{:>9}\n", "sequence", "tokens", "step 2 reserves", "waste",
             "step 3 holds", "waste");
  const auto waste = [](std::int64_t used, std::int64_t reserved) {
    return 100.0 * static_cast<double>(reserved - used) / static_cast<double>(reserved);
  };
  std::int64_t used = 0, flat = 0, paged = 0;
  for (std::size_t s = 0; s < report.sequences.size(); ++s) {
    const SequenceReport& sequence = report.sequences[s];
    const std::int64_t stored = sequence.stored_tokens();
    const std::int64_t held = (stored + block_size - 1) / block_size * block_size;
    fmt::print("  {:>9}{:>9}{:>19}{:>8.1f}%{:>19}{:>8.1f}%\n", s + 1, stored, context, waste(stored, context),
               held, waste(stored, held));
    used += stored;
    flat += context;
    paged += held;
  }
  fmt::print("  {:>9}{:>9}{:>19}{:>8.1f}%{:>19}{:>8.1f}%   positions\n", "all", used, flat, waste(used, flat),
             paged, waste(used, paged));
}

}  // namespace

void print_walk_through(const Program& program, const Report& report) {
  WalkThrough(program, report).play();
  print_memory_beside_step_2(program, report);
}

}  // namespace kvcache
