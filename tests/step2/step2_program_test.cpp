// step2_flat_cache as a user runs it: the ids of step 1, the cost of a reservation, and how a sequence ends
// that has outgrown its reservation.
#include <gtest/gtest.h>

#include <cstdint>

#include "fmt/format.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/files.h"
#include "tests/support/report_of.h"

namespace kvcache {
namespace {

const std::string kStep = "step2_flat_cache";
/// Of the tiny model in float32: 4 layers x (K, V) x 2 KV heads x 32 x 4 bytes.
constexpr int kBytesPerToken = 4 * 2 * 2 * 32 * 4;

nlohmann::json report_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--model", kTinyModel, "--ignore-eos"});
  return kvcache::report_of(kStep, arguments);
}

void expect_refusal(std::vector<std::string> arguments, int code, const std::vector<std::string>& parts) {
  arguments.insert(arguments.begin(), {"--model", kTinyModel});
  kvcache::expect_refusal(kStep, arguments, code, parts);
}

TEST(Step2Program, ReportsWhatIsReservedAndWhatOfItIsUsed) {
  const nlohmann::json report =
      report_of({"--ids", ids(3), "--ids", ids(5), "--tokens", "4", "--max-seq-len", "20"});
  EXPECT_EQ(report["step"], kStep);
  const nlohmann::json& memory = report["kv_memory"];
  EXPECT_EQ(memory["bytes_per_token"], kBytesPerToken);
  EXPECT_EQ(memory["reserved_bytes"], 2 * 20 * kBytesPerToken);
  EXPECT_EQ(memory["pool_bytes"], 2 * 20 * kBytesPerToken);
  EXPECT_EQ(memory["used_bytes"], (6 + 8) * kBytesPerToken) << "the last id of a sequence is never fed back";
  EXPECT_DOUBLE_EQ(memory["waste_percent"], 100.0 * (40 - 14) / 40);
  EXPECT_EQ(report["kv_rows"]["computed"], 6 + 8);
  EXPECT_EQ(report["kv_rows"]["recomputed"], 0);
  EXPECT_EQ(report["timing"]["prefill_tokens"], 3 + 5);
  EXPECT_EQ(report["timing"]["decode_tokens"], 3 + 3);
  for (const auto& [name, count] : report["blocks"].items()) EXPECT_EQ(count, 0) << name;
  for (const auto& [name, count] : report["counters"].items()) EXPECT_EQ(count, 0) << name;
  for (const nlohmann::json& sequence : report["sequences"]) {
    EXPECT_TRUE(sequence["block_table"].empty());
    EXPECT_EQ(sequence["cached_tokens"], 0);
    EXPECT_EQ(sequence["finish_reason"], "length");
  }
}

TEST(Step2Program, WithoutALengthEveryPromptReservesTheWholeContext) {
  const nlohmann::json report = report_of({"--ids", ids(3), "--ids", "1", "--ids", "2", "--tokens", "2"});
  EXPECT_EQ(report["kv_memory"]["reserved_bytes"], 3 * 512 * kBytesPerToken);
  EXPECT_EQ(report["kv_memory"]["used_bytes"], (4 + 2 + 2) * kBytesPerToken);
}

TEST(Step2Program, AShorterTypeTakesLessMemory) {
  const nlohmann::json report =
      report_of({"--ids", ids(3), "--tokens", "1", "--max-seq-len", "8", "--dtype", "bf16"});
  EXPECT_EQ(report["kv_memory"]["reserved_bytes"], 8 * kBytesPerToken / 2);
}

TEST(Step2Program, LogitsAndIdsAreThoseOfStepOne) {
  const std::vector<std::string> arguments{"--model", kTinyModel, "--ignore-eos", "--ids",
                                           ids(70),   "--prompt", "The wolf",     "--ids",
                                           "5",       "--tokens", "12",           "--logits"};
  const nlohmann::json plain = kvcache::report_of("step1_no_cache", arguments);
  for (const char* threads : {"1", "2", "3"}) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--threads", threads});
    const nlohmann::json cached = kvcache::report_of(kStep, all);
    ASSERT_EQ(cached["sequences"].size(), 3U);
    for (std::size_t s = 0; s < 3; ++s) {
      for (const char* field : {"prompt_ids", "output_ids", "text", "logits", "finish_reason"})
        EXPECT_EQ(cached["sequences"][s][field], plain["sequences"][s][field]) << field << " of " << s;
    }
  }
}

TEST(Step2Program, SequencesOfOneBatchHaveTheIdsOfTheirSoloRunsInTheOrderOfTheLine) {
  const std::vector<std::string> prompts{ids(9), "3", ids(40), ids(2)};
  std::vector<std::string> together{"--tokens", "10"};
  for (const std::string& prompt : prompts) together.insert(together.end(), {"--ids", prompt});
  const nlohmann::json batch = report_of(together);
  ASSERT_EQ(batch["sequences"].size(), prompts.size());
  for (std::size_t s = 0; s < prompts.size(); ++s) {
    const nlohmann::json alone = report_of({"--tokens", "10", "--ids", prompts[s]});
    EXPECT_EQ(batch["sequences"][s]["prompt_ids"], alone["sequences"][0]["prompt_ids"]);
    EXPECT_EQ(batch["sequences"][s]["output_ids"], alone["sequences"][0]["output_ids"]);
  }
}

