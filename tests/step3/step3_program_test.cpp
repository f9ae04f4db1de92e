// step3_paged as a user runs it: the ids of step 1 from pools of every size down to the smallest possible,
// the cost of a pool, and which sequences wait, are preempted, or are refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "tests/support/report_of.h"
#include "tests/support/sanitized.h"

namespace kvcache {
namespace {

const std::string kStep = "step3_paged";
/// Of the tiny model in float32: 4 layers x (K, V) x 2 KV heads x 32 x 4 bytes.
constexpr int kBytesPerToken = 4 * 2 * 2 * 32 * 4;

nlohmann::json report_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--model", kTinyModel, "--ignore-eos"});
  nlohmann::json report = kvcache::report_of(kStep, arguments);
  // True of every report of this step.
  const nlohmann::json& blocks = report["blocks"];
  EXPECT_EQ(blocks["free"], blocks["total"]);
  EXPECT_EQ(blocks["cached"], 0);
  EXPECT_EQ(blocks["in_use"], 0);
  EXPECT_EQ(report["kv_memory"]["pool_bytes"],
            blocks["total"].get<std::int64_t>() * blocks["block_size"].get<std::int64_t>() *
                report["kv_memory"]["bytes_per_token"].get<std::int64_t>());
  EXPECT_LE(report["kv_memory"]["used_bytes"], report["kv_memory"]["reserved_bytes"]);
  EXPECT_LE(report["kv_memory"]["reserved_bytes"], report["kv_memory"]["pool_bytes"]);
  return report;
}

void expect_refusal(std::vector<std::string> arguments, int code, const std::vector<std::string>& parts) {
  arguments.insert(arguments.begin(), {"--model", kTinyModel});
  kvcache::expect_refusal(kStep, arguments, code, parts);
}

/// The output ids of step 1, one sequence after the other.
std::vector<std::vector<int>> plain_ids(const std::vector<int>& lengths, int tokens) {
  std::vector<std::string> arguments{"--model", kTinyModel, "--ignore-eos", "--tokens",
                                     std::to_string(tokens)};
  for (const int length : lengths) arguments.insert(arguments.end(), {"--ids", ids(length)});
  const nlohmann::json report = kvcache::report_of("step1_no_cache", arguments);
  std::vector<std::vector<int>> all;
  for (const nlohmann::json& sequence : report["sequences"])
    all.push_back(sequence["output_ids"].get<std::vector<int>>());
  return all;
}

TEST(Step3Program, TheDefaultPoolLetsAllRequestsDecodeTogetherTheWatermarkIncluded) {
  std::string first = "1", second = "2";
  for (int n = 1; n < 150; ++n) {
    first += "," + std::to_string(n);
    second += "," + std::to_string(n + 300);
  }
  const nlohmann::json report =
      kvcache::report_of(kStep, {"--model", kTinyModel, "--ids", first, "--ids", second, "--tokens", "2",
                                 "--ignore-eos", "--block-size", "1"});
  EXPECT_EQ(report["timing"]["decode_pass_ms"].size(), 1U) << "both in one pass";
}

TEST(Step3Program, ReportsTheBlocksThatAreReservedAndWhatOfThemIsUsed) {
  const nlohmann::json report = report_of({"--ids", ids(5), "--tokens", "6", "--block-size", "4"});
  EXPECT_EQ(report["step"], kStep);
  const nlohmann::json& memory = report["kv_memory"];
  EXPECT_EQ(memory["bytes_per_token"], kBytesPerToken);
  EXPECT_EQ(memory["reserved_bytes"], 3 * 4 * kBytesPerToken);
  EXPECT_EQ(memory["used_bytes"], 10 * kBytesPerToken) << "the last id is never fed back";
  EXPECT_DOUBLE_EQ(memory["waste_percent"], 100.0 * 2 / 12);
  EXPECT_EQ(memory["pool_bytes"], 3 * 4 * kBytesPerToken);
  EXPECT_EQ(report["blocks"]["block_size"], 4);
  EXPECT_EQ(report["blocks"]["total"], 3);
  EXPECT_EQ(report["sequences"][0]["block_table"], (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(report["sequences"][0]["cached_tokens"], 0);
  EXPECT_EQ(report["kv_rows"]["computed"], 10);
  EXPECT_EQ(report["kv_rows"]["recomputed"], 0);
  EXPECT_EQ(report["timing"]["prefill_tokens"], 5);
  EXPECT_EQ(report["timing"]["decode_tokens"], 5);
  for (const auto& [name, count] : report["counters"].items()) EXPECT_EQ(count, 0) << name;
}

TEST(Step3Program, CountsTheBytesThatAreGathered) {
  const nlohmann::json report =
      report_of({"--ids", ids(5), "--ids", ids(7), "--tokens", "3", "--attention", "gather"});
  // Every pass gathers the context of its sequences: after the prefills two decode passes of both.
  EXPECT_EQ(report["counters"]["gathered_bytes"], (5 + 7 + (6 + 8) + (7 + 9)) * kBytesPerToken);
}

TEST(Step3Program, MemoryIsThatOfTheMomentOfTheGreatestReservation) {
  // In the end 10 and 6 tokens are stored: three blocks and two.
  const nlohmann::json report = report_of(
      {"--ids", ids(7), "--ids", ids(3), "--tokens", "4", "--block-size", "4", "--num-blocks", "10"});
  EXPECT_EQ(report["kv_memory"]["reserved_bytes"], (3 + 2) * 4 * kBytesPerToken);
  EXPECT_EQ(report["kv_memory"]["used_bytes"], (10 + 6) * kBytesPerToken);
  EXPECT_EQ(report["kv_memory"]["pool_bytes"], 40 * kBytesPerToken);
  EXPECT_EQ(report["blocks"]["total"], 10);
  EXPECT_EQ(report["sequences"][0]["block_table"], (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(report["sequences"][1]["block_table"], (std::vector<int>{2, 4}));
}

TEST(Step3Program, OfTwoMomentsWithTheSameReservationTheFullerOneIsReported) {
  for (const auto& [first, second] : {std::pair(8, 5), std::pair(5, 8)}) {
    const nlohmann::json report = report_of({"--ids", ids(first), "--ids", ids(second), "--tokens", "1",
                                             "--block-size", "4", "--num-blocks", "2"});
    EXPECT_EQ(report["kv_memory"]["reserved_bytes"], 2 * 4 * kBytesPerToken);
    EXPECT_EQ(report["kv_memory"]["used_bytes"], 8 * kBytesPerToken);
    EXPECT_EQ(report["kv_memory"]["waste_percent"], 0);
  }
}

TEST(Step3Program, WithoutASizeThePoolIsJustWhatTheRequestsNeedTogether) {
  EXPECT_EQ(report_of({"--ids", ids(16), "--tokens", "1"})["blocks"]["total"], 1);
  EXPECT_EQ(report_of({"--ids", ids(16), "--tokens", "2"})["blocks"]["total"], 2);
  EXPECT_EQ(report_of({"--ids", ids(17), "--ids", "1", "--tokens", "0"})["blocks"]["total"], 3);
  const nlohmann::json cut = report_of({"--ids", ids(500), "--tokens", "1000000"});
  EXPECT_EQ(cut["blocks"]["total"], 32) << "the context ends at 512";
  EXPECT_EQ(cut["sequences"][0]["output_ids"].size(), 12U);
  EXPECT_EQ(cut["sequences"][0]["finish_reason"], "length");
}

TEST(Step3Program, APoolOfExactlyTheBlocksNeededIsEnoughAndOneFewerEndsCleanly) {
  constexpr int kBlockSize = 4;
  const std::vector<std::vector<int>> right = plain_ids({1, 2, 3, 4, 5, 6, 7, 8, 9}, 9);
  for (int prompt = 1; prompt <= 9; ++prompt) {
    for (int tokens = 1; tokens <= 9; ++tokens) {
      SCOPED_TRACE(std::to_string(prompt) + " + " + std::to_string(tokens));
      const int needed = (prompt + tokens - 1 + kBlockSize - 1) / kBlockSize;
      for (const int blocks : {needed, needed - 1}) {
        const std::vector<std::string> arguments{
            "--ids",        ids(prompt), "--tokens",     std::to_string(tokens),
            "--block-size", "4",         "--num-blocks", std::to_string(blocks)};
        if (blocks == 0) {
          expect_refusal(arguments, 2, {"--num-blocks"});
        } else if (prompt > blocks * kBlockSize) {
          expect_refusal(
              arguments, 2,
              {std::to_string(prompt) + " tokens", "at most " + std::to_string(blocks * kBlockSize)});
        } else {
          const nlohmann::json sequence = report_of(arguments)["sequences"][0];
          const bool enough = blocks == needed;
          const int outputs = enough ? tokens : blocks * kBlockSize - prompt + 1;
          const std::vector<int>& all = right[static_cast<std::size_t>(prompt - 1)];
          EXPECT_EQ(sequence["finish_reason"], enough ? "length" : "capacity");
          EXPECT_EQ(sequence["output_ids"], std::vector<int>(all.begin(), all.begin() + outputs));
          EXPECT_EQ(sequence["block_table"].size(), static_cast<std::size_t>(blocks));
        }
        if (HasFailure()) return;
      }
    }
  }
}

// Pitfall 13: an assertion, an endless loop of preempting and retrying, or empty batches for ever.
TEST(Step3Program, APromptThatFillsThePoolRunsAndOneThatExceedsItIsRefusedAtOnce) {
  const std::vector<std::string> pool{"--num-blocks", "8"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), pool.begin(), pool.end());
    return arguments;
  };
  expect_refusal(with({"--ids", ids(129)}), 2, {"prompt 1", "129 tokens", "at most 128", "--num-blocks"});
  expect_refusal(with({"--ids", "1", "--ids", ids(129)}), 2, {"prompt 2", "129 tokens", "at most 128"});

  const nlohmann::json full = report_of(with({"--ids", ids(128), "--tokens", "1"}));
  EXPECT_EQ(full["sequences"][0]["output_ids"].size(), 1U);
  EXPECT_EQ(full["sequences"][0]["finish_reason"], "length");

  const std::vector<std::vector<int>> right = plain_ids({120, 3}, 9);
  const nlohmann::json outgrown = report_of(with({"--ids", ids(120), "--ids", ids(3), "--tokens", "200"}));
  EXPECT_EQ(outgrown["sequences"][0]["finish_reason"], "capacity");
  EXPECT_EQ(outgrown["sequences"][0]["output_ids"], right[0]);
  EXPECT_EQ(outgrown["sequences"][1]["finish_reason"], "capacity");
  EXPECT_EQ(outgrown["sequences"][1]["output_ids"].size(), 128U - 3 + 1);
}

TEST(Step3Program, LogitsIdsAndTextAreThoseOfStepOneForEveryBlockSizeAndWayToAttend) {
  const std::vector<std::string> arguments{"--model", kTinyModel, "--ignore-eos", "--ids",
                                           ids(70),   "--prompt", "The wolf",     "--ids",
                                           "5",       "--tokens", "12",           "--logits"};
  const nlohmann::json plain = kvcache::report_of("step1_no_cache", arguments);
  for (const char* block_size : {"1", "2", "3", "7", "16", "17", "64", "4096"}) {
    for (const char* attention : {"gather", "paged"}) {
      for (const char* fill : {"none", "nan", "huge"}) {
        std::vector<std::string> all = arguments;
        all.insert(all.end(), {"--block-size", block_size, "--attention", attention, "--debug-fill", fill});
        const nlohmann::json paged = kvcache::report_of(kStep, all);
        for (std::size_t s = 0; s < 3; ++s) {
          for (const char* field : {"prompt_ids", "output_ids", "text", "logits", "finish_reason"}) {
            EXPECT_EQ(paged["sequences"][s][field], plain["sequences"][s][field])
                << field << " of " << s << ", " << block_size << ", " << attention << ", " << fill;
          }
        }
      }
    }
  }
}

TEST(Step3Program, SequencesThatDoNotFitTogetherArePreemptedAndGiveTheIdsOfTheirSoloRuns) {
  const std::vector<int> lengths{9, 3, 17, 5, 12};
  const std::vector<std::vector<int>> right = plain_ids(lengths, 14);
  std::vector<std::string> arguments{"--tokens", "14", "--block-size", "4"};
  for (const int length : lengths) arguments.insert(arguments.end(), {"--ids", ids(length)});
  // The longest needs 8 blocks, all together 30.
  for (int blocks = 8; blocks <= 30; ++blocks) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--num-blocks", std::to_string(blocks)});
    const nlohmann::json report = report_of(all);
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      EXPECT_EQ(report["sequences"][s]["output_ids"], right[s]) << blocks << " blocks, sequence " << s;
      EXPECT_EQ(report["sequences"][s]["finish_reason"], "length");
    }
    const auto preemptions = report["counters"]["preemptions"].get<int>();
    EXPECT_EQ(preemptions > 0, report["kv_rows"]["recomputed"] > 0) << blocks << " blocks";
    if (blocks <= 12) {
      EXPECT_GT(preemptions, 0) << blocks << " blocks";
    } else if (blocks == 30) {
      EXPECT_EQ(preemptions, 0);
    }
    // Each id counts once, however often its sequence was computed.
    EXPECT_EQ(report["timing"]["prefill_tokens"], 9 + 3 + 17 + 5 + 12);
    EXPECT_EQ(report["timing"]["decode_tokens"], 5 * 13);
    EXPECT_EQ(report["kv_rows"]["computed"].get<int>() - report["kv_rows"]["recomputed"].get<int>(),
              46 + 5 * 13);
  }
}

TEST(Step3Program, ForcedPreemptionAtAnyLengthChangesNoId) {
  const std::vector<int> lengths{4, 6, 7};
  const std::vector<std::vector<int>> right = plain_ids(lengths, 10);
  for (int every = 1; every <= 9; ++every) {
    for (const char* extra : {"--debug-fill=nan", "--attention=gather", "--temperature=0"}) {
      std::vector<std::string> arguments{
          "--tokens", "10", "--block-size", "4", "--debug-preempt", std::to_string(every), extra};
      for (const int length : lengths) arguments.insert(arguments.end(), {"--ids", ids(length)});
      const nlohmann::json report = report_of(arguments);
      EXPECT_GT(report["counters"]["preemptions"], 0);
      EXPECT_GT(report["kv_rows"]["recomputed"], 0);
      for (std::size_t s = 0; s < lengths.size(); ++s)
        EXPECT_EQ(report["sequences"][s]["output_ids"], right[s]) << "every " << every;
    }
  }
}

TEST(Step3Program, SampledIdsSurvivePreemptionAndNeighbours) {
  const std::vector<std::string> sampled{"--ids",         "3,4,5", "--tokens", "12",
                                         "--temperature", "1",     "--seed",   "42"};
  const nlohmann::json alone = report_of(sampled)["sequences"][0]["output_ids"];
  std::vector<std::string> crowded{"--ids", "9,9", "--debug-preempt", "2", "--block-size", "4"};
  crowded.insert(crowded.end(), sampled.begin(), sampled.end());
  EXPECT_EQ(report_of(crowded)["sequences"][1]["output_ids"], alone);
}

TEST(Step3Program, ThePoolCanBeGivenAsBytes) {
  constexpr int kBlockBytes = 4 * kBytesPerToken;  // 8192
  const auto blocks = [](const std::string& memory) {
    return report_of(
        {"--ids", ids(3), "--tokens", "2", "--block-size", "4", "--kv-memory", memory})["blocks"]["total"];
  };
  EXPECT_EQ(blocks(std::to_string(3 * kBlockBytes)), 3);
  EXPECT_EQ(blocks(std::to_string(3 * kBlockBytes - 1)), 2);
  EXPECT_EQ(blocks(std::to_string(kBlockBytes)), 1);
  EXPECT_EQ(blocks("32KiB"), 4);
  EXPECT_EQ(blocks("33KB"), 4);
  EXPECT_EQ(blocks("1MiB"), 128);
  EXPECT_EQ(blocks("1MB"), 122);
}

TEST(Step3Program, APoolBeyondTheAddressSpaceIsToldWithAllOfItsBytes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs more address space";
  const ProgramResult result = run_program(
      "/bin/sh", {"-c",
                  "ulimit -v 1500000; exec \"$0\" --model \"$1\" --ids 5 --device cpu --threads 1 "
                  "--kv-memory 2GiB",
                  std::string(BINARY_DIR) + "/" + kStep, kTinyModel});
  EXPECT_EQ(result.exit_code, 1);  // a half would fit
  EXPECT_EQ(result.err, "error: no address space for 2147483648 bytes of keys and values; reserve less\n");
}

TEST(Step3Program, APoolThatCannotBeIsRefusedInOneLineWithTheNumbers) {
  expect_refusal({"--block-size", "4", "--kv-memory", "8191"}, 2,
                 {"--kv-memory 8191", "a block takes 8192 bytes with --block-size 4",
                  "give at least that, or a smaller --block-size"});
  expect_refusal({"--kv-memory", "auto"}, 2, {"--kv-memory auto", "--device cuda"});
  expect_refusal({"--kv-memory", "900TiB"}, 2, {"memory"});
  expect_refusal({"--kv-memory", "9223372036854775807GiB"}, 2, {"--kv-memory"});
  for (const char* wrong : {"0", "-5", "1.5MiB", "12XB", "MiB", "12 MiB", ""})
    expect_refusal({std::string("--kv-memory=") + wrong}, 2, {"--kv-memory"});
  for (const char* wrong : {"0", "-1", "x", "2147483648", ""}) {
    expect_refusal({std::string("--num-blocks=") + wrong}, 2, {"--num-blocks"});
    expect_refusal({std::string("--block-size=") + wrong}, 2, {"--block-size"});
  }
  expect_refusal({"--num-blocks", "2147483647"}, 2, {"2147483647", "memory"});
  expect_refusal({"--block-size", "2147483647"}, 2, {"2147483647", "memory", "ask for at most "});
  expect_refusal({"--num-blocks", "4", "--kv-memory", "1MiB"}, 2, {"--num-blocks", "--kv-memory"});
  expect_refusal({"--attention", "flash"}, 2, {"--attention", "gather", "paged"});
  expect_refusal({"--debug-fill", "7"}, 2, {"--debug-fill", "nan", "huge"});
  expect_refusal({"--max-seq-len", "7"}, 2, {"--max-seq-len", "step2_flat_cache"});
  expect_refusal({"--prefix-cache", "on"}, 2, {"--prefix-cache", "step4_prefix_cache"});
}

TEST(Step3Program, APromptBeyondTheContextIsRefusedBeforeAnyBlockIsTaken) {
  expect_refusal({"--ids", ids(512), "--num-blocks", "100"}, 2, {"512"});
  expect_refusal({"--ids", ids(700), "--num-blocks", "100"}, 2, {"700", "512"});
}

TEST(Step3Program, ABlockLargerThanTheContextHoldsASequenceAlone) {
  const nlohmann::json report =
      report_of({"--ids", ids(5), "--ids", ids(9), "--tokens", "4", "--block-size", "1000"});
  EXPECT_EQ(report["blocks"]["total"], 2);
  EXPECT_EQ(report["kv_memory"]["reserved_bytes"], 2 * 1000 * kBytesPerToken);
  EXPECT_EQ(report["kv_memory"]["used_bytes"], (8 + 12) * kBytesPerToken);
}

TEST(Step3Program, ZeroTokensIsPrefillOnlyAndNeedsThePromptsBlocksAlone) {
  const nlohmann::json report =
      report_of({"--ids", ids(8), "--tokens", "0", "--block-size", "4", "--num-blocks", "2", "--logits"});
  EXPECT_TRUE(report["sequences"][0]["output_ids"].empty());
  EXPECT_EQ(report["sequences"][0]["finish_reason"], "length");
  EXPECT_EQ(report["sequences"][0]["logits"].size(), 768U);
}

TEST(Step3Program, DemoDrawsTheBlockTables) {
  const ProgramResult result =
      run_step(kStep, {"--model", kTinyModel, "--ids", "1,2,3", "--tokens", "8", "--ignore-eos", "--demo"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("slot = block * 4 + offset"), std::string::npos) << result.out;
}

TEST(Step3Program, DemoShowsSpecialTokens) {
  const ProgramResult result = run_step(kStep, {"--ids", "0,5,0", "--tokens", "1", "--demo"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("block 0   '<|endoftext|>' "), std::string::npos) << result.out;
}

}  // namespace
}  // namespace kvcache
