// The table of ./steps demo: what agrees is called so, what differs is shouted, and unlike runs are refused.
#include "common/cli/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "common/base/error.h"
#include "common/cli/print.h"

namespace kvcache {
namespace {

nlohmann::json report(const std::string& step, std::vector<std::int32_t> outputs, std::vector<float> logits) {
  Report made;
  made.step = step;
  SequenceReport sequence;
  sequence.prompt_ids = {1, 2};
  sequence.output_ids = std::move(outputs);
  sequence.text = " a king";
  sequence.logits = std::move(logits);
  sequence.cached_tokens = 16;
  made.sequences = {sequence, sequence};
  made.kv_rows = {72, 3};
  return nlohmann::json::parse(to_json(made));
}

TEST(Compare, PrintsTheTextAndAColumnPerStep) {
  const nlohmann::json reports[] = {report("one", {3}, {0.5F}), report("two", {3}, {0.5F})};
  const std::string table = compare_reports(reports);
  EXPECT_EQ(table.rfind("[1] a king\n", 0), 0U) << table;
  EXPECT_NE(table.find("K/V rows computed                         72                  72"), std::string::npos)
      << table;
  EXPECT_NE(table.find("cached prompt tokens                      32                  32"), std::string::npos)
      << table;
  EXPECT_NE(table.find("token ids                               same                same"), std::string::npos)
      << table;
  EXPECT_NE(table.find("logits, every bit                       same                same"), std::string::npos)
      << table;
}

TEST(Compare, HasADashForWhatWasNotMeasured) {
  const nlohmann::json reports[] = {report("one", {}, {}), report("two", {}, {})};  // no decode pass
  const std::string table = compare_reports(reports);
  EXPECT_NE(table.find("ms per token, each                         -                   -"), std::string::npos)
      << table;
  EXPECT_NE(table.find("tokens per second                          -                   -"), std::string::npos)
      << table;
}

TEST(Compare, ShoutsWhenOneBitOfALogitDiffers) {
  const nlohmann::json reports[] = {report("one", {3}, {0.5F}),
                                    report("two", {3}, {std::nextafter(0.5F, 1.0F)})};
  EXPECT_NE(compare_reports(reports).find("logits, every bit                       same           DIFFERENT"),
            std::string::npos);
}

TEST(Compare, ShoutsWhenIdsDiffer) {
  const nlohmann::json reports[] = {report("one", {3}, {}), report("two", {4}, {})};
  const std::string table = compare_reports(reports);
  EXPECT_NE(table.find("token ids                               same           DIFFERENT"), std::string::npos)
      << table;
  EXPECT_NE(table.find("not asked for"), std::string::npos);
}

TEST(Compare, RefusesReportsOfUnlikeRuns) {
  nlohmann::json other = report("two", {3}, {});
  other["sequences"][1]["prompt_ids"] = {9};
  const nlohmann::json reports[] = {report("one", {3}, {}), other};
  EXPECT_THROW(compare_reports(reports), InputError);
  const nlohmann::json foreign[] = {report("one", {3}, {}), nlohmann::json{{"schema", 2}}};
  EXPECT_THROW(compare_reports(foreign), InputError);
  const nlohmann::json no_object[] = {nlohmann::json::array()};
  EXPECT_THROW(compare_reports(no_object), InputError);
}

}  // namespace
}  // namespace kvcache
