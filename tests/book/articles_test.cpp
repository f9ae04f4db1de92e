// docs/articles.md holds what the programs say today. Each figure is judged in the unit in which the article
// printed it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "common/cli/print.h"
#include "docs/numbers/bookkeeping.h"
#include "docs/numbers/formulas.h"
#include "docs/numbers/page.h"
#include "docs/numbers/verdict.h"
#include "tests/support/files.h"
#include "tests/support/report_of.h"

namespace kvcache {
namespace {

TEST(Numbers, AProgramThatFailsIsReportedInOneLineWithWhatItSaid) {
  const ProgramResult result = run_step("numbers", {"--only-times", "--device", "cuda"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find("use --device cpu"), std::string::npos) << result.err;
}

TEST(Verdict, AcceptsRoundedFiguresInDecimalUnits) {
  EXPECT_EQ(verdict({16, 1, 'G'}, 16'060'522'496), "holds");
  EXPECT_EQ(verdict({91, 1, 'M'}, 91'499'999), "holds");
  EXPECT_EQ(verdict(45, 1, 45.117), "holds");
}

TEST(Verdict, SaysWhenAFigureIsRightInBinaryUnitsOnly) {
  EXPECT_EQ(verdict({88, 1, 'M'}, 92'274'688), "holds as MiB");
  EXPECT_EQ(verdict({44, 1, 'k'}, 45'056), "holds as KiB");
  EXPECT_EQ(verdict({10, 1, 'G'}, 10'737'418'240), "holds as GiB");
}

TEST(Verdict, RecognisesKibibytesDividedByAThousand) {
  EXPECT_EQ(verdict({114, 1, 'M'}, 117'440'512), "**wrong** by -2.9% (114,688 KiB, divided by 1,000)");
  EXPECT_EQ(verdict({9.1, 0.1, 'M'}, 9'371'648), "**wrong** by -2.9% (9,152 KiB, divided by 1,000)");
}

TEST(Verdict, SaysHowFarOffAFigureIs) {
  EXPECT_EQ(verdict({67109, 1, 'M'}, 343'597'383'680), "**wrong**: 5.1 times too little");
  EXPECT_EQ(verdict(10, 1, 4), "**wrong**: 2.5 times too much");
  EXPECT_EQ(verdict(60, 1, 60.9), "holds, cut off");
  EXPECT_EQ(verdict(60, 1, 61.1), "**wrong** by -1.8%");
}

TEST(Verdict, KeepsMegabytesAndMebibytesApart) {
  EXPECT_EQ(size(343'597'383'680, 'M'), "343,597 MB = 327,680 MiB");
  EXPECT_EQ(size(675'840, 'M'), "0.676 MB = 0.645 MiB");
  EXPECT_EQ(size(45'056, 'k'), "45.1 kB = 44.0 KiB");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(-1'234'567), "-1,234,567");
}

TEST(Bookkeeping, CountsTheExampleOfFourSequencesAsTheFormulasDo) {
  const std::int64_t lengths[] = {1024, 512, 200, 512}, bytes_per_token = 114'688;
  const KvMemoryReport flat = flat_memory(lengths, 1024, bytes_per_token);
  EXPECT_EQ(flat.reserved_bytes, 469'762'048);
  EXPECT_EQ(flat.reserved_bytes - flat.used_bytes, 211'943'424);
  const KvMemoryReport paged = paged_memory(lengths, 16, bytes_per_token);
  EXPECT_EQ(paged.used_bytes, flat.used_bytes);
  EXPECT_EQ(paged.reserved_bytes - paged.used_bytes, 8 * bytes_per_token);  // 200 tokens in 13 blocks
}

TEST(Bookkeeping, ASequenceNeverWastesAWholeBlock) {
  EXPECT_EQ(most_slots_wasted(100, 16), 15);
  EXPECT_EQ(most_slots_wasted(20, 1), 0);
}

TEST(Experiments, StepsReportWhatTheFormulasGive) {
  const ExperimentResult four = run_experiment(four_sequences());
  EXPECT_EQ(four.flat.reserved_slots(), 4 * 1024);
  EXPECT_EQ(four.flat.used_slots(), 2248);
  EXPECT_EQ(four.paged.reserved_slots(), 16 * (64 + 32 + 13 + 32));
  EXPECT_EQ(four.shared.reserved_slots(), four.paged.reserved_slots());  // nothing in common

  const ExperimentResult prompt = run_experiment(common_system_prompt());
  EXPECT_EQ(prompt.shared.prefix_hits, 99 * shareable_blocks(500, 16));
  EXPECT_EQ(prompt.paged.rows_computed - prompt.shared.rows_computed, 16 * prompt.shared.prefix_hits);
}

const Measurements& measured() {
  static const Measurements result = measure();
  return result;
}

/// If this fails and the change is meant, `./steps numbers` writes the page anew.
TEST(Articles, ThePageIsWhatTheFormulasAndProgramsSay) {
  const std::string committed = read_file(std::filesystem::path(SOURCE_DIR) / "docs/articles.md");
  EXPECT_EQ(committed.substr(0, committed.find(kTimesHeading)), articles_page(measured()));
}

TEST(NumbersProgram, RefusesWhatItDoesNotKnowInOneLine) {
  expect_refusal("numbers", {"--device", "abacus"}, 2, {"abacus", "cuda"});
  for (const std::string flag : {"--help", "-h", "--no-times", "--only-times"})
    expect_refusal("numbers", {flag + "=1"}, 2, {flag + " takes no value, and \"1\" is given"});
  expect_refusal("numbers", {"--device", "cuda"}, 2, {"--device", "--only-times"});  // not ignored
  expect_refusal("numbers", {"--gpu-record", "/no/such/record.md"}, 2, {"/no/such/record.md"});
}

TEST(NumbersProgram, RefusesAGpuRecordThatIsNone) {
  const TemporaryFolder folder;
  for (const char* text : {"", "| 1 | 42 |\n", "On a CPU (Abacus)"}) {
    write_file(folder / "record.txt", text);
    expect_refusal("numbers", {"--gpu-record", folder / "record.txt"}, 2, {"record.txt", "--device cuda"});
  }
}

/// Found by a reader of the articles beside the page.
TEST(Articles, AClaimIsJudgedInTheSenseInWhichItWasMade) {
  std::map<std::string, std::string> verdicts;
  for (const Article& article : check_articles(measured()))
    for (const Claim& claim : article.claims) verdicts[claim.words] = claim.verdict;
  const auto expect = [&](const std::string& words, const std::string& verdict) {
    const auto found = std::ranges::find_if(
        verdicts, [&](const auto& entry) { return entry.first.find(words) != std::string::npos; });
    ASSERT_NE(found, verdicts.end()) << words;
    EXPECT_TRUE(found->second.starts_with(verdict)) << words << ": " << found->second;
  };
  expect("waste 93.7%", "**wrong** by -0.2%");    // of Poisson(2,000): 93.9%
  expect("2 x H x D x T", "holds");               // its next sentence sets H = 8, D = 128
  expect("O(n^2)", "holds");                      // of attention
  expect("50-90%", "**wrong** as bounds");        // 97.6% is its own
  expect("2-4x", "holds for the paper's");        // 12 times here
  expect("~10x more concurrent", "holds");        // 426 / 43
  expect("~125 KB per token", "holds");           // of Llama 3 8B, 4.6% more
  expect("overhead near zero", "holds of what");  // nothing is copied
}

TEST(Articles, TheLengthsDrawnWasteWhatTheirDistributionSays) {
  const StepFigures& flat = measured().poisson.flat;
  EXPECT_NEAR(static_cast<double>(flat.used_slots()) / 32, 2000, 4 * 8);  // the mean of 32 varies by 8
  EXPECT_EQ(percent(flat.waste()), "93.9%");
}

// ---- times ----

TEST(Times, TurnsHaveAMedianAndASpread) {
  const Turns turns = turns_of({5, 1, 4, 2, 3});
  EXPECT_EQ(turns.median, 3);
  EXPECT_EQ(turns.least, 1);
  EXPECT_EQ(turns.most, 5);
  EXPECT_EQ(turns_of({7}).median, 7);
}

MachineTimes made_up_times(const std::string& device, double gather, double paged) {
  const auto about = [](double median) { return Turns{median, 0.9 * median, 1.1 * median}; };
  return {.device = device,
          .processor = "Abacus 9",
          .threads = 2,
          .date = "2026-01-31",
          .loads = {{4, 2048, about(1), about(gather), about(paged), about(gather), about(paged)}}};
}

TEST(Times, ATableSaysWhereWhenAndHowFarTheTurnsLieApart) {
  const std::string cpu = machine_times(made_up_times("cpu", 1.5, 1.02));
  EXPECT_TRUE(cpu.starts_with("On a CPU (Abacus 9, 2 threads, 2026-01-31), ")) << cpu;
  EXPECT_NE(
      cpu.find("| 4 | 2,048 | 1.000 (0.900 to 1.100) | 1.500 (1.350 to 1.650) | 1.020 (0.918 to 1.122) | "
               "+50.0% (+35.0% to +65.0%) | +2.0% (-8.2% to +12.2%) |\n"),
      std::string::npos)
      << cpu;
  EXPECT_TRUE(
      machine_times(made_up_times("cuda", 1.5, 1.02)).starts_with("On a GPU (Abacus 9, 2026-01-31), "));
}

TEST(Times, TheArticlesOverheadsGetAVerdict) {
  const auto says = [](const MachineTimes& times, const std::string& verdict) {
    return machine_times(times).find(verdict) != std::string::npos;
  };
  EXPECT_TRUE(says(made_up_times("cpu", 1.5, 1), "+4%: **wrong** here, +50.0% to +50.0%"));
  EXPECT_TRUE(says(made_up_times("cpu", 1.042, 1), "+4%: holds here"));
  EXPECT_TRUE(says(made_up_times("cpu", 1.1, 1), "+4%: not decided here"));  // some turns lie below
  EXPECT_TRUE(says(made_up_times("cuda", 1.5, 1.02), "holds here, +2.0% to +2.0%"));
  EXPECT_TRUE(says(made_up_times("cuda", 1.5, 1.05), "not decided here"));
  EXPECT_TRUE(says(made_up_times("cuda", 1.5, 1.3), "**wrong** here, +30.0% to +30.0%"));
}

TEST(Times, AMachineWithoutAGpuRecordSaysSo) {
  EXPECT_NE(times_section(made_up_times("cpu", 1.5, 1), "").find("On a GPU: not measured here."),
            std::string::npos);
}

/// The rows of a part of the page, below the heading of their table.
std::vector<std::string> rows_of(const std::string& part) {
  std::vector<std::string> rows;
  std::istringstream lines(part);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("| ") && !line.starts_with("| sequences")) rows.push_back(line);
  return rows;
}

/// What stands in brackets: the name of a processor, and a date.
void expect_machine_and_spread(const std::string& part) {
  EXPECT_TRUE(std::regex_search(part, std::regex("^On a [CG]PU \\([^)]+.*, 20\\d\\d-\\d\\d-\\d\\d\\)")))
      << part.substr(0, 200);
  EXPECT_EQ(rows_of(part).size(), 3U);
  for (const std::string& row : rows_of(part)) EXPECT_EQ(std::ranges::count(row, '('), 5) << row;
}

/// If this fails and the change is meant, `./steps numbers` writes the page anew.
TEST(Articles, TheTimesOfThePageSayWhereWhenAndHowFarTheTurnsLieApart) {
  const std::filesystem::path docs = std::filesystem::path(SOURCE_DIR) / "docs";
  const std::string page = read_file(docs / "articles.md");
  const std::string record = read_file(docs / "results/articles-cuda.txt");
  ASSERT_TRUE(page.ends_with(record)) << "the page has another record of a GPU than docs/results";
  const std::string before = page.substr(0, page.size() - record.size());
  expect_machine_and_spread(before.substr(before.find("On a CPU")));
  expect_machine_and_spread(record);
}

TEST(Articles, EveryClaimHasWordsAndAVerdict) {
  int claims = 0;
  for (const Article& article : check_articles(measured())) {
    for (const Claim& claim : article.claims) {
      EXPECT_FALSE(claim.words.empty() || claim.arithmetic.empty() || claim.verdict.empty()) << claim.words;
      EXPECT_EQ((claim.words + claim.arithmetic + claim.right + claim.program + claim.verdict).find('|'),
                std::string::npos)
          << claim.words;
      ++claims;
    }
  }
  EXPECT_GT(claims, 50);
}

}  // namespace
}  // namespace kvcache
