// step1_no_cache as a user runs it: the report's numbers, and one helpful line for each mistake.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>

#include "tests/support/checkpoint_builder.h"
#include "tests/support/report_of.h"
#include "tests/support/sanitized.h"

namespace kvcache {
namespace {

const std::string kStep = "step1_no_cache";

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

// The size of a thread's stack is that of `ulimit -s`, for which no address space is left. So a second thread
// would end the program: one that rounds the weights, or makes them.
TEST(Step1Program, HasNoMoreThreadsThanItIsGiven) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs more address space";
  for (const char* weights : {"--dtype f16", "--random-weights tiny"}) {
    const std::string line = std::string(
                                 "ulimit -s 4000000; ulimit -v 3000000; exec \"$0\" --threads 1 --device cpu "
                                 "--ids 5 --tokens 1 ") +
                             weights;
    const ProgramResult result = run_program("/bin/sh", {"-c", line, std::string(BINARY_DIR) + "/" + kStep});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST(Step1Program, CountsEveryRowItComputesAndEveryRowItComputesAgain) {
  const nlohmann::json report =
      report_of({"--model", kTinyModel, "--ids", "5,6,7,8", "--tokens", "5", "--ignore-eos"});
  // Passes of 4, 5, 6, 7 and 8 rows. From the second pass on, all rows but the last are computed again.
  EXPECT_EQ(report["kv_rows"]["computed"], 4 + 5 + 6 + 7 + 8);
  EXPECT_EQ(report["kv_rows"]["recomputed"], 4 + 5 + 6 + 7);
  EXPECT_EQ(report["timing"]["prefill_tokens"], 4);
  EXPECT_EQ(report["timing"]["decode_tokens"], 4);
  // Four of five passes decode: the prefill gives the first token, and the last token is never fed back.
  EXPECT_EQ(report["timing"]["decode_pass_ms"].size(), 4U);
  const double decode_ms = report["timing"]["decode_ms"];
  EXPECT_NEAR(report["timing"]["ms_per_token"].get<double>(), decode_ms / 4, 1e-6 * decode_ms);
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

nlohmann::json tokenizer_of(const std::string& name) {
  return nlohmann::json::parse(read_file(checkpoint_folder(name) / "tokenizer.json"));
}

TEST(Step1Program, ATextThatBringsItsOwnBosIsNotedAndTheTokenizerCanAddNone) {
  const std::string model = checkpoint_folder("llama-gqa");
  const std::vector<std::string> line{"--model", model, "--prompt", "<s>user", "--tokens", "1", "--json"};
  const ProgramResult twice = run_step(kStep, line);
  EXPECT_EQ(twice.exit_code, 0);
  EXPECT_EQ(
      twice.err,
      "note: prompt 1 begins with <s> and the tokenizer adds another one; --no-special-tokens adds none\n");
  EXPECT_EQ(nlohmann::json::parse(twice.out)["sequences"][0]["prompt_ids"],
            (std::vector<int>{1, 1, 335, 559, 353}));
  std::vector<std::string> without = line;
  without.push_back("--no-special-tokens");
  const ProgramResult once = run_step(kStep, without);
  EXPECT_EQ(once.err, "");
  EXPECT_EQ(nlohmann::json::parse(once.out)["sequences"][0]["prompt_ids"],
            (std::vector<int>{1, 335, 559, 353}));
}

TEST(Step1Program, BytesWithoutATokenAreLeftOutAndNoted) {
  nlohmann::json tokenizer = tokenizer_of("qwen3-tied");
  nlohmann::json& vocab = tokenizer["model"]["vocab"];
  vocab.erase("\u0104");  // the byte 04
  vocab.erase("\u0143");  // AD
  const CheckpointCopy model;
  write_file(model / "tokenizer.json", tokenizer.dump());
  const std::vector<std::string> arguments{"--model", model.path(), "--tokens", "1", "--json"};
  const auto run_with = [&](const std::vector<std::string>& prompts) {
    std::vector<std::string> all = arguments;
    for (const std::string& prompt : prompts) all.insert(all.end(), {"--prompt", prompt});
    return run_step(kStep, all);
  };
  const ProgramResult result =
      run_with({"a\x04\x04"
                "b",
                "b"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "note: prompt 1: bytes left out, for which the vocabulary has no token: 2\n");
  EXPECT_EQ(nlohmann::json::parse(result.out)["sequences"][0]["prompt_ids"], (std::vector<int>{64, 65}));
  // A refusal is a single line.
  const ProgramResult nothing =
      run_with({"a\x04"
                "b",
                "\x04"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_EQ(nothing.err,
            "error: prompt 2: the vocabulary has no token for any of the text, bytes left out: 1; give other "
            "text\n");
  EXPECT_EQ(nothing.out, "");
  kvcache::expect_refusal("step4_prefix_cache",
                          {"--model", model.path(), "--prompt", "b", "--system-prompt", "\x04\x04"}, 2,
                          {"the system prompt: the vocabulary has no token", "bytes left out: 2"});
  expect_refusal({"--model", model.path(), "--prompt", ""}, 2, {"prompt 1 is empty"});
}

TEST(Step1Program, ATokenizerThatTakesTooLongEndsWithOneLine) {
  nlohmann::json tokenizer = tokenizer_of("qwen3-tied");
  tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "(?:a|aa)+[bc]"}};
  const CheckpointCopy model;
  write_file(model / "tokenizer.json", tokenizer.dump());
  expect_refusal({"--model", model.path(), "--prompt", std::string(5000, 'a')}, 2,
                 {"prompt 1", "(?:a|aa)+[bc]", "steps for each byte"});
}

TEST(Step1Program, ATextThatNoTokenizerMakesShortEnoughIsRefusedByItsBytes) {
  std::string text;
  while (text.size() < 900'000) text += "the";
  const TemporaryFolder folder;
  write_file(folder / "prompt", text);
  expect_refusal(
      {"--model", kTinyModel, "--prompt-file", folder / "prompt"}, 2,
      {"prompt 1 has 900000 bytes", "the model's context is 512", "are always more than 511 tokens"});
}

TEST(Step1Program, ZeroTokensIsPrefillOnly) {
  const nlohmann::json report =
      report_of({"--model", kTinyModel, "--ids", "1,2,3", "--tokens", "0", "--logits"});
  EXPECT_TRUE(report["sequences"][0]["output_ids"].empty());
  EXPECT_EQ(report["sequences"][0]["finish_reason"], "length");
  EXPECT_EQ(report["sequences"][0]["text"], "");
  EXPECT_EQ(report["sequences"][0]["logits"].size(), 768U);
}

TEST(Step1Program, WhatWasNotMeasuredIsNullAndNotZero) {
  for (const char* tokens : {"0", "1"}) {
    const nlohmann::json timing =
        report_of({"--model", kTinyModel, "--ids", "1,2,3", "--tokens", tokens})["timing"];
    EXPECT_TRUE(timing["ms_per_token"].is_null()) << timing;
    EXPECT_TRUE(timing["decode_tokens_per_s"].is_null()) << timing;
    EXPECT_GT(timing["prefill_tokens_per_s"], 0) << timing;
  }
}

// A prompt may end with an end-of-sequence id, here id 0, because nothing has been generated yet.
TEST(Step1Program, APromptThatEndsWithAnEndOfSequenceIsPrefilledAndContinued) {
  for (const char* step : {"step1_no_cache", "step2_flat_cache", "step3_paged", "step4_prefix_cache"}) {
    const auto sequence = [&](const char* tokens) {
      return kvcache::report_of(step, {"--ids", "5,6,0", "--tokens", tokens})["sequences"][0];
    };
    EXPECT_EQ(sequence("0")["finish_reason"], "length") << step;
    EXPECT_EQ(sequence("0")["output_ids"], nlohmann::json::array()) << step;
    EXPECT_GE(sequence("2")["output_ids"].size(), 1U) << step;
  }
}

TEST(Step1Program, TheSequenceEndsWhereTheContextEnds) {
  const nlohmann::json report =
      report_of({"--model", kTinyModel, "--ids", ids(510), "--tokens", "10", "--ignore-eos"});
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

/// FNV-1a (Fowler, Noll, Vo) over the bits of the numbers.
std::uint64_t hash_of_bits(const nlohmann::json& numbers) {
  std::uint64_t hash = 14695981039346656037U;
  for (const nlohmann::json& number : numbers) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(number.get<double>()));
    for (unsigned shift = 0; shift < 32; shift += 8) hash = (hash ^ (bits >> shift & 0xFFU)) * 1099511628211U;
  }
  return hash;
}

// Attention takes the context in chunks and merges them in order. Chunks of another size give other bits,
// alike in all steps, so no comparison between steps shows it. This prompt is long enough for several chunks.
TEST(Step1Program, TheLogitsOfALongPromptHaveTheBitsThatTheyAlwaysHad) {
  std::string ids = "1";
  for (int n = 1; n < 200; ++n) ids += "," + std::to_string(n * 37 % 1000);
  const nlohmann::json report = report_of({"--ids", ids, "--tokens", "0", "--dtype", "f32", "--logits"});
  EXPECT_EQ(hash_of_bits(report["sequences"][0]["logits"]), 5011635867787854459U);
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

TEST(Step1Program, AFolderWithoutATokenizerTakesIdsAndRefusesTextsSayingSo) {
  const std::string folder = checkpoint_folder("qwen2-untied");
  const nlohmann::json report =
      report_of({"--model", folder, "--ids", "1,2", "--tokens", "3", "--ignore-eos"});
  EXPECT_EQ(report["sequences"][0]["output_ids"].size(), 3U);
  EXPECT_EQ(report["sequences"][0]["text"], "");
  expect_refusal({"--model", folder, "--prompt", "a"}, 2, {"tokenizer.json", "--ids"});
  expect_refusal({"--model", folder}, 2, {"tokenizer.json", "--ids"});
}

TEST(Step1Program, ATextThatIsNotUtf8IsRefusedNamingThePrompt) {
  expect_refusal({"--prompt", "fine", "--prompt=\xFF"}, 2, {"prompt 2", "UTF-8"});
}

TEST(Step1Program, PromptsComeFromFilesAndStdinInTheOrderOfTheLine) {
  const TemporaryFolder folder;
  write_file(folder / "wolf.txt", "The wolf\n");
  const std::vector<std::string> mixed{
      "--prompt-file", folder / "wolf.txt", "--ids", "5,6",   "--prompt-file", "-", "--prompt",
      "Once",          "--tokens",          "3",     "--json"};
  const std::vector<std::string> texts{"--prompt",     "The wolf", "--ids", "5,6",      "--prompt",
                                       "A queen\nand", "--prompt", "Once",  "--tokens", "3"};
  for (const char* step : {"step1_no_cache", "step2_flat_cache", "step3_paged", "step4_prefix_cache"}) {
    const ProgramResult result = run_step(step, mixed, Gpu::hidden, "A queen\nand\r\n");
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const nlohmann::json sequences = nlohmann::json::parse(result.out)["sequences"];
    const nlohmann::json expected = kvcache::report_of(step, texts)["sequences"];
    ASSERT_EQ(sequences.size(), expected.size());
    for (std::size_t n = 0; n < expected.size(); ++n) {
      EXPECT_EQ(sequences[n]["prompt_ids"], expected[n]["prompt_ids"]) << step << " " << n;
      EXPECT_EQ(sequences[n]["output_ids"], expected[n]["output_ids"]) << step << " " << n;
    }
  }
}

TEST(Step1Program, APromptFileThatIsNoTextIsRefusedByName) {
  const TemporaryFolder folder;
  write_file(folder / "bytes", std::string("ab\0c", 4));
  write_file(folder / "latin1", "caf\xe9");
  write_file(folder / "empty", "\n");
  expect_refusal({"--prompt-file", folder / "bytes"}, 2, {"bytes: byte 3 is a NUL"});
  expect_refusal({"--prompt-file", folder / "latin1"}, 2, {"latin1: it is not valid UTF-8 at byte 4"});
  expect_refusal({"--prompt", "caf\xe9"}, 2, {"not valid UTF-8 at byte 4"});
  expect_refusal({"--prompt-file", folder.path()}, 2, {folder.path().string() + ": Is a directory"});
  expect_refusal({"--prompt-file", folder / "none"}, 2, {"none: No such file"});
  expect_refusal({"--prompt", "a", "--prompt-file", folder / "empty"}, 2, {"prompt 2 is empty"});
  expect_refusal({"--prompt-file", "-"}, 2, {"prompt 1 is empty"});
  expect_refusal({"--prompt-file", "/dev/zero"}, 2, {"/dev/zero: byte 1 is a NUL"});
}

TEST(Step1Program, AClosedStdinIsNoEmptyPrompt) {
  const std::string step = std::filesystem::path(BINARY_DIR) / "step1_no_cache";
  for (const auto& [name, reason] :
       {std::pair("-", "- (stdin): Bad file descriptor"),
        std::pair("/dev/stdin", "/dev/stdin: No such device or address"),
        std::pair("/proc/self/fd/0", "/proc/self/fd/0: No such device or address")}) {
    const ProgramResult result =
        run_program("/bin/sh", {"-c", "'" + step + "' --prompt-file " + name + " --tokens 1 <&-"});
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_EQ(result.out, "") << name;
    EXPECT_EQ(result.err, std::string("error: --prompt-file ") + reason + "\n");
  }
}

// The second would be empty, and nothing would say so.
TEST(Step1Program, APipeIsNoPromptTwice) {
  const std::string step = std::string(BINARY_DIR) + "/step1_no_cache";
  for (const char* second : {"/dev/stdin", "/dev/fd/0"}) {
    const ProgramResult result = run_program(
        "/bin/sh", {"-c", "echo hi | \"$0\" --prompt-file - --prompt-file \"$1\" --tokens 1 --device cpu",
                    step, second});
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "error: --prompt-file - and --prompt-file " + std::string(second) +
                              " are one pipe, which can be read only once; give it once\n");
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
  expect_refusal({"--model", kTinyModel, "--ids", ids(512)}, 2, {"512"});
}

TEST(Step1Program, ATruncatedCheckpointIsRefusedNamingTheFile) {
  const CheckpointCopy model;
  std::filesystem::resize_file(model / "model.safetensors", 300000);
  expect_refusal({"--model", model.path()}, 2, {"model.safetensors"});
}

/// The tiny model's tokenizer with a model that says `id` whatever it reads: the first number of every hidden
/// row is large, no layer adds to it, and only that id's row of the head looks at it.
class StubbornModel {
 public:
  explicit StubbornModel(std::int64_t id, const nlohmann::json& changes = {}) {
    nlohmann::json config = {{"vocab_size", 800}, {"max_position_embeddings", 512}};
    if (!changes.is_null()) config.update(changes);
    test::TestCheckpoint checkpoint("LlamaForCausalLM", config);
    auto& embedding = checkpoint.tensors.at("model.embed_tokens.weight").values;
    for (std::size_t at = 0; at < embedding.size(); at += 32) embedding[at] = 1000;
    checkpoint.tensors.at("lm_head.weight").values[static_cast<std::size_t>(id) * 32] = 1000;
    checkpoint.save(folder_.path());
    std::filesystem::copy(kTinyModel + "/tokenizer.json", folder_.path());
  }
  std::string path() const { return folder_.path().string(); }

 private:
  TemporaryFolder folder_;
};

TEST(Step1Program, AnIdThatHasNoTokenDecodesToNothing) {
  const StubbornModel model(790);  // the tokenizer ends at 767
  const nlohmann::json report = report_of({"--model", model.path(), "--prompt", "Once", "--tokens", "3"});
  EXPECT_EQ(report["sequences"][0]["output_ids"], (std::vector<int>{790, 790, 790}));
  EXPECT_EQ(report["sequences"][0]["text"], "");
  EXPECT_EQ(report["sequences"][0]["finish_reason"], "length");
  const ProgramResult text = run_step(kStep, {"--model", model.path(), "--prompt", "Once", "--tokens", "3"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
}

TEST(Step1Program, AnyOfAListOfEndsStopsARunAndNoneDoesWithIgnoreEos) {
  const nlohmann::json free =
      report_of({"--model", kTinyModel, "--ids", "5,6,7", "--tokens", "8", "--ignore-eos"});
  const auto ids = free["sequences"][0]["output_ids"].get<std::vector<int>>();
  ASSERT_EQ(ids.size(), 8U);
  ASSERT_EQ(std::find(ids.begin(), ids.end(), ids[2]) - ids.begin(), 2) << "the third must be new";

  const CheckpointCopy model;
  write_file(model / "generation_config.json", nlohmann::json{{"eos_token_id", {766, ids[2], 0}}}.dump());
  const std::vector<std::string> arguments{"--model", model.path(), "--ids", "5,6,7", "--tokens", "8"};
  const nlohmann::json stopped = report_of(arguments);
  EXPECT_EQ(stopped["sequences"][0]["finish_reason"], "stop");
  EXPECT_EQ(stopped["sequences"][0]["output_ids"], (std::vector<int>(ids.begin(), ids.begin() + 3)));
  std::vector<std::string> ignoring = arguments;
  ignoring.emplace_back("--ignore-eos");
  const nlohmann::json went_on = report_of(ignoring);
  EXPECT_EQ(went_on["sequences"][0]["finish_reason"], "length");
  EXPECT_EQ(went_on["sequences"][0]["output_ids"], ids);
}

TEST(Step1Program, AnEndIsNotPartOfTheTextAndOneThatWasIgnoredIs) {
  const StubbornModel model(65, {{"eos_token_id", {766, 65, 3}}});
  const std::vector<std::string> arguments{"--model", model.path(), "--ids", "5,6", "--tokens", "3"};
  const nlohmann::json stopped = report_of(arguments);
  EXPECT_EQ(stopped["sequences"][0]["output_ids"], (std::vector<int>{65}));
  EXPECT_EQ(stopped["sequences"][0]["text"], "");
  std::vector<std::string> ignoring = arguments;
  ignoring.emplace_back("--ignore-eos");
  const nlohmann::json went_on = report_of(ignoring);
  EXPECT_EQ(went_on["sequences"][0]["output_ids"], (std::vector<int>{65, 65, 65}));
  EXPECT_EQ(went_on["sequences"][0]["text"].get<std::string>().size(), 3U);
}

TEST(Step1Program, PromptAndOutputFillTheContextExactly) {
  const CheckpointCopy model;
  model.change_config({{"max_position_embeddings", 32}});
  const auto outputs = [&](int prompt, int tokens) {
    const nlohmann::json report = report_of(
        {"--model", model.path(), "--ids", ids(prompt), "--tokens", std::to_string(tokens), "--ignore-eos"});
    EXPECT_EQ(report["sequences"][0]["finish_reason"], "length");
    return report["sequences"][0]["output_ids"].size();
  };
  EXPECT_EQ(outputs(20, 11), 11U);
  EXPECT_EQ(outputs(20, 12), 12U);
  EXPECT_EQ(outputs(20, 13), 12U);
  EXPECT_EQ(outputs(31, 0), 0U);
  EXPECT_EQ(outputs(31, 1), 1U);
  EXPECT_EQ(outputs(31, 2), 1U);
  for (const int prompt : {32, 33}) {
    for (const char* tokens : {"0", "1"}) {
      expect_refusal({"--model", model.path(), "--ids", ids(prompt), "--tokens", tokens}, 2,
                     {std::to_string(prompt) + " tokens", "context is 32"});
    }
  }
}

TEST(Step1Program, AnEmptyPromptGeneratesWhereTheTokenizerBeginsIt) {
  const std::string begins = checkpoint_folder("llama-mha");
  const nlohmann::json report =
      report_of({"--model", begins, "--prompt", "", "--tokens", "3", "--ignore-eos"});
  EXPECT_EQ(report["sequences"][0]["prompt_ids"], (std::vector<int>{1}));
  EXPECT_EQ(report["sequences"][0]["output_ids"].size(), 3U);
  const std::string line =
      "error: prompt 1 is empty: it has no token, and none is added to it; give some text\n";
  expect_refusal({"--model", kTinyModel, "--prompt", ""}, 2, {line});
  expect_refusal({"--model", begins, "--no-special-tokens", "--prompt", ""}, 2, {line});
  expect_refusal({"--model", kTinyModel, "--ids", ""}, 2, {"--ids"});
  expect_refusal({"--model", kTinyModel, "--prompt", "Once", "--prompt", ""}, 2, {"prompt 2 is empty"});
  const nlohmann::json spaces = report_of({"--model", kTinyModel, "--prompt", "   ", "--tokens", "1"});
  EXPECT_FALSE(spaces["sequences"][0]["prompt_ids"].empty());
}

TEST(Step1Program, FilesThatCannotBeReadAreNamed) {
  // A folder where a file should be cannot be read by anyone, a file without permission not by most.
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}) {
    const CheckpointCopy model;
    std::filesystem::remove(model / name);
    std::filesystem::create_directory(model / name);
    expect_refusal({"--model", model.path()}, 2, {(model / name).string()});
    if (geteuid() == 0) continue;
    const CheckpointCopy locked;
    std::filesystem::permissions(locked / name, std::filesystem::perms::none);
    expect_refusal({"--model", locked.path()}, 2, {(locked / name).string()});
  }
}

TEST(Step1Program, ALinkThatLeadsNowhereIsNotAnAbsentFile) {
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}) {
    const CheckpointCopy model;
    std::filesystem::remove(model / name);
    std::filesystem::create_symlink("gone", model / name);
    expect_refusal({"--model", model.path(), "--ids", "5"}, 2, {(model / name).string(), "a link to gone"});
  }
}

TEST(Step1Program, AMistralRunsUpToItsWindowAndIsRefusedBeyondByName) {
  const CheckpointCopy model("llama-gqa");
  const std::vector<std::string> arguments{"--model", model.path(), "--ids", ids(20), "--ignore-eos"};
  const auto outputs = [&](const char* tokens) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--tokens", tokens});
    return report_of(all)["sequences"][0]["output_ids"].get<std::vector<int>>();
  };
  const std::vector<int> of_the_llama = outputs("12");
  model.change_config(
      {{"architectures", {"MistralForCausalLM"}}, {"model_type", "mistral"}, {"sliding_window", 32}});
  EXPECT_EQ(outputs("12"), of_the_llama);
  EXPECT_EQ(outputs("13"), of_the_llama);  // the context ends here, as any model's does
  expect_refusal({"--model", model.path(), "--ids", ids(32)}, 2,
                 {"32 tokens", "context is 32", "sliding_window"});
}

TEST(Step1Program, MemoryThatRunsOutInAFileEndsTheRunInOneLine) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs more address space";
  const CheckpointCopy model;
  std::string tokenizer = "[{}";
  for (int value = 0; value < 3'900'000; ++value) tokenizer += ",{}";
  write_file(model / "tokenizer.json", tokenizer + "]");
  const std::string program = (std::filesystem::path(BINARY_DIR) / "step1_no_cache").string();
  const ProgramResult result = run_program(
      "/bin/sh",
      {"-c", "ulimit -v 300000; exec \"$0\" --device cpu --model \"$1\" --threads 1", program, model.path()});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find("error: out of memory"), std::string::npos) << result.err;
}

TEST(Step1Program, APartOfACheckpointIsRefusedNamingWhatIsMissing) {
  expect_refusal({"--model", kTinyModel + "/config.json"}, 2, {"config.json is not a folder"});
  expect_refusal({"--model", kTinyModel + "/model.safetensors"}, 2, {"is not a folder"});
  expect_refusal({"--model", std::string(SOURCE_DIR) + "/tests"}, 2, {"config.json"});
  const CheckpointCopy without_weights;
  std::filesystem::remove(without_weights / "model.safetensors");
  expect_refusal({"--model", without_weights.path()}, 2, {"model.safetensors"});
  const CheckpointCopy without_tokenizer;
  std::filesystem::remove(without_tokenizer / "tokenizer.json");
  expect_refusal({"--model", without_tokenizer.path()}, 2, {"tokenizer.json"});
}

TEST(Step1Program, ABrokenTokenizerIsRefusedNamingTheFile) {
  for (const char* content : {"", "{", "[]", "{}", R"({"model": {"type": "WordPiece", "vocab": {}}})"}) {
    const CheckpointCopy model;
    write_file(model / "tokenizer.json", content);
    expect_refusal({"--model", model.path()}, 2, {"tokenizer.json"});
  }
}

TEST(Step1Program, WhatFloat16CannotHoldIsRefusedOrEndsTheRunWithARemedy) {
  const TemporaryFolder folder;
  test::TestCheckpoint checkpoint("LlamaForCausalLM", {{"vocab_size", 768}});
  std::filesystem::copy(kTinyModel + "/tokenizer.json", folder.path());
  auto& up = checkpoint.tensors.at("model.layers.1.mlp.up_proj.weight").values;
  for (float& weight : up) weight *= 1e5F;
  checkpoint.save(folder.path());
  const std::vector<std::string> arguments{"--model", folder.path().string(), "--ids", ids(9)};
  const auto with = [&](const char* dtype) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--tokens", "2", "--dtype", dtype});
    return all;
  };
  report_of(with("f32"));
  report_of(with("bf16"));
  expect_refusal(with("f16"), 1, {"not a finite number", "--dtype bf16 or f32"});
  up[0] = 1e5F;
  checkpoint.save(folder.path());
  report_of(with("f32"));
  report_of(with("bf16"));
  expect_refusal(with("f16"), 2, {"model.layers.1.mlp.up_proj.weight", "f16"});
}

