/// @file
/// See page.h.
#include "docs/numbers/page.h"
#include "common/cli/print.h"

#include <algorithm>

#include "docs/numbers/verdict.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

constexpr const char* kIntroduction = R"(# The figures of the articles

<!-- ./steps numbers writes this page: change docs/numbers instead. -->

Five articles explain KV caches with figures:

- 000: [petite-vllm Part 2: KV Cache & Paged Attention](https://kristenmcintosh.dev/writing/posts/petite-vllm-kv-cache-paged-attention/), a post of the blog kristenmcintosh.dev.
- 001: PagedAttention in miniVLLM, a page of the [documentation of Wenyueh/MinivLLM](https://mintlify.com/Wenyueh/MinivLLM).
- 002: [Building a Production-Grade KV Cache for LLM Inference](https://www.coddykit.com/pages/blog-detail?id=512853&slug=building-a-production-grade-kv-cache-for-llm-inference-from-naive-to-pagedattent), a post on coddykit.com.
- 003: KV cache and PagedAttention: memory as the real bottleneck, a chapter of an online book.
- 004: Part 3: Paged Attention, a post of a series.

The addresses are those found in November 2026; of 003 and 004 only the text was at hand.

Each table has a row for each figure: a few of the article's words, the arithmetic, the right value, what our programs report, and the verdict.

For example, Article 000 says that 1,024 tokens of Qwen3-0.6B take ~114 MB.
The arithmetic gives 117.4 MB, and step 2 reserves 117.4 MB.
So the article's figure is 2.9% too small.

Where a run fits, the programs are steps 2 to 4 themselves ([below](#the-waste-experiments)).
Elsewhere they are the managers of these steps: bookkeeping that needs a model's bytes per token and no model.
Blocks have 16 tokens.

- kB, MB and GB are 10^3, 10^6 and 10^9 bytes; KiB, MiB and GiB are 2^10, 2^20 and 2^30.
- "Holds as MiB": the figure is right if its MB is read as MiB.
- "Holds, cut off": the article left out the last digits instead of rounding them.

Three kinds of figures are left out:

- Numbers that claim nothing: sizes that an example chooses, options, line and chapter numbers, dates.
- What an article says of other systems, and of designs that are not built here ([beyond](beyond.md)).
- Faults of the articles' code; the chapters show them as the bugs you would write.
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

The programs of steps 2, 3 and 4 run the same requests (`--random-weights tiny`, one layer; the shares are those of any model).
Each row shows the moment at which the step reserves the most memory.
Slots are the report's bytes divided by its bytes per token.
Step 4 counts a shared slot once.

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

/// Whether the comparison is with contiguous pieces at their best.
std::string fairest(const Measurements& measured) {
  const std::int64_t first = measured.first_fit.refused;
  const std::int64_t others = std::min(measured.best_fit.refused, measured.worst_fit.refused);
  return first <= others
             ? "First fit refuses the fewest of the three, so it shows contiguous pieces at their best."
             : "First fit does not refuse the fewest of the three here.";
}

std::string fragmentation_table(const Measurements& measured) {
  std::string text =
      fmt::format(R"(
## External fragmentation

{} sequences come and go in {} slots, once in contiguous pieces and once in the pool of step 3.
A contiguous piece has exactly the size of its sequence, as if every length were known on arrival.
So nothing is wasted inside a piece, and memory is lost only in the holes between pieces.
First fit cuts a new piece from the first hole that is large enough, best fit from the smallest such hole, worst fit from the largest.
{}

| | first fit | best fit | worst fit | blocks of 16 |
|---|---|---|---|---|
)",
                  grouped(measured.trace_visits), grouped(measured.trace_slots), fairest(measured));
  const auto row = [&](const char* label, std::int64_t ReplayResult::*field) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", label, grouped(measured.first_fit.*field),
                        grouped(measured.best_fit.*field), grouped(measured.worst_fit.*field),
                        grouped(measured.blocks.*field));
  };
  row("sequences refused", &ReplayResult::refused);
  row("refused although enough slots were free in all", &ReplayResult::refused_in_spite_of_room);
  row("tokens of all refused sequences", &ReplayResult::refused_tokens);
  row("most free slots at such a refusal", &ReplayResult::most_free_when_refused);
  row("most holes at a time", &ReplayResult::most_holes);
  row("most slots given out and empty at a time", &ReplayResult::most_wasted);
  row("most tokens stored at a time", &ReplayResult::most_tokens);
  return text;
}

/// "1.311 (1.290 to 1.350)".
std::string in_ms(const Turns& ms) {
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", ms.median, ms.least, ms.most);
}
/// "+5.4% (+4.9% to +6.0%)".
std::string as_overhead(const Turns& ratio) {
  const auto more = [](double times) { return fmt::format("{:+.1f}%", 100 * (times - 1)); };
  return fmt::format("{} ({} to {})", more(ratio.median), more(ratio.least), more(ratio.most));
}

/// "+5.4% to +165.2%": the least and the greatest median overhead of all loads.
std::string range_of(const MachineTimes& times, Turns DecodeTimes::*ratio) {
  const auto [least, most] =
      std::ranges::minmax(times.loads, {}, [&](const DecodeTimes& load) { return (load.*ratio).median; });
  return fmt::format("{:+.1f}% to {:+.1f}%", 100 * ((least.*ratio).median - 1),
                     100 * ((most.*ratio).median - 1));
}

std::string verdict_of_times(bool wrong, bool holds) {
  return wrong ? "**wrong** here" : holds ? "holds here" : "not decided here, the turns lie too far apart";
}

/// Article 004's ratio for gather on a CPU, and what it can be before it is rounded.
constexpr double kGather = 1.04, kGatherLeast = 1.035, kGatherMost = 1.045;

/// Wrong if all turns of a load say so.
std::string four_percent_verdict(const MachineTimes& times) {
  const bool wrong = std::ranges::any_of(times.loads, [](const DecodeTimes& load) {
    return load.gather_ratio.least > kGatherMost || load.gather_ratio.most < kGatherLeast;
  });
  const bool holds = std::ranges::all_of(times.loads, [](const DecodeTimes& load) {
    return kGatherLeast <= load.gather_ratio.median && load.gather_ratio.median <= kGatherMost;
  });
  return fmt::format("Article 004, gather on a CPU costs +4%: {}, {}.", verdict_of_times(wrong, holds),
                     range_of(times, &DecodeTimes::gather_ratio));
}

/// What an article calls near zero must at least be less than what it calls an overhead.
std::string near_zero_verdict(const MachineTimes& times) {
  const bool wrong = std::ranges::any_of(
      times.loads, [](const DecodeTimes& load) { return load.paged_ratio.least >= kGather; });
  const bool holds = std::ranges::all_of(
      times.loads, [](const DecodeTimes& load) { return load.paged_ratio.median < kGather; });
  return fmt::format(
      "Article 004, the overhead of a kernel that reads through the block table is near zero, less than its "
      "4%: {}, {}.",
      verdict_of_times(wrong, holds), range_of(times, &DecodeTimes::paged_ratio));
}

}  // namespace

std::string articles_page(const Measurements& measured) {
  std::string text = kIntroduction;
  for (const Article& article : check_articles(measured)) text += claims_table(article);
  return text + experiments_table(measured) + fragmentation_table(measured) + "\n";
}

std::string machine_times(const MachineTimes& times) {
  const bool gpu = times.device == "cuda";
  std::string text =
      gpu ? fmt::format("{} ({}, {}), Qwen3-0.6B in bf16:\n\n", kGpuRecordStart, times.processor, times.date)
          : fmt::format("On a CPU ({}, {} threads, {}), the shape of the shipped model in f32:\n\n",
                        times.processor, times.threads, times.date);
  text +=
      "| sequences | context | step 2, flat, ms | step 3, gather, ms | step 3, block table, ms | gather | "
      "block "
      "table |\n|---|---|---|---|---|---|---|\n";
  for (const DecodeTimes& load : times.loads) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", load.sequences, grouped(load.context),
                        in_ms(load.flat_ms), in_ms(load.gather_ms), in_ms(load.paged_ms),
                        as_overhead(load.gather_ratio), as_overhead(load.paged_ratio));
  }
  return text + "\n" + (gpu ? near_zero_verdict(times) : four_percent_verdict(times)) + "\n";
}

std::string times_section(const MachineTimes& cpu, const std::string& gpu_record) {
  return std::string(kTimesHeading) + R"(
These figures depend on the machine and on the run.
The [pictures](plots/README.md) and the benchmark's record of [two CPU cores](results/2026-11-28-bench-steps-cpu.md) come from other runs, so their times of a pass differ.
A turn runs each of the three variants once, and keeps the median of 32 decode passes of each run.
A figure is the median of five turns, with the least and the most in brackets.
The last two columns compare with step 2 in the same turn.
In Article 004 a pass takes 240 ms.
A copy costs the same time in a fast pass as in a slow one, so it is a larger share of our faster passes.

)" + machine_times(cpu) +
         "\n" + (gpu_record.empty() ? "On a GPU: not measured here.\n" : gpu_record);
}

}  // namespace kvcache