TEST(Step2Program, AReservationOfExactlyTheTokensThatAreFedBackIsEnough) {
  const nlohmann::json unbounded = report_of({"--ids", ids(5), "--tokens", "9"});
  for (int reserved = 5; reserved <= 15; ++reserved) {
    const nlohmann::json report =
        report_of({"--ids", ids(5), "--tokens", "9", "--max-seq-len", std::to_string(reserved)});
    const nlohmann::json& sequence = report["sequences"][0];
    const bool enough = reserved >= 5 + 9 - 1;
    const auto outputs = static_cast<std::size_t>(enough ? 9 : reserved - 5 + 1);
    EXPECT_EQ(sequence["finish_reason"], enough ? "length" : "capacity") << reserved;
    ASSERT_EQ(sequence["output_ids"].size(), outputs) << reserved;
    for (std::size_t n = 0; n < outputs; ++n)
      EXPECT_EQ(sequence["output_ids"][n], unbounded["sequences"][0]["output_ids"][n]);
    EXPECT_EQ(report["kv_memory"]["used_bytes"], std::min(reserved, 13) * kBytesPerToken);
  }
}

TEST(Step2Program, OneSequenceThatEndsForLackOfRoomDoesNotEndItsNeighbours) {
  const nlohmann::json report =
      report_of({"--ids", ids(9), "--ids", ids(2), "--tokens", "6", "--max-seq-len", "10"});
  EXPECT_EQ(report["sequences"][0]["finish_reason"], "capacity");
  EXPECT_EQ(report["sequences"][0]["output_ids"].size(), 2U);
  EXPECT_EQ(report["counters"]["preemptions"], 0) << "there is nobody to make room";
  EXPECT_EQ(report["sequences"][1]["finish_reason"], "length");
  EXPECT_EQ(report["sequences"][1]["output_ids"],
            report_of({"--ids", ids(2), "--tokens", "6"})["sequences"][0]["output_ids"]);
}

TEST(Step2Program, TheSequenceEndsWhereTheContextEndsWhateverIsReserved) {
  for (const char* reserved : {"511", "512", "600"}) {
    const nlohmann::json report = report_of({"--ids", ids(509), "--tokens", "10", "--max-seq-len", reserved});
    EXPECT_EQ(report["sequences"][0]["output_ids"].size(), 3U);
    EXPECT_EQ(report["sequences"][0]["finish_reason"], "length") << reserved;
  }
}

TEST(Step2Program, ZeroTokensIsPrefillOnly) {
  const nlohmann::json report =
      report_of({"--ids", ids(6), "--tokens", "0", "--max-seq-len", "6", "--logits"});
  EXPECT_TRUE(report["sequences"][0]["output_ids"].empty());
  EXPECT_EQ(report["sequences"][0]["finish_reason"], "length");
  EXPECT_EQ(report["sequences"][0]["logits"].size(), 768U);
  EXPECT_EQ(report["kv_memory"]["used_bytes"], 6 * kBytesPerToken);
}

TEST(Step2Program, EqualSeedsGiveEqualIdsWhateverElseIsInTheBatch) {
  const std::vector<std::string> sampled{"--tokens", "12", "--temperature", "1", "--seed", "42"};
  const auto ids_of = [&](std::vector<std::string> more, std::size_t which) {
    more.insert(more.end(), sampled.begin(), sampled.end());
    return report_of(more)["sequences"][which]["output_ids"];
  };
  EXPECT_EQ(ids_of({"--ids", "9,9", "--ids", "3,4,5", "--ids", "1"}, 1), ids_of({"--ids", "3,4,5"}, 0));
}

TEST(Step2Program, APromptThatItsReservationCannotHoldIsRefusedWithTheNumbers) {
  expect_refusal({"--ids", ids(7), "--max-seq-len", "6"}, 2,
                 {"prompt 1", "7 tokens", "at most 6", "--max-seq-len"});
  expect_refusal({"--ids", "1", "--ids", ids(9), "--max-seq-len", "8"}, 2,
                 {"prompt 2", "9 tokens", "at most 8"});
  expect_refusal({"--ids", ids(512)}, 2, {"512"});
  expect_refusal({"--ids", ids(600), "--max-seq-len", "1000"}, 2, {"600", "512"});
}

TEST(Step2Program, WhatIsWrongGetsOneLineAndItsExitCode) {
  for (const char* wrong : {"0", "-1", "abc", "08", "2147483648", "1e3", ""}) {
    expect_refusal({std::string("--max-seq-len=") + wrong}, 2, {"--max-seq-len"});
  }
  expect_refusal({"--block-size", "4"}, 2, {"--block-size", "step3_paged"});
  expect_refusal({"--num-blocks", "4"}, 2, {"--num-blocks", "step3_paged"});
}

