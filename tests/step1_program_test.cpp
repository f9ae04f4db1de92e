// step1_no_cache as a user runs it: the report's numbers, and one helpful line for everything that is not
// right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/report_of.h"

namespace kvcache {
namespace {

const std::string kStep = "step1_no_cache";
const std::string kTinyModel = std::string(SOURCE_DIR) + "/tests/reference/qwen3-tied";

nlohmann::json report_of(const std::vector<std::string>& arguments) {
  return kvcache::report_of(kStep, arguments);
}

void expect_refusal(const std::vector<std::string>& arguments, int code,
                    const std::vector<std::string>& parts) {
  kvcache::expect_refusal(kStep, arguments, code, parts);
}

TEST(Step1Program, TheShippedModelIsFoundAndContinuesAPrompt) {
  const nlohmann::json report = report_of({"--prompt", "Once upon a time", "--tokens", "12"});
  EXPECT_EQ(report["schema"], 1);
  EXPECT_EQ(report["step"], kStep);
  EXPECT_EQ(report["device"], "cpu");
  EXPECT_EQ(report["dtype"], "f32");
  EXPECT_EQ(report["sequences"].size(), 1U);
  EXPECT_EQ(report["sequences"][0]["output_ids"].size(), 12U);
  EXPECT_FALSE(report["sequences"][0]["text"].get<std::string>().empty());
}

TEST(Step1Program, CountsEveryRowItComputesAndEveryRowItComputesAgain) {
  const nlohmann::json report =
      report_of({"--model", kTinyModel, "--ids", "5,6,7,8", "--tokens", "5", "--ignore-eos"});
  // Passes of 4, 5, 6, 7 and 8 rows; all but the newest of each were there before.
  EXPECT_EQ(report["kv_rows"]["computed"], 4 + 5 + 6 + 7 + 8);
  EXPECT_EQ(report["kv_rows"]["recomputed"], 4 + 5 + 6 + 7);
  EXPECT_EQ(report["timing"]["prefill_tokens"], 4);
  EXPECT_EQ(report["timing"]["decode_tokens"], 4);
  EXPECT_EQ(report["kv_memory"]["reserved_bytes"], 0);
  EXPECT_EQ(report["kv_memory"]["waste_percent"], 0);
  EXPECT_EQ(report["blocks"]["total"], 0);
  EXPECT_TRUE(report["sequences"][0]["block_table"].empty());
  EXPECT_EQ(report["sequences"][0]["finish_reason"], "length");
}

TEST(Step1Program, SequencesKeepTheOrderOfTheLineAndTheIdsOfTheirSoloRuns) {
  const std::vector<std::string> common{"--model", kTinyModel, "--tokens", "6", "--ignore-eos"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = common;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const nlohmann::json both =
      report_of(with({"--ids", "9,8,7", "--prompt", "Once upon a time", "--ids", "1"}));
  ASSERT_EQ(both["sequences"].size(), 3U);
  EXPECT_EQ(both["sequences"][0]["prompt_ids"], (std::vector<int>{9, 8, 7}));
  EXPECT_EQ(both["sequences"][0]["output_ids"],
            report_of(with({"--ids", "9,8,7"}))["sequences"][0]["output_ids"]);
  EXPECT_EQ(both["sequences"][1]["output_ids"],
            report_of(with({"--prompt", "Once upon a time"}))["sequences"][0]["output_ids"]);
  EXPECT_EQ(both["sequences"][2]["output_ids"],
            report_of(with({"--ids", "1"}))["sequences"][0]["output_ids"]);
}

TEST(Step1Program, ZeroTokensIsPrefillOnly) {
  const nlohmann::json report =
      report_of({"--model", kTinyModel, "--ids", "1,2,3", "--tokens", "0", "--logits"});
  EXPECT_TRUE(report["sequences"][0]["output_ids"].empty());
  EXPECT_EQ(report["sequences"][0]["finish_reason"], "length");
  EXPECT_EQ(report["sequences"][0]["text"], "");
  EXPECT_EQ(report["sequences"][0]["logits"].size(), 768U);
}

TEST(Step1Program, TheSequenceEndsWhereTheContextEnds) {
  std::string ids = "1";
  for (int n = 1; n < 510; ++n) ids += "," + std::to_string(n % 700);
  const nlohmann::json report =
      report_of({"--model", kTinyModel, "--ids", ids, "--tokens", "10", "--ignore-eos"});
  EXPECT_EQ(report["sequences"][0]["output_ids"].size(), 2U);  // 510 + 2 = 512
  EXPECT_EQ(report["sequences"][0]["finish_reason"], "length");
}

TEST(Step1Program, ALaterTokenDoesNotChangeEarlierLogits) {
  const nlohmann::json shorter =
      report_of({"--model", kTinyModel, "--ids", "4,5,6", "--tokens", "1", "--ignore-eos", "--logits"});
  const int next = shorter["sequences"][0]["output_ids"][0];
  const nlohmann::json longer =
      report_of({"--model", kTinyModel, "--ids", "4,5,6", "--tokens", "2", "--ignore-eos", "--logits"});
  EXPECT_EQ(longer["sequences"][0]["logits"], shorter["sequences"][0]["logits"]);
  const nlohmann::json given = report_of(
      {"--model", kTinyModel, "--ids", "4,5,6," + std::to_string(next), "--tokens", "1", "--ignore-eos"});
  EXPECT_EQ(given["sequences"][0]["output_ids"][0], longer["sequences"][0]["output_ids"][1]);
}

TEST(Step1Program, TheThreadCountChangesNoBit) {
  const std::vector<std::string> arguments{"--model",  kTinyModel, "--prompt", "There was once a king",
                                           "--tokens", "8",        "--logits"};
  nlohmann::json first;
  for (const char* threads : {"1", "2", "3", "7"}) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--threads", threads});
    const nlohmann::json report = report_of(all);
    if (first.is_null()) first = report;
    EXPECT_EQ(report["sequences"][0]["logits"], first["sequences"][0]["logits"]) << threads;
    EXPECT_EQ(report["sequences"][0]["output_ids"], first["sequences"][0]["output_ids"]) << threads;
  }
}

TEST(Step1Program, EqualSeedsGiveEqualIdsAndNeighboursChangeNothing) {
  const std::vector<std::string> sampled{"--model", kTinyModel, "--tokens", "16",          "--temperature",
                                         "1",       "--seed",   "42",       "--ignore-eos"};
  const auto ids_of = [&](std::vector<std::string> more, std::size_t which) {
    std::vector<std::string> all = sampled;
    all.insert(all.end(), more.begin(), more.end());
    return report_of(all)["sequences"][which]["output_ids"];
  };
  const nlohmann::json alone = ids_of({"--ids", "3,4,5"}, 0);
  EXPECT_EQ(ids_of({"--ids", "3,4,5"}, 0), alone);
  EXPECT_EQ(ids_of({"--ids", "9,9", "--ids", "3,4,5", "--ids", "1"}, 1), alone);
}

TEST(Step1Program, ReducedTypesStayNearFloat32) {
  const std::vector<std::string> common{"--model",  kTinyModel, "--prompt", "There was once a king",
                                        "--tokens", "1",        "--logits"};
  const nlohmann::json exact = report_of(common);
  const auto reference = exact["sequences"][0]["logits"].get<std::vector<double>>();
  double largest = 0;
  for (const double logit : reference) largest = std::max(largest, std::abs(logit));
  for (const char* dtype : {"bf16", "f16"}) {
    std::vector<std::string> all = common;
    all.insert(all.end(), {"--dtype", dtype});
    const nlohmann::json report = report_of(all);
    EXPECT_EQ(report["dtype"], dtype);
    const auto logits = report["sequences"][0]["logits"].get<std::vector<double>>();
    double worst = 0;
    for (std::size_t id = 0; id < logits.size(); ++id)
      worst = std::max(worst, std::abs(logits[id] - reference[id]));
    EXPECT_LT(worst, 0.03 * largest) << dtype;
    EXPECT_GT(worst, 0.0) << dtype << " must be rounded";
  }
}

TEST(Step1Program, RandomWeightsNeedNoCheckpointAndAreTheSameEachTime) {
  const std::vector<std::string> arguments{"--random-weights", "fairytale", "--tokens", "3"};
  const nlohmann::json report = report_of(arguments);
  EXPECT_EQ(report["sequences"][0]["output_ids"].size(), 3U);
  EXPECT_EQ(report["sequences"][0]["text"], "");
  EXPECT_EQ(report_of(arguments)["sequences"][0]["output_ids"], report["sequences"][0]["output_ids"]);
}

TEST(Step1Program, DemoDrawsTheGrowth) {
  const ProgramResult result =
      run_step(kStep, {"--model", kTinyModel, "--ids", "1,2,3", "--tokens", "24", "--ignore-eos", "--demo"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("█"), std::string::npos);
  EXPECT_NE(result.out.find("Of 348 K/V rows computed, 322"), std::string::npos) << result.out;
}

TEST(Step1Program, WhatIsWrongGetsOneLineAndItsExitCode) {
  expect_refusal({"--model", "/no/such/folder"}, 2, {"/no/such/folder"});
  expect_refusal({"--tokens", "-1"}, 2, {"--tokens", "-1"});
  expect_refusal({"--temperature", "nan"}, 2, {"--temperature", "nan"});
  expect_refusal({"--model", kTinyModel, "--prompt", ""}, 2, {"empty"});
  expect_refusal({"--ids", "5,4096"}, 2, {"4096", "4095"});
  expect_refusal({"--ids", "-1"}, 2, {"-1"});
  expect_refusal({"--ids", "9223372036854775808"}, 2, {"9223372036854775808"});
  expect_refusal({"--frobnicate"}, 2, {"--frobnicate"});
  expect_refusal({"--block-size", "16"}, 2, {"--block-size", "step3_paged", "step4_prefix_cache"});
  expect_refusal({"--prompt", "a", "b"}, 2, {"b"});
  expect_refusal({"--device", "cuda"}, 1, {"cuda"});
}

TEST(Step1Program, APromptAsLongAsTheContextIsRefusedWithBothNumbers) {
  std::string ids = "1";
  for (int n = 1; n < 512; ++n) ids += ",1";
  expect_refusal({"--model", kTinyModel, "--ids", ids}, 2, {"512"});
}

TEST(Step1Program, ATruncatedCheckpointIsRefusedNamingTheFile) {
  const TemporaryFolder folder;
  for (const auto& entry : std::filesystem::directory_iterator(kTinyModel))
    std::filesystem::copy(entry.path(), folder.path());
  std::filesystem::resize_file(folder.path() / "model.safetensors", 300000);
  expect_refusal({"--model", folder.path().string()}, 2, {"model.safetensors"});
}

}  // namespace
}  // namespace kvcache
