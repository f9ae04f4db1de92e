// The texts of several sequences on a terminal appear while they are generated, one after the other. In the
// end the terminal shows what a file would hold.
#include "common/cli/live_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/cli/print.h"
#include "tests/support/damaged_model.h"
#include "tests/support/reference_model.h"
#include "tests/support/run_program.h"

namespace kvcache {
namespace {

class ALiveText : public testing::Test {
 protected:
  LiveText live(std::size_t sequences, std::vector<std::int32_t> eos_ids = {}) {
    return {tokenizer_, sequences, std::move(eos_ids), [this](std::string_view text) { written_ += text; }};
  }
  /// What has been written since the last call.
  std::string written() { return std::exchange(written_, ""); }

  const Tokenizer tokenizer_{checkpoint_folder("fairytale")};
  const std::vector<std::int32_t> ids_ = tokenizer_.encode(" once upon a time");
  std::string word(std::size_t n) const { return tokenizer_.decode({&ids_[n], 1}); }

 private:
  std::string written_;
};

TEST_F(ALiveText, OfOneSequenceComesWithEveryId) {
  LiveText text = live(1);
  text.push(0, ids_[0]);
  EXPECT_EQ(written(), word(0));
  text.push(0, ids_[1]);
  EXPECT_EQ(written(), word(1));
  text.end(0);
  EXPECT_EQ(written(), "\n\n");
}

TEST(LiveTextOfAFailingDecoder, EndsBeforeTheToken) {
  const TemporaryFolder folder;
  const nlohmann::json vocab = {{"d", 0}, {std::string(400, 'a'), 1}};
  const nlohmann::json decoder = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(500, 'b')}};
  write_file(
      folder / "tokenizer.json",
      nlohmann::json{{"model", {{"vocab", vocab}, {"merges", nlohmann::json::array()}}}, {"decoder", decoder}}
          .dump());
  const Tokenizer tokenizer(folder.path());
  std::string written;
  LiveText text(tokenizer, 2, {}, [&](std::string_view part) { written += part; });
  for (const std::int32_t id : {0, 0, 1, 0}) text.push(0, id);
  text.push(1, 0);
  text.end(0);
  text.end(1);
  EXPECT_EQ(written, "[1]\ndd\n\n[2]\nd\n\n");
}

TEST_F(ALiveText, OfSeveralComesForTheFirstAndThenForThoseBehindIt) {
  LiveText text = live(3);
  text.push(0, ids_[0]);
  text.push(1, ids_[1]);
  EXPECT_EQ(written(), "") << "other prompts may still be computed";
  text.push(0, ids_[1]);
  EXPECT_EQ(written(), "[1]\n" + word(0) + word(1));
  text.push(1, ids_[2]);
  EXPECT_EQ(written(), "");
  text.push(0, ids_[2]);
  EXPECT_EQ(written(), word(2));
  text.end(0);
  EXPECT_EQ(written(), "\n\n[2]\n" + word(1) + word(2)) << "as far as it has come";
  text.push(1, ids_[3]);
  EXPECT_EQ(written(), word(3));
  text.end(1);
  EXPECT_EQ(written(), "\n\n") << "the third has not begun";
  text.push(2, ids_[0]);
  text.push(2, ids_[1]);
  EXPECT_EQ(written(), "[3]\n" + word(0) + word(1));
  text.end(2);
  EXPECT_EQ(written(), "\n\n");
}

TEST_F(ALiveText, IsInTheEndWhatTheReportPrints) {
  const std::vector<std::int32_t> nothing, end{2}, emoji = tokenizer_.encode("\xF0\x9F\x90\xBA!");
  std::vector<std::int32_t> half = emoji;
  half.resize(1);
  const std::vector<std::int32_t> outputs[] = {nothing, end, ids_, emoji, half};
  // Each order of ends, the last first and the first first.
  for (const bool backwards : {false, true}) {
    Report report;
    LiveText text = live(std::size(outputs), {2});
    for (std::size_t n = 0; n < std::size(outputs); ++n) {
      SequenceReport& sequence = report.sequences.emplace_back();
      sequence.output_ids = outputs[n];
      if (outputs[n] != end) sequence.text = tokenizer_.decode(outputs[n]);
      for (const std::int32_t id : outputs[n]) text.push(n, id);
      if (!backwards) text.end(n);
    }
    for (std::size_t n = std::size(outputs); backwards && n > 0; --n) text.end(n - 1);
    const std::string printed = to_text(report, false);
    EXPECT_EQ(written(), printed.substr(0, printed.find("step  ")));
  }
}

TEST_F(ALiveText, SaysNothingOfASequenceThatFailedBeforeItsFirstId) {
  LiveText alone = live(1);
  alone.end(0, /*failed=*/true);
  EXPECT_EQ(written(), "");
  LiveText all = live(2);
  all.end(1, /*failed=*/true);
  all.end(0, /*failed=*/true);
  EXPECT_EQ(written(), "");

  Report report;
  report.sequences.resize(4);
  LiveText some = live(4);
  for (const std::size_t failed : {0U, 2U}) {
    report.sequences[failed].error = "why";
    some.end(failed, /*failed=*/true);
  }
  for (const std::size_t good : {1U, 3U}) {
    report.sequences[good].output_ids = ids_;
    report.sequences[good].text = tokenizer_.decode(ids_);
    for (const std::int32_t id : ids_) some.push(good, id);
    some.end(good, false);
  }
  const std::string text = tokenizer_.decode(ids_), printed = to_text(report, false);
  EXPECT_EQ(written(), "[2]\n" + text + "\n\n[4]\n" + text + "\n\n");
  EXPECT_TRUE(printed.starts_with("[2]\n" + text + "\n\n[4]\n" + text + "\n\nstep  ")) << printed;
}

TEST_F(ALiveText, KeepsTheTextThatCameBeforeAFailure) {
  LiveText text = live(1);
  text.push(0, ids_[0]);
  text.end(0, /*failed=*/true);
  EXPECT_EQ(written(), word(0) + "\n\n");
}

// If every sequence fails before its first id, a terminal shows nothing, as a file would hold nothing.
TEST(LiveTextOnATerminal, IsNothingWhereEverySequenceFails) {
  if (!std::filesystem::exists("/usr/bin/script")) GTEST_SKIP() << "needs script, which makes a terminal";
  const DamagedModel damaged;
  for (const std::string step : {"step1_no_cache", "step2_flat_cache", "step3_paged", "step4_prefix_cache"}) {
    for (const std::string ids : {"--ids 1,2,500", "--ids 1,2,500 --ids 3,500"}) {
      std::string command = BINARY_DIR "/";
      command.append(step).append(" --model ").append(damaged.path().string());
      command.append(" ").append(ids).append(" 2>/dev/null");
      const ProgramResult result = run_program("/usr/bin/script", {"-qec", command, "/dev/null"});
      EXPECT_EQ(result.exit_code, 1) << step;
      EXPECT_EQ(result.out, "") << step << " " << ids;
    }
  }
}

TEST_F(ALiveText, HoldsNoIdThatEndsASequence) {
  LiveText text = live(1, {ids_[1]});
  text.push(0, ids_[0]);
  text.push(0, ids_[1]);
  EXPECT_EQ(written(), word(0));
}

}  // namespace
}  // namespace kvcache
