// docs/articles.md is what the programs say today, and a figure is judged by the unit it was printed in.
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "common/kv/formulas.h"
#include "docs/numbers/bookkeeping.h"
#include "docs/numbers/page.h"
#include "docs/numbers/verdict.h"
#include "tests/files.h"
#include "tests/report_of.h"

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
  expect_refusal("numbers", {"--gpu-record", "/no/such/record.md"}, 2, {"/no/such/record.md"});
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
