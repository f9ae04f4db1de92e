/// @file
/// The command line: the values of each option, the steps that have it, and the exact line for each mistake.

#include "common/cli/options.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "common/base/error.h"
#include "fmt/format.h"
#include "tests/support/files.h"

namespace kvcache {
namespace {

using Words = std::vector<std::string>;
using Ids = std::vector<std::int32_t>;

std::optional<Options> parse_words(Step step, const Words& words) {
  const std::string program = "build/bin/" + name_of(step);
  std::vector<const char*> argv = {program.c_str()};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_options(step, static_cast<int>(argv.size()), argv.data());
}

Options parse(const Words& words, Step step = Step::no_cache) {
  return parse_words(step, words).value();
}

/// The message with which the words are refused.
std::string refusal(const Words& words, Step step = Step::no_cache) {
  try {
    parse_words(step, words);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::string only_prompt(const Words& words) {
  const Options options = parse(words);
  return options.prompts.size() == 1 ? std::get<std::string>(options.prompts[0]) : "not one prompt";
}

Ids only_ids(const Words& words) {
  const Options options = parse(words);
  return options.prompts.size() == 1 ? std::get<Ids>(options.prompts[0]) : Ids{};
}

TEST(Options, HaveTheDocumentedDefaults) {
  const Options options = parse({}, Step::prefix_cache);
  EXPECT_EQ(options.model, "");
  EXPECT_EQ(options.trace, "");
  EXPECT_EQ(options.random_weights, "");
  EXPECT_TRUE(options.prompts.empty());
  EXPECT_EQ(options.tokens, 64);
  EXPECT_FALSE(options.ignore_eos);
  EXPECT_FALSE(options.no_special_tokens);
  EXPECT_EQ(options.sampling.temperature, 0);
  EXPECT_EQ(options.sampling.top_k, 0);
  EXPECT_EQ(options.sampling.top_p, 1);
  EXPECT_EQ(options.sampling.seed, 0U);
  EXPECT_EQ(options.device, DeviceChoice::automatic);
  EXPECT_FALSE(options.dtype.has_value());
  EXPECT_EQ(options.threads, 0);
  EXPECT_FALSE(options.json || options.logits || options.demo);
  EXPECT_FALSE(options.max_seq_len.has_value());
  EXPECT_EQ(options.block_size, 16);
  EXPECT_FALSE(options.num_blocks.has_value());
  EXPECT_FALSE(options.kv_memory_bytes.has_value());
  EXPECT_FALSE(options.kv_memory_auto);
  EXPECT_EQ(options.attention, AttentionPath::paged);
  EXPECT_TRUE(options.prefix_cache);
  EXPECT_EQ(options.salt, "");
  EXPECT_EQ(options.system_prompt, "");
  EXPECT_EQ(options.samples, 1);
  EXPECT_EQ(options.host_blocks, 0);
}

TEST(Options, TakeEveryOptionOfEveryStep) {
  const Options run = parse({"--model", "dir",       "--tokens=5", "--ignore-eos", "--temperature",
                             "0.7",     "--top-k",   "40",         "--top-p",      "0.9",
                             "--seed",  "7",         "--device",   "cpu",          "--dtype",
                             "bf16",    "--threads", "2",          "--json",       "--logits"});
  EXPECT_EQ(run.model, "dir");
  EXPECT_EQ(run.tokens, 5);
  EXPECT_TRUE(run.ignore_eos);
  EXPECT_EQ(run.sampling.temperature, 0.7);
  EXPECT_EQ(run.sampling.top_k, 40);
  EXPECT_EQ(run.sampling.top_p, 0.9);
  EXPECT_EQ(run.sampling.seed, 7U);
  EXPECT_EQ(run.device, DeviceChoice::cpu);
  EXPECT_EQ(run.dtype, DType::bf16);
  EXPECT_EQ(run.threads, 2);
  EXPECT_TRUE(run.json);
  EXPECT_TRUE(run.logits);
  EXPECT_TRUE(parse({"--demo"}).demo);
  EXPECT_EQ(parse({"--random-weights", "fairytale"}).random_weights, "fairytale");

  EXPECT_EQ(parse({"--max-seq-len", "100"}, Step::flat_cache).max_seq_len, 100);
  EXPECT_EQ(parse({"--trace", "file"}, Step::flat_cache).trace, "file");

  const Options paged =
      parse({"--block-size", "8", "--num-blocks", "9", "--attention", "gather"}, Step::paged);
  EXPECT_EQ(paged.block_size, 8);
  EXPECT_EQ(paged.num_blocks, 9);
  EXPECT_EQ(paged.attention, AttentionPath::gather);

  const Options prefix = parse({"--block-size", "8", "--prefix-cache", "off", "--salt", "s",
                                "--system-prompt", "p", "--samples", "3", "--host-blocks", "4"},
                               Step::prefix_cache);
  EXPECT_EQ(prefix.block_size, 8);
  EXPECT_FALSE(prefix.prefix_cache);
  EXPECT_EQ(prefix.salt, "s");
  EXPECT_EQ(prefix.system_prompt, "p");
  EXPECT_EQ(prefix.samples, 3);
  EXPECT_EQ(prefix.host_blocks, 4);
}

TEST(Options, LeaveSpecialTokensOutInEveryStepAndOfAServerToo) {
  for (const Step step : {Step::no_cache, Step::flat_cache, Step::paged, Step::prefix_cache})
    EXPECT_TRUE(parse({"--no-special-tokens", "--prompt", "a"}, step).no_special_tokens);
  EXPECT_TRUE(parse({"--no-special-tokens", "--serve"}, Step::prefix_cache).no_special_tokens);
}

TEST(Options, TakeEveryName) {
  EXPECT_EQ(parse({"--device=cuda"}).device, DeviceChoice::cuda);
  EXPECT_EQ(parse({"--device=auto"}).device, DeviceChoice::automatic);
  EXPECT_EQ(parse({"--dtype=f32"}).dtype, DType::f32);
  EXPECT_EQ(parse({"--dtype=f16"}).dtype, DType::f16);
  EXPECT_EQ(parse({"--attention=paged"}, Step::paged).attention, AttentionPath::paged);
  EXPECT_TRUE(parse({"--prefix-cache=on"}, Step::prefix_cache).prefix_cache);
  EXPECT_EQ(refusal({"--device", "gpu"}), "--device must be one of cpu, cuda, auto, not \"gpu\"");
  EXPECT_EQ(refusal({"--dtype", "F32"}), "--dtype must be one of f32, f16, bf16, not \"F32\"");
  EXPECT_EQ(refusal({"--dtype="}), "--dtype must be one of f32, f16, bf16, not \"\"");
  EXPECT_EQ(refusal({"--attention", "flash"}, Step::paged),
            "--attention must be one of gather, paged, not \"flash\"");
  EXPECT_EQ(refusal({"--prefix-cache", "yes"}, Step::prefix_cache),
            "--prefix-cache must be one of on, off, not \"yes\"");
}

// ---- prompts ----

TEST(Options, KeepPromptsAndIdsInTheOrderOfTheLine) {
  const Options options =
      parse({"--prompt", "a", "--ids", "1,2", "--tokens", "3", "--prompt", "b", "--ids=4"});
  EXPECT_EQ(options.prompts, (std::vector<Prompt>{"a", Ids{1, 2}, "b", Ids{4}}));
}

TEST(Options, KeepPromptFilesAmongTheOtherPrompts) {
  const Options options =
      parse({"--prompt", "a", "--prompt-file", "b.txt", "--ids", "1", "--prompt-file=-", "--prompt", "c"});
  EXPECT_EQ(options.prompts, (std::vector<Prompt>{"a", PromptFile{"b.txt"}, Ids{1}, PromptFile{"-"}, "c"}));
}

TEST(Options, RefuseStdinTwiceAndAFileWithoutAName) {
  EXPECT_EQ(refusal({"--prompt-file", "-", "--prompt", "a", "--prompt-file=-"}),
            "--prompt-file - is given twice; stdin can be read only once, so give it once");
  EXPECT_EQ(refusal({"--prompt-file="}), "--prompt-file must be a text that is not empty, not \"\"");
  EXPECT_EQ(refusal({"--prompt-file"}), "--prompt-file needs a value: --prompt-file FILE");
}

TEST(Options, KeepTheBytesOfAPrompt) {
  for (const std::string text : {"[a, b]", "{}", "a=b", "%%", " a ", "\"quoted\"", "a\nb\t", "\xff\xfe",
                                 "\xC3\xA9", "010", "-1", "-", "- item", "--"}) {
    EXPECT_EQ(only_prompt({"--prompt=" + text}), text);
    if (text != "--") {
      EXPECT_EQ(only_prompt({"--prompt", text}), text);
    }
  }
}

TEST(Options, TakeAPromptThatBeginsWithADashAfterAnEqualsSign) {
  EXPECT_EQ(only_prompt({"--prompt=-x"}), "-x");
  EXPECT_EQ(only_prompt({"--prompt=--json"}), "--json");
  EXPECT_EQ(refusal({"--prompt", "-x"}),
            "--prompt needs a value before \"-x\"; a value that begins with a dash is written --prompt=-...");
}

TEST(Options, TakeAnEmptyPromptAndDoNotEatTheNextOption) {
  const Options options = parse({"--prompt=", "--json"});
  EXPECT_EQ(options.prompts, (std::vector<Prompt>{""}));
  EXPECT_TRUE(options.json);
  EXPECT_EQ(only_prompt({"--prompt", ""}), "");
}

TEST(Options, NeverTakeTheNextOptionForAValue) {
  EXPECT_EQ(
      refusal({"--prompt", "--json"}),
      "--prompt needs a value before \"--json\"; a value that begins with a dash is written --prompt=-...");
  EXPECT_EQ(refusal({"--tokens"}), "--tokens needs a value: --tokens N");
  EXPECT_EQ(refusal({"--prompt"}), "--prompt needs a value: --prompt TEXT");
}

TEST(Options, RefuseWordsThatBelongToNoOption) {
  EXPECT_EQ(refusal({"--serve", "5080"}, Step::paged),
            "unexpected word \"5080\": no option takes it; a port is given as --port N");
  EXPECT_EQ(refusal({"--prompt", "a", "b"}),
            "unexpected word \"b\": a prompt is one value, with quotes around its spaces: --prompt \"...\"");
  EXPECT_EQ(refusal({"hello\nworld"}),
            "unexpected word \"hello\\x0aworld\": a prompt is one value, with quotes around its spaces: "
            "--prompt \"...\"");
  EXPECT_EQ(refusal({""}),
            "unexpected word \"\": a prompt is one value, with quotes around its spaces: --prompt \"...\"");
  EXPECT_EQ(refusal({"--ids", "1", "-2"}),
            "unexpected word \"-2\": ids are one value, with commas between them: --ids 1,2,3");
  EXPECT_EQ(refusal({"--json", "true"}), "unexpected word \"true\": --json takes no value");
  EXPECT_EQ(refusal({"--prompt", "a", "--ignore-eos", "false"}),
            "unexpected word \"false\": --ignore-eos takes no value");
  EXPECT_EQ(refusal({"--ids=1", "--tokens", "5", "6"}), "unexpected word \"6\": no option takes it");
  EXPECT_EQ(
      refusal({"--tokens", "5", "hello"}),
      "unexpected word \"hello\": a prompt is one value, with quotes around its spaces: --prompt \"...\"");
}

TEST(Options, NameThePortOnlyForANumberThatMayBeMeantAsOne) {
  EXPECT_EQ(refusal({"--serve", "--port", "0", "5080"}, Step::prefix_cache),
            "unexpected word \"5080\": no option takes it");
  EXPECT_EQ(refusal({"5080", "--serve", "--port=0"}, Step::prefix_cache),
            "unexpected word \"5080\": no option takes it");
  EXPECT_EQ(refusal({"--serve", "hello world"}, Step::flat_cache),
            "unexpected word \"hello world\": no option takes it");
}

TEST(Options, CutLongValuesInMessagesBetweenCharacters) {
  EXPECT_EQ(refusal({std::string(59, 'x') + "\xC3\xA9"}),  // é would be the 60th and 61st byte
            "unexpected word \"" + std::string(59, 'x') +
                "...\": a prompt is one value, with quotes around its spaces: --prompt \"...\"");
}

TEST(Options, TakeTokenIdsExactly) {
  EXPECT_EQ(only_ids({"--ids", "1,2,3"}), (Ids{1, 2, 3}));
  EXPECT_EQ(only_ids({"--ids=0"}), (Ids{0}));
  EXPECT_EQ(only_ids({"--ids=2147483647"}), (Ids{2147483647}));
}

TEST(Options, RefuseWhatIsNotTokenIds) {
  const auto expected = [](int number, const std::string& item) {
    return "--ids must be token ids separated by commas, as in 1,2,3, each a whole number from 0 to "
           "2147483647 in plain "
           "digits; number " +
           std::to_string(number) + " is \"" + item + "\"";
  };
  EXPECT_EQ(refusal({"--ids", ""}), expected(1, ""));
  EXPECT_EQ(refusal({"--ids="}), expected(1, ""));
  EXPECT_EQ(refusal({"--ids=010"}), expected(1, "010"));
  EXPECT_EQ(refusal({"--ids", "1,,2"}), expected(2, ""));
  EXPECT_EQ(refusal({"--ids", "1,2,"}), expected(3, ""));
  EXPECT_EQ(refusal({"--ids", ",1"}), expected(1, ""));
  EXPECT_EQ(refusal({"--ids", "1, 2"}), expected(2, " 2"));
  EXPECT_EQ(refusal({"--ids", "1 2"}), expected(1, "1 2"));
  EXPECT_EQ(refusal({"--ids", "-1"}), expected(1, "-1"));
  EXPECT_EQ(refusal({"--ids", "1,+2"}), expected(2, "+2"));
  EXPECT_EQ(refusal({"--ids", "0x10"}), expected(1, "0x10"));
  EXPECT_EQ(refusal({"--ids", "2147483648"}), expected(1, "2147483648"));
  EXPECT_EQ(refusal({"--ids", "9223372036854775808"}), expected(1, "9223372036854775808"));
  EXPECT_EQ(refusal({"--ids", "[1,2]"}), expected(1, "[1"));
}

// ---- numbers ----

TEST(Options, TakeWholeNumbersInPlainDigitsOnly) {
  EXPECT_EQ(parse({"--tokens", "0"}).tokens, 0);
  EXPECT_EQ(parse({"--tokens", "2147483647"}).tokens, 2147483647);
  for (const std::string value : {"", "+5", "-1", "-0", " 5", "5 ", "05", "010", "0x10", "1e3", "1.5", "5,",
                                  "five", "2147483648", "9223372036854775808", "99999999999999999999"}) {
    EXPECT_EQ(refusal({"--tokens=" + value}),
              "--tokens must be a whole number from 0 to 2147483647 in plain digits, not \"" + value + "\"");
  }
}

TEST(Options, NameTheLimitsOfACount) {
  const auto expected = [](const std::string& option, const std::string& limits, const std::string& value) {
    return option + " must be a whole number from " + limits + " in plain digits, not \"" + value + "\"";
  };
  EXPECT_EQ(refusal({"--threads", "0"}), expected("--threads", "1 to 1024", "0"));
  EXPECT_EQ(refusal({"--threads", "1025"}), expected("--threads", "1 to 1024", "1025"));
  EXPECT_EQ(refusal({"--max-seq-len", "0"}, Step::flat_cache),
            expected("--max-seq-len", "1 to 2147483647", "0"));
  EXPECT_EQ(refusal({"--block-size", "0"}, Step::paged), expected("--block-size", "1 to 2147483647", "0"));
  EXPECT_EQ(refusal({"--num-blocks", "0"}, Step::paged), expected("--num-blocks", "1 to 2147483647", "0"));
  EXPECT_EQ(refusal({"--samples", "0"}, Step::prefix_cache), expected("--samples", "1 to 4096", "0"));
  EXPECT_EQ(refusal({"--host-blocks", "-1"}, Step::prefix_cache),
            expected("--host-blocks", "0 to 2147483647", "-1"));
}

TEST(Options, TakeTemperaturesThatAreFiniteAndNotNegative) {
  EXPECT_EQ(parse({"--temperature", "1e-3"}).sampling.temperature, 1e-3);
  EXPECT_EQ(parse({"--temperature", "1e30"}).sampling.temperature, 1e30);
  EXPECT_EQ(parse({"--temperature", "0"}).sampling.temperature, 0);
  EXPECT_EQ(parse({"--temperature", "1e-400"}).sampling.temperature, 0);  // as the server reads it
  EXPECT_EQ(parse({"--temperature", "5e-324"}).sampling.temperature, 5e-324);
  EXPECT_EQ(refusal({"--temperature=-1e-3"}), "--temperature must be a finite number >= 0, not \"-1e-3\"");
  for (const std::string value : {"nan", "inf", "-1", "1e400", "abc", "", "+1", " 1", "1 ", "0x1p3", "1,5"}) {
    EXPECT_EQ(refusal({"--temperature=" + value}),
              "--temperature must be a finite number >= 0, not \"" + value + "\"");
  }
  EXPECT_EQ(refusal({"--temperature", "-1"}), "--temperature must be a finite number >= 0, not \"-1\"");
}

TEST(Options, TakeTopKFromZero) {
  EXPECT_EQ(parse({"--top-k", "1000000000"}).sampling.top_k, 1'000'000'000);
  EXPECT_EQ(refusal({"--top-k", "-1"}),
            "--top-k must be a whole number from 0 to 2147483647 in plain digits; 0 is off, not \"-1\"");
}

TEST(Options, TakeTopPFromZeroToOne) {
  EXPECT_EQ(parse({"--top-p", "0"}).sampling.top_p, 0);
  EXPECT_EQ(parse({"--top-p", "1"}).sampling.top_p, 1);
  EXPECT_EQ(parse({"--top-p", "1e-400"}).sampling.top_p, 0);
  for (const std::string value : {"1.0001", "1e400", "-0.1", "nan", "90%"}) {
    EXPECT_EQ(refusal({"--top-p", value}),
              "--top-p must be a number from 0 to 1; 1 is off, not \"" + value + "\"");
  }
}

TEST(Options, TakeSeedsOfSixtyFourBits) {
  EXPECT_EQ(parse({"--seed", "18446744073709551615"}).sampling.seed,
            std::numeric_limits<std::uint64_t>::max());
  for (const std::string value : {"18446744073709551616", "-1", "1e3"}) {
    EXPECT_EQ(refusal({"--seed", value}),
              "--seed must be a whole number from 0 to 18446744073709551615 in plain digits, not \"" + value +
                  "\"");
  }
}

TEST(Options, TakeMemorySizesInDecimalAndBinaryUnits) {
  const auto bytes = [](const std::string& size) {
    return parse({"--kv-memory", size}, Step::paged).kv_memory_bytes;
  };
  EXPECT_EQ(bytes("1048576"), 1048576);
  EXPECT_EQ(bytes("7B"), 7);
  EXPECT_EQ(bytes("2KB"), 2000);
  EXPECT_EQ(bytes("2KiB"), 2048);
  EXPECT_EQ(bytes("3MB"), 3'000'000);
  EXPECT_EQ(bytes("512MiB"), 512LL << 20);
  EXPECT_EQ(bytes("4GB"), 4'000'000'000);
  EXPECT_EQ(bytes("2GiB"), 2LL << 30);
  EXPECT_EQ(bytes("8589934591GiB"), 8589934591LL << 30);
  for (const std::string value : {"", "0", "0MiB", "1.5GB", "512mib", "512 MiB", "512M", "MiB", "-1", "010",
                                  "1TB", "8589934592GiB", "9223372036854775808"}) {
    EXPECT_EQ(refusal({"--kv-memory=" + value}, Step::paged),
              "--kv-memory must be auto or a whole number of bytes above 0 and below 2^63, such as 512MiB or "
              "1000000 "
              "(units B, KB, "
              "MB, GB, KiB, "
              "MiB, GiB), not \"" +
                  value + "\"");
  }
}

TEST(Options, TakeAutomaticMemory) {
  const Options options = parse({"--kv-memory", "auto"}, Step::paged);
  EXPECT_TRUE(options.kv_memory_auto);
  EXPECT_FALSE(options.kv_memory_bytes.has_value());
}

TEST(Options, RefuseEmptyTextsWhereTheyWouldMeanNothing) {
  EXPECT_EQ(refusal({"--model", ""}), "--model must be a text that is not empty, not \"\"");
  EXPECT_EQ(refusal({"--random-weights="}), "--random-weights must be a text that is not empty, not \"\"");
  EXPECT_EQ(refusal({"--salt", ""}, Step::prefix_cache), "--salt must be a text that is not empty, not \"\"");
  EXPECT_EQ(refusal({"--system-prompt="}, Step::prefix_cache),
            "--system-prompt must be a text that is not empty, not \"\"");
}

// ---- names ----

TEST(Options, NameTheStepsThatHaveAnOption) {
  EXPECT_EQ(refusal({"--block-size", "16"}),
            "--block-size belongs to step3_paged and step4_prefix_cache, not to step1_no_cache");
  EXPECT_EQ(refusal({"--attention"}, Step::flat_cache),
            "--attention belongs to step3_paged and step4_prefix_cache, not to step2_flat_cache");
  EXPECT_EQ(refusal({"--max-seq-len=5"}, Step::paged),
            "--max-seq-len belongs to step2_flat_cache, not to step3_paged");
  EXPECT_EQ(refusal({"--samples", "2"}, Step::paged),
            "--samples belongs to step4_prefix_cache, not to step3_paged");
}

TEST(Options, SuggestTheNearestNameForAnUnknownOne) {
  EXPECT_EQ(refusal({"--tokns", "5"}), "unknown option \"--tokns\"; did you mean --tokens?");
  EXPECT_EQ(refusal({"-tokens", "5"}), "unknown option \"-tokens\"; did you mean --tokens?");
  EXPECT_EQ(refusal({"--top_p=0.5"}), "unknown option \"--top_p\"; did you mean --top-p?");
  EXPECT_EQ(refusal({"--frobnicate"}),
            "unknown option \"--frobnicate\"; --help lists the options of step1_no_cache");
  EXPECT_EQ(refusal({"-n", "5"}), "unknown option \"-n\"; --help lists the options of step1_no_cache");
  EXPECT_EQ(refusal({"--"}), "unknown option \"--\"; --help lists the options of step1_no_cache");
  EXPECT_EQ(refusal({"--blocksize=8"}, Step::paged),
            "unknown option \"--blocksize\"; did you mean --block-size?");
}

TEST(Options, TakeTwoExchangedLettersForOneTypingError) {
  EXPECT_EQ(refusal({"--serve", "--prot", "5080"}, Step::prefix_cache),
            "unknown option \"--prot\"; did you mean --port?");
  EXPECT_EQ(refusal({"--versio"}), "unknown option \"--versio\"; did you mean --version?");
  EXPECT_EQ(refusal({"--tpo-k=5"}), "unknown option \"--tpo-k\"; did you mean --top-k?");
  EXPECT_EQ(refusal({"--tkoesn", "5"}), "unknown option \"--tkoesn\"; did you mean --tokens?");
}

TEST(Options, SuggestWithServeOnlyWhatItTakes) {
  EXPECT_EQ(refusal({"--temprature", "1", "--serve"}, Step::flat_cache),
            "unknown option \"--temprature\"; --help lists the options of step2_flat_cache");
  EXPECT_EQ(refusal({"--temprature", "1"}, Step::flat_cache),
            "unknown option \"--temprature\"; did you mean --temperature?");
  for (const char* refused : {"--prompt-fil", "--id", "--token", "--ignore-eo", "--temperatur", "--top-",
                              "--sample", "--jsno", "--logit", "--trac", "--dem"}) {
    const std::string message = refusal({"--serve", refused}, Step::prefix_cache);
    EXPECT_EQ(message.find("did you mean --" + std::string(refused).substr(2, 2)), std::string::npos)
        << message;
  }
  // Of two equally near ones that which the line takes.
  EXPECT_EQ(refusal({"--max", "9"}, Step::flat_cache),
            "unknown option \"--max\"; did you mean --max-seq-len?");
  EXPECT_EQ(refusal({"--hos", "9"}, Step::prefix_cache),
            "unknown option \"--hos\"; did you mean --host-blocks?");
  EXPECT_EQ(refusal({"--hos", "::1", "--serve"}, Step::prefix_cache),
            "unknown option \"--hos\"; did you mean --host?");
}

TEST(Options, SuggestOnlyWhatTheStepHas) {
  EXPECT_EQ(refusal({"--blocksize=8"}),
            "unknown option \"--blocksize\"; --help lists the options of step1_no_cache");
}

TEST(Options, RefuseAbbreviations) {
  EXPECT_EQ(refusal({"--tok", "5"}), "unknown option \"--tok\"; did you mean --tokens?");
  EXPECT_EQ(refusal({"--ignore"}), "unknown option \"--ignore\"; did you mean --ignore-eos?");
}

TEST(Options, RefuseAnOptionGivenTwice) {
  EXPECT_EQ(refusal({"--tokens", "1", "--tokens=1"}), "--tokens is given twice; give it once");
  EXPECT_EQ(refusal({"--json", "--json"}), "--json is given twice; give it once");
}

TEST(Options, RefuseAValueForAFlag) {
  EXPECT_EQ(refusal({"--json=yes"}), "--json takes no value, and \"yes\" is given; write --json alone");
  EXPECT_EQ(refusal({"--json="}), "--json takes no value, and \"\" is given; write --json alone");
  for (const Step step : {Step::no_cache, Step::flat_cache, Step::paged, Step::prefix_cache}) {
    for (const std::string flag : {"--version", "--help", "-h"})
      EXPECT_EQ(refusal({flag + "=x"}, step),
                fmt::format("{0} takes no value, and \"x\" is given; write {0} alone", flag));
  }
}

TEST(Options, RefuseContradictions) {
  EXPECT_EQ(refusal({"--model", "d", "--random-weights", "fairytale"}),
            "--model and --random-weights exclude each other; give one of them");
  EXPECT_EQ(refusal({"--prompt", "a", "--random-weights", "fairytale"}),
            "--prompt needs a tokenizer, which --random-weights does not have; give token ids with --ids");
  EXPECT_EQ(
      refusal({"--prompt-file", "a", "--random-weights", "fairytale"}),
      "--prompt-file needs a tokenizer, which --random-weights does not have; give token ids with --ids");
  EXPECT_EQ(refusal({"--system-prompt", "a", "--random-weights", "fairytale"}, Step::prefix_cache),
            "--system-prompt needs a tokenizer, which --random-weights does not have; leave it out");
  EXPECT_EQ(
      refusal({"--num-blocks", "4", "--kv-memory", "1MiB"}, Step::paged),
      "--num-blocks and --kv-memory exclude each other: both set the size of the pool; give one of them");
  EXPECT_EQ(
      refusal({"--kv-memory", "auto", "--num-blocks", "4"}, Step::paged),
      "--num-blocks and --kv-memory exclude each other: both set the size of the pool; give one of them");
  EXPECT_EQ(refusal({"--demo", "--json"}),
            "--demo and --json exclude each other: both write on stdout; give one of them");
  EXPECT_EQ(refusal({"--logits"}), "--logits needs --json");
  EXPECT_EQ(refusal({"--ids", "1", "--random-weights", "fairytale"}), "accepted");
  EXPECT_EQ(refusal({"--no-special-tokens", "--random-weights", "fairytale"}),
            "--no-special-tokens needs a tokenizer, which --random-weights does not have; leave it out");
}

TEST(Options, AShapeThatIsUnknownIsNamedBeforeWhatRandomWeightsLack) {
  for (const Words& others :
       {Words{"--prompt", "hi"}, Words{"--prompt-file", "a"}, Words{"--no-special-tokens"},
        Words{"--system-prompt", "p"}, Words{"--ids", "1"}}) {
    Words line{"--random-weights", "qwen3-0.6"};
    line.insert(line.end(), others.begin(), others.end());
    const std::string message = refusal(line, Step::prefix_cache);
    EXPECT_TRUE(message.starts_with("no model shape is called \"qwen3-0.6\"; known are ")) << message;
    EXPECT_NE(message.find("qwen3-0.6b"), std::string::npos) << message;
  }
}

TEST(Options, ServeWhereTheyAreTold) {
  const Options defaults = parse({"--serve"}, Step::flat_cache);
  EXPECT_TRUE(defaults.serve);
  EXPECT_EQ(defaults.host, "127.0.0.1");
  EXPECT_EQ(defaults.port, 5000);
  EXPECT_EQ(defaults.max_sequences, 16);
  EXPECT_EQ(defaults.max_batch_tokens, std::nullopt) << "fitting the device";
  EXPECT_EQ(defaults.max_waiting, 1024);
  EXPECT_EQ(defaults.log_trace, "");
  const Options given =
      parse({"--serve", "--host", "0.0.0.0", "--port", "0", "--max-sequences", "64", "--max-batch-tokens",
             "512", "--max-waiting", "0", "--log-trace", "file", "--num-blocks", "9"},
            Step::paged);
  EXPECT_EQ(given.host, "0.0.0.0");
  EXPECT_EQ(given.port, 0);
  EXPECT_EQ(given.max_sequences, 64);
  EXPECT_EQ(given.max_batch_tokens, 512);
  EXPECT_EQ(given.max_waiting, 0);
  EXPECT_EQ(given.log_trace, "file");
  EXPECT_EQ(refusal({"--serve", "--port", "65536"}, Step::paged),
            "--port must be a whole number from 0 to 65535 in plain digits, not \"65536\"");
  EXPECT_EQ(refusal({"--serve", "--max-waiting", "-1"}, Step::paged),
            "--max-waiting must be a whole number from 0 to 65536 in plain digits, not \"-1\"");
  EXPECT_EQ(refusal({"--serve", "--log-trace="}, Step::paged),
            "--log-trace must be a text that is not empty, not \"\"");
  EXPECT_EQ(refusal({"--serve", "--log-trace", "-"}, Step::paged),
            "--log-trace - names no file, and stdout is for the server's address; give a file: --log-trace "
            "traffic.jsonl");
  EXPECT_EQ(refusal({"--serve", "--max-sequences", "300"}, Step::paged), "accepted");
  EXPECT_EQ(
      refusal({"--serve", "--max-sequences", "300", "--max-batch-tokens", "256"}, Step::paged),
      "--max-batch-tokens 256 is less than --max-sequences 300: each sequence needs a row; raise the first "
      "or lower the second");
}

TEST(Options, OfOneRunAreNotThoseOfAServer) {
  EXPECT_EQ(
      refusal({"--serve"}, Step::no_cache),
      "--serve belongs to step2_flat_cache and step3_paged and step4_prefix_cache, not to step1_no_cache");
  EXPECT_EQ(refusal({"--serve", "--prompt", "x"}, Step::paged),
            "--prompt and --serve exclude each other: a server's requests bring their own settings; leave "
            "--prompt out");
  for (const Words& words : {Words{"--ids", "1"}, Words{"--prompt-file", "-"}, Words{"--tokens", "4"},
                             Words{"--ignore-eos"}, Words{"--temperature", "1"}, Words{"--top-k", "1"},
                             Words{"--top-p", "1"}, Words{"--seed", "1"}, Words{"--samples", "2"},
                             Words{"--json"}, Words{"--logits"}, Words{"--trace", "file"}, Words{"--demo"}}) {
    Words line = words;
    line.emplace_back("--serve");
    EXPECT_TRUE(refusal(line, Step::prefix_cache).starts_with(words[0] + " and --serve exclude each other"));
  }
  for (const char* option :
       {"--host", "--port", "--max-sequences", "--max-batch-tokens", "--max-waiting", "--log-trace"})
    EXPECT_EQ(refusal({option, "1"}, Step::prefix_cache), std::string(option) + " needs --serve");
}

// ---- help, version, the shipped model ----

std::string printed(Step step, const Words& words) {
  testing::internal::CaptureStdout();
  EXPECT_FALSE(parse_words(step, words).has_value());
  return testing::internal::GetCapturedStdout();
}

TEST(Options, HelpListsTheOptionsOfTheStepOnly) {
  const std::string step1 = printed(Step::no_cache, {"--help"});
  EXPECT_NE(step1.find("step1_no_cache"), std::string::npos);
  EXPECT_NE(step1.find("--tokens N"), std::string::npos);
  EXPECT_NE(step1.find("(default: 64)"), std::string::npos);
  EXPECT_NE(step1.find("Exit codes: 0"), std::string::npos);
  EXPECT_NE(step1.find("generation_config.json only eos_token_id counts"), std::string::npos);
  EXPECT_EQ(step1.find("--block-size"), std::string::npos);
  EXPECT_EQ(step1.find("--max-seq-len"), std::string::npos);
  EXPECT_NE(printed(Step::flat_cache, {"-h"}).find("--max-seq-len N"), std::string::npos);
  EXPECT_NE(printed(Step::paged, {"--tokens", "5", "--help"}).find("--block-size N"), std::string::npos);
  EXPECT_NE(printed(Step::prefix_cache, {"--help"}).find("--salt TEXT"), std::string::npos);
}

TEST(Options, HelpSaysWhatIsComputedWithoutAPrompt) {
  const std::string help = printed(Step::no_cache, {"--help"});
  EXPECT_NE(help.find("(default: \"Once upon a time\")"), std::string::npos);
  EXPECT_NE(help.find("16 made-up ids"), std::string::npos);
}

TEST(Options, HelpFitsTheTerminal) {
  for (const Step step : {Step::no_cache, Step::flat_cache, Step::paged, Step::prefix_cache}) {
    std::istringstream help(printed(step, {"--help"}));
    for (std::string line; std::getline(help, line);) EXPECT_LT(line.size(), 100U) << line;
  }
}

TEST(Options, HelpIsAValueAfterAnEqualsSign) {
  EXPECT_EQ(only_prompt({"--prompt=--help"}), "--help");
}

TEST(Options, VersionNamesTheProgram) {
  EXPECT_EQ(printed(Step::paged, {"--version"}).substr(0, 12), "step3_paged ");
}

TEST(Options, NamesTheSteps) {
  EXPECT_EQ(name_of(Step::no_cache), "step1_no_cache");
  EXPECT_EQ(name_of(Step::flat_cache), "step2_flat_cache");
  EXPECT_EQ(name_of(Step::paged), "step3_paged");
  EXPECT_EQ(name_of(Step::prefix_cache), "step4_prefix_cache");
}

TEST(ShippedModel, IsTheFirstFolderWithAConfiguration) {
  const TemporaryFolder root;
  for (const char* const name : {"empty", "second", "third"}) std::filesystem::create_directory(root / name);
  for (const char* const name : {"second", "third"}) write_file(root / name / "config.json", "{}");
  const std::vector<std::filesystem::path> places = {root / "missing", root / "empty", root / "second",
                                                     root / "third"};
  EXPECT_EQ(first_model_folder(places), root / "second");
}

TEST(ShippedModel, NamesThePlacesIfItIsNotThere) {
  const std::vector<std::filesystem::path> places = {"/nowhere/a", "/nowhere/b"};
  try {
    first_model_folder(places);
    FAIL() << "found a model";
  } catch (const InputError& error) {
    EXPECT_STREQ(
        error.what(),
        "the shipped model is not in /nowhere/a, nor in /nowhere/b; give a checkpoint folder with --model");
  }
}

TEST(ShippedModel, IsFoundInTheSourceTreeWhereNothingTellsWhereTheProgramIs) {
  EXPECT_EQ(shipped_model_folder("/nowhere/exe"), std::filesystem::path(SOURCE_DIR) / "common/fairytale");
}

TEST(ShippedModel, SaysWhyAPlaceCannotBeRead) {
  const std::filesystem::path place = "/tmp/" + std::string(300, 'x');
  try {
    first_model_folder({&place, 1});
    FAIL() << "found a model";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("(File name too long)"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kvcache
