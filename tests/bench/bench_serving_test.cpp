// The program of ./steps serve-bench: it measures every step that serves, and refuses options that it sets
// itself. No test looks at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_builder.h"
#include "tests/support/report_of.h"

namespace kvcache {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

TEST(BenchServing, MeasuresEveryStepThatServes) {
  const std::string model = checkpoint_folder("llama-gqa").string();  // of 512 positions
  const ProgramResult result = run_step("bench_serving", {"--model", model, "--threads", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("8 streams and a prompt of 511 tokens"))
      << "the context has no room for 1000";
  for (const char* step : {"step2_flat_cache", "step3_paged", "step4_prefix_cache"})
    EXPECT_THAT(result.out, ContainsRegex(std::string(step) + " .* t/s .* t/s .*%"));
  EXPECT_THAT(result.out, ContainsRegex("step2_flat_cache .* 8  ")) << "eight reservations are all there is";
  EXPECT_THAT(result.out, HasSubstr("prefix cache on against off"));
  for (const char* rows : {"256", "128", "64", "32"})
    EXPECT_THAT(result.out, ContainsRegex("\n" + std::string(rows) + " rows .* ms .* ms "));
  EXPECT_THAT(result.out, HasSubstr("left out: 64 and 256 long requests"));
}

TEST(BenchServing, RefusesWhatItSetsItselfAndWhatIsNotItsOwn) {
  for (const char* option :
       {"--num-blocks", "--kv-memory", "--prefix-cache", "--benchmark_filter", "--tokens", "--frob",
        "--prompt", "--serve", "--max-sequences", "--host-blocks", "--salt", "--quick"}) {
    const std::string line = std::string(option) + " has no use here";
    expect_refusal("bench_serving", {std::string(option) + "=1"}, 2, {line, "its options are --model, "});
    expect_refusal("bench_serving", {option, "1"}, 2, {line});
  }
}

TEST(BenchServing, NamesTheOptionWhoseValueIsMissingOrWrong) {
  expect_refusal("bench_serving", {"--device"}, 2, {"--device needs a value"});
  expect_refusal("bench_serving", {"--threads", "-1"}, 2, {"--threads", "-1"});
}

TEST(BenchServing, RefusesABlockThatIsLargerThanItsMemory) {
  for (const char* size : {"4097", "2147483647"})
    expect_refusal("bench_serving", {"--block-size", size}, 2, {"--block-size", size, "give at most 4096"});
}

TEST(BenchServing, SaysWhatItDoesAndTakes) {
  for (const char* option : {"--help", "-h"}) {
    const ProgramResult result = run_step("bench_serving", {option});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, testing::StartsWith("Usage: bench_serving [OPTIONS]"));
    EXPECT_THAT(result.out, testing::Not(HasSubstr("--prompt")));
  }
}

TEST(BenchServing, RefusesAModelWhoseContextIsTooShort) {
  const TemporaryFolder folder;
  test::TestCheckpoint("LlamaForCausalLM", {{"vocab_size", 768}}).save(folder.path());
  std::filesystem::copy(checkpoint_folder("llama-mha") / "tokenizer.json", folder / "tokenizer.json");
  expect_refusal("bench_serving", {"--model", folder.path()}, 2, {"context is 128", "512"});
}

}  // namespace
}  // namespace kvcache
