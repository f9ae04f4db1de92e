/// @file
/// See page.h.
#include "docs/numbers/page.h"

#include "docs/numbers/verdict.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

constexpr const char* kIntroduction = R"(# The figures of the articles

Written by `./steps numbers`; do not edit. Five articles explain KV caches with figures. Here is each figure with a few of the
article's words, the arithmetic, the right value, and what our programs report: the steps themselves where a run fits (the
experiments below), else the managers of steps 2 to 4, which are bookkeeping and need only a model's bytes per token.

kB, MB and GB are 10^3, 10^6 and 10^9 bytes; KiB, MiB and GiB are 2^10, 2^20 and 2^30. "Holds as MiB" means that the figure
is right if its MB is read as MiB. Blocks have 16 tokens.
)";

std::string claims_table(const Article& article) {
  std::string text = fmt::format("\n## Article {}: {}\n\n", article.number, article.title);
  text += "| the article | arithmetic | right | our programs | verdict |\n|---|---|---|---|---|\n";
  for (const Claim& claim : article.claims) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", claim.words, claim.arithmetic, claim.right,
                        claim.program, claim.verdict);
  }
  return text;
}

std::string experiment_rows(const ExperimentResult& result) {
  struct Row {
    const char* step;
    const StepFigures& figures;
  };
  std::string text;
  for (const auto& [step, figures] :
       {Row{"2, flat", result.flat}, Row{"3, paged", result.paged}, Row{"4, shared", result.shared}}) {
    text +=
        fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", result.experiment.name, step,
                    grouped(figures.reserved_slots()), grouped(figures.used_slots()),
                    percent(figures.waste()), grouped(figures.rows_computed), grouped(figures.prefix_hits));
  }
  return text;
}

std::string experiments_table(const Measurements& measured) {
  std::string text = R"(
## The waste experiments

The same requests through the programs of steps 2, 3 and 4 (`--random-weights tiny`, one layer: the shares are those of any
model). Slots are the report's bytes divided by its bytes per token, at the moment of the greatest reservation. Step 4 counts a
shared slot once.

| requests | step | slots reserved | used | waste | K/V rows computed | blocks hit |
|---|---|---|---|---|---|---|
)";
  for (const ExperimentResult* result :
       {&measured.four, &measured.poisson, &measured.system_prompt, &measured.mixed})
    text += experiment_rows(*result);
  const auto reserved = [&](const ExperimentResult& result) {
    return grouped(result.experiment.max_seq_len);
  };
  text += fmt::format("\nStep 2 reserves {}, {}, {} and {} slots per sequence.\n", reserved(measured.four),
                      reserved(measured.poisson), reserved(measured.system_prompt), reserved(measured.mixed));
  return text;
}

std::string fragmentation_table(const Measurements& measured) {
  std::string text = fmt::format(R"(
## External fragmentation

{} sequences come and go in {} slots: once in contiguous pieces of exactly their size, first fit, and once in the pool of
step 3. The pieces waste nothing inside, which supposes that every length is known on arrival; what is lost lies between them.

| | contiguous | blocks of 16 |
|---|---|---|
)",
                                 grouped(measured.trace_visits), grouped(measured.trace_slots));
  const auto row = [&](const char* label, std::int64_t ReplayResult::*field) {
    text += fmt::format("| {} | {} | {} |\n", label, grouped(measured.pieces.*field),
                        grouped(measured.blocks.*field));
  };
  row("sequences refused", &ReplayResult::refused);
  row("of these, the free slots together would have been enough", &ReplayResult::refused_in_spite_of_room);
  row("tokens of all those refused", &ReplayResult::refused_tokens);
  row("most slots free when one was refused in spite of them", &ReplayResult::most_free_when_refused);
  row("most holes at a time", &ReplayResult::most_holes);
  row("most slots given out and empty at a time", &ReplayResult::most_wasted);
  row("most tokens stored at a time", &ReplayResult::most_tokens);
  return text;
}

}  // namespace

std::string articles_page(const Measurements& measured) {
  std::string text = kIntroduction;
  for (const Article& article : check_articles(measured)) text += claims_table(article);
  return text + experiments_table(measured) + fragmentation_table(measured) + "\n";
}

std::string times_table(std::span<const DecodeTimes> times) {
  std::string text =
      "| sequences | context | step 2, flat, ms | step 3, gather, ms | step 3, block table, ms | gather | "
      "block "
      "table |\n|---|---|---|---|---|---|---|\n";
  for (const DecodeTimes& load : times) {
    text += fmt::format("| {} | {} | {:.3f} | {:.3f} | {:.3f} | {:+.1f}% | {:+.1f}% |\n", load.sequences,
                        grouped(load.context), load.flat_ms, load.gather_ms, load.paged_ms,
                        100 * (load.gather_ms / load.flat_ms - 1), 100 * (load.paged_ms / load.flat_ms - 1));
  }
  return text;
}

std::string times_section(std::span<const DecodeTimes> cpu, const std::string& gpu_record) {
  return std::string(kTimesHeading) + R"(
These depend on the machine. A decode pass, median of 32, best of five runs in turns; the last two columns are against step 2.
Article 004 says +4% for gather on a CPU, and an overhead near zero for a kernel that reads through the block table. Its passes take
240 ms; a copy costs the same whatever a pass costs, so it weighs the more the faster the rest is.

On a CPU, the shape of the shipped model in f32:

)" + times_table(cpu) +
         "\nOn a GPU, Qwen3-0.6B in bf16:\n\n" + (gpu_record.empty() ? "Not measured here.\n" : gpu_record);
}

}  // namespace kvcache
