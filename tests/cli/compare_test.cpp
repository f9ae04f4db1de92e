// The table of ./steps demo: equal results are "same", different ones are "DIFFERENT", and reports of
// different prompts are refused.
#include "common/cli/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/cli/print.h"
#include "tests/support/report_of.h"

namespace kvcache {
namespace {

ReportFile report(const std::string& step, std::vector<std::int32_t> outputs, std::vector<float> logits) {
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
  return {step + ".json", nlohmann::json::parse(to_json(made))};
}

TEST(Compare, PrintsTheTextAndAColumnPerStep) {
  const ReportFile reports[] = {report("one", {3}, {0.5F}), report("two", {3}, {0.5F})};
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
  const ReportFile reports[] = {report("one", {}, {}), report("two", {}, {})};  // no decode pass
  const std::string table = compare_reports(reports);
  EXPECT_NE(table.find("ms per token, each                         -                   -"), std::string::npos)
      << table;
  EXPECT_NE(table.find("tokens per second                          -                   -"), std::string::npos)
      << table;
}

TEST(Compare, ShoutsWhenOneBitOfALogitDiffers) {
  const ReportFile reports[] = {report("one", {3}, {0.5F}), report("two", {3}, {std::nextafter(0.5F, 1.0F)})};
  EXPECT_NE(compare_reports(reports).find("logits, every bit                       same           DIFFERENT"),
            std::string::npos);
}

TEST(Compare, ShoutsWhenIdsDiffer) {
  const ReportFile reports[] = {report("one", {3}, {}), report("two", {4}, {})};
  const std::string table = compare_reports(reports);
  EXPECT_NE(table.find("token ids                               same           DIFFERENT"), std::string::npos)
      << table;
  EXPECT_NE(table.find("not asked for"), std::string::npos);
}

TEST(Compare, RefusesReportsOfUnlikeRuns) {
  ReportFile other = report("two", {3}, {});
  other.content["sequences"][1]["prompt_ids"] = {9};
  const ReportFile reports[] = {report("one", {3}, {}), other};
  EXPECT_THROW(compare_reports(reports), InputError);
  const ReportFile foreign[] = {report("one", {3}, {}), {"two.json", {{"schema", 2}}}};
  EXPECT_THROW(compare_reports(foreign), InputError);
  const ReportFile no_object[] = {{"one.json", nlohmann::json::array()}};
  EXPECT_THROW(compare_reports(no_object), InputError);
}

std::string refusal_of(const std::vector<ReportFile>& reports) {
  try {
    compare_reports(reports);
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Compare, SaysHowManySequencesEachOfUnlikeReportsHas) {
  ReportFile shorter = report("one", {3}, {});
  shorter.content["sequences"].erase(1);
  EXPECT_EQ(refusal_of({report("two", {3}, {}), shorter}),
            "one.json and two.json differ in their number of sequences, 1 and 2; run every step on the same "
            "prompts");
}

TEST(Compare, NamesTheFileAndTheFieldThatIsMissingOrOfAnotherType) {
  const ReportFile good = report("good", {3}, {});
  const auto expect_refused = [&](ReportFile damaged, const std::string& field, const std::string& fault) {
    damaged.name = "damaged.json";
    const std::string expected = "damaged.json: " + field + " " + fault +
                                 "; give the --json output of this project's steps, unchanged";
    EXPECT_EQ(refusal_of({damaged}), expected);
    EXPECT_EQ(refusal_of({good, damaged}), expected);
    EXPECT_EQ(refusal_of({damaged, good}), expected);
  };
  for (const char* place :
       {"/step", "/sequences", "/timing/ms_per_token", "/timing/decode_tokens_per_s", "/kv_rows/computed",
        "/kv_rows/recomputed", "/kv_memory/reserved_bytes", "/kv_memory/used_bytes",
        "/kv_memory/waste_percent", "/sequences/1/text", "/sequences/1/prompt_ids",
        "/sequences/1/cached_tokens", "/sequences/1/ttft_ms"}) {
    const nlohmann::json::json_pointer field(place);
    std::string name = std::string(place).substr(1);
    if (name.starts_with("sequences/1/")) name.replace(0, 12, "sequences[1].");
    std::replace(name.begin(), name.end(), '/', '.');
    ReportFile damaged = good;
    nlohmann::json& object = damaged.content.at(field.parent_pointer());
    object.erase(field.back());
    expect_refused(damaged, name, "is missing");
    object[field.back()] = true;
    const std::string refusal = refusal_of({damaged});
    EXPECT_EQ(refusal.rfind("good.json: " + name + " is true, not a", 0), 0U) << refusal;
  }
  ReportFile huge = good;
  huge.content["kv_rows"]["computed"] = std::uint64_t{1} << 63U;
  expect_refused(huge, "kv_rows.computed", "is 9223372036854775808, not a whole number");
  ReportFile no_object = good;
  no_object.content["sequences"][0] = 5;
  expect_refused(no_object, "sequences[0].text", "is missing");
  no_object.content["kv_rows"] = nlohmann::json::array({1, 2});
  expect_refused(no_object, "kv_rows.computed", "is missing");
  expect_refused({"", {{"schema", 1}}}, "step", "is missing");
  for (const nlohmann::json& schema : {nlohmann::json("1"), nlohmann::json(2), nlohmann::json()})
    expect_refused({"", {{"schema", schema}}}, "schema", "is not 1");
  for (const nlohmann::json& none : {nlohmann::json::object(), nlohmann::json::array(), nlohmann::json(1)})
    expect_refused({"", none}, "schema", "is not 1");
}

TEST(Compare, NamesAFileThatCannotBeRead) {
  const auto refusal_of_file = [](const std::string& name) -> std::string {
    const char* const names[] = {name.c_str()};
    try {
      static_cast<void>(read_reports(names));
    } catch (const InputError& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(refusal_of_file("/"), "/: this is a folder");
  EXPECT_EQ(refusal_of_file("/proc/self/mem"), "/proc/self/mem: cannot be read to its end");
  EXPECT_EQ(refusal_of_file("/no/such"), "/no/such: No such file or directory");
  EXPECT_EQ(refusal_of_file("/dev/null"),
            "/dev/null is not JSON; give the --json output of this project's steps, unchanged");
  const TemporaryFolder folder;
  const std::string deep = folder / "deep";
  write_file(deep, R"({"step":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}");
  EXPECT_EQ(refusal_of_file(deep), deep + ": nested more than 64 levels deep at line 1, column 72");
}

TEST(CompareReports, AnOptionIsNoFile) {
  for (const char* option : {"--help", "--json"})
    expect_refusal("compare_reports", {option, "/no/such"}, 2,
                   {"error: " + std::string(option) + " is no file", "compare_reports REPORT.json"});
}

}  // namespace
}  // namespace kvcache
