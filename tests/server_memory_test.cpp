// How much memory a server makes for requests that nobody has sent yet.
#include <gtest/gtest.h>

#include "step2_flat_cache/make_cache.h"
#include "step3_paged/sizing.h"
#include "tests/reference_model.h"

namespace kvcache {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

class AServersMemory : public testing::Test {
 protected:
  /// A program that serves four sequences at a time, on a machine with so much memory.
  static Program program_with(std::int64_t memory) {
    Program program{};
    program.options.serve = true;
    program.pool = std::make_unique<ThreadPool>(1);
    program.model = reference_model("fairytale", *program.pool);
    program.memory = memory;
    Request whole_context;
    whole_context.prompt_ids = {0};
    whole_context.max_tokens = program.model->config().max_position_embeddings;
    program.requests.assign(4, whole_context);
    return program;
  }
};

TEST_F(AServersMemory, HoldsWholeContextsWhereThereIsRoom) {
  const Program program = program_with(1024 * kMiB);
  const std::int64_t blocks = paged_shape(program).blocks;
  EXPECT_EQ(blocks - blocks / 100, 4 * 1024 / 16) << "and the watermark";
  EXPECT_EQ(make_flat_cache(program).manager->capacity(), 1024);
}

TEST_F(AServersMemory, IsHalfOfTheMachinesAtMost) {
  const Program program = program_with(16 * kMiB);
  EXPECT_EQ(paged_shape(program).blocks, 8 * kMiB / (16 * 8192));
  EXPECT_EQ(make_flat_cache(program).manager->capacity(), 8 * kMiB / 8192 / 4);
}

TEST_F(AServersMemory, IsWhatTheCommandLineSays) {
  Program program = program_with(16 * kMiB);
  program.options.num_blocks = 100;
  program.options.max_seq_len = 300;
  EXPECT_EQ(paged_shape(program).blocks, 100);
  EXPECT_EQ(make_flat_cache(program).manager->capacity(), 300);
}

}  // namespace
}  // namespace kvcache