TEST(Step1Program, MoreThreadsThanProcessorsAreFine) {
  const std::vector<std::string> arguments{"--model", kTinyModel, "--ids", "5,6,7", "--tokens", "3"};
  std::vector<std::string> many = arguments;
  many.insert(many.end(), {"--threads", "200"});
  const nlohmann::json report = report_of(many);
  EXPECT_EQ(report["threads"], 200);
  EXPECT_EQ(report["sequences"][0]["output_ids"], report_of(arguments)["sequences"][0]["output_ids"]);
}

TEST(Step1Program, ThreadsThatTheSystemDoesNotGiveEndTheRunWithARemedy) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs more address space";
  // Every thread takes some address space for its stack, so a limit on that limits threads.
  const std::string program = (std::filesystem::path(BINARY_DIR) / "step1_no_cache").string();
  const ProgramResult result = run_program(
      "/bin/sh", {"-c", "ulimit -v 1000000; exec \"$0\" --model \"$1\" --ids 5 --device cpu --threads 1000",
                  program, kTinyModel});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find("of 1000 threads"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("use a smaller --threads\n"), std::string::npos) << result.err;
}

TEST(Step1Program, FailsWhereItsAddressSpaceCannotHoldTheWeights) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs more address space";
  const CheckpointCopy model;
  std::filesystem::resize_file(model / "model.safetensors",
                               std::uint64_t{8} << 30);  // most of it takes no room
  const std::string program = std::filesystem::path(BINARY_DIR) / "step1_no_cache";
  const ProgramResult result = run_program(
      "/bin/sh", {"-c", "ulimit -v 4000000; exec \"$0\" --ids 1 --model \"$1\"", program, model.path()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "error: " + (model / "model.safetensors").string() +
                            ": no address space for its 8589934592 bytes; raise the limit (ulimit -v)\n");
}

}  // namespace
}  // namespace kvcache