TEST(Step2Program, AReservationBeyondAnyAddressSpaceIsAFailureAtRunTime) {
  std::vector<std::string> arguments{"--max-seq-len", "2147483647"};
  for (int n = 0; n < 100; ++n) arguments.insert(arguments.end(), {"--ids", "1"});
  const auto whole = [](std::int64_t reservations) {  // of K and of V
    return fmt::format("no address space for {} bytes of keys and values; reserve less",
                       reservations * 2147483647 * kBytesPerToken);
  };
  expect_refusal(arguments, 1, {whole(100)});
  expect_refusal({"--serve", "--port", "0", "--max-sequences", "4096", "--max-seq-len", "2147483647"}, 1,
                 {whole(4096)});
}

TEST(Step2Program, ReservationsOfMoreBytesThan64BitsCountAreAFailureAtRunTime) {
  const test::TestCheckpoint checkpoint("LlamaForCausalLM", {{"vocab_size", 8},
                                                             {"hidden_size", 2},
                                                             {"intermediate_size", 2},
                                                             {"num_hidden_layers", 17},
                                                             {"num_attention_heads", 32},
                                                             {"num_key_value_heads", 32},
                                                             {"head_dim", 256}});
  const TemporaryFolder folder;
  checkpoint.save(folder.path());
  std::vector<std::string> arguments{"--model",    folder.path(), "--max-seq-len",
                                     "2147483647", "--tokens",    "1"};
  for (int sequence = 0; sequence < 4096; ++sequence) arguments.insert(arguments.end(), {"--ids", "3"});
  kvcache::expect_refusal("step2_flat_cache", arguments, 1,
                          {"no address space for 4096 reservations of 2147483647 positions; reserve less"});
}

TEST(Step2Program, WhenTheWholeContextDoesNotFitInMemoryItReservesWhatIsNeededAndSaysSo) {
  const CheckpointCopy model;
  model.change_config({{"max_position_embeddings", 1'000'000'000}});
  const std::vector<std::string> arguments{
      "--model", model.path(), "--ignore-eos", "--json", "--ids", "1,2,3", "--ids", "4", "--tokens", "4"};
  const ProgramResult result = run_step(kStep, arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("1000000000"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("reserving the 7 needed"), std::string::npos) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
  const nlohmann::json report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report["kv_memory"]["reserved_bytes"], 2 * 7 * kBytesPerToken);
  EXPECT_EQ(report["sequences"][0]["output_ids"].size(), 4U);
}

TEST(Step2Program, OneReservationThatDoesNotFitIsNamedInTheSingular) {
  const CheckpointCopy model;
  model.change_config({{"max_position_embeddings", 1'000'000'000}});
  const ProgramResult result = run_step(kStep, {"--model", model.path(), "--ids", "1,2,3", "--tokens", "4"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.find("note: a reservation of 1000000000 positions, "), 0U) << result.err;
  EXPECT_NE(result.err.find(" bytes, is more than this machine has; reserving the 7 needed\n"),
            std::string::npos)
      << result.err;
}

TEST(Step2Program, ARefusalComesWithoutTheNotes) {
  const CheckpointCopy vast;  // its reservations are noted
  vast.change_config({{"max_position_embeddings", 1'000'000'000}});
  const std::vector<std::string> bad_trace{"--trace", "/no/such/folder/trace"};
  kvcache::expect_refusal(kStep, {"--model", vast.path(), "--ids", "1", "--trace", bad_trace[1]}, 2,
                          {bad_trace[1]});
  // The tokenizer adds the token with which the prompt begins; that is noted.
  const auto expect_refused = [](const std::string& step, const std::vector<std::string>& more,
                                 const std::string& part) {
    std::vector<std::string> all{"--model", checkpoint_folder("llama-gqa"), "--prompt", "<s>user"};
    all.insert(all.end(), more.begin(), more.end());
    kvcache::expect_refusal(step, all, 2, {part});
  };
  for (const char* step : {"step2_flat_cache", "step3_paged", "step4_prefix_cache"})
    expect_refused(step, bad_trace, bad_trace[1]);
  expect_refused("step2_flat_cache", {"--max-seq-len", "2"}, "--max-seq-len");
  expect_refused("step3_paged", {"--num-blocks", "1", "--block-size", "1"}, "--num-blocks");
  expect_refused("step3_paged", {"--kv-memory", "auto"}, "--kv-memory auto");
  expect_refused("step4_prefix_cache", {"--host-blocks", "2147483647"}, "a host tier");
}

TEST(Step2Program, DemoDrawsTheReservations) {
  const ProgramResult result =
      run_step(kStep, {"--model", kTinyModel, "--ids", "1,2,3", "--tokens", "8", "--ignore-eos", "--demo"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("10 of 512"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace kvcache
