// The default size of a pool, and the sizes that are refused. Chapter: step3_paged/README.md.
#include "step3_paged/sizing.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/base/error.h"
#include "common/cli/machine.h"
#include "tests/support/reference_model.h"

namespace kvcache {
namespace {

/// A program whose pool must hold `count` requests of one token and a pinned prefix.
class PoolSize : public testing::Test {
 protected:
  PoolSize() {
    program_.step = Step::paged;
    program_.model = reference_model("llama-mha", threads_);
    program_.memory = std::int64_t{1} << 40;
    program_.options.block_size = 1;
  }
  void ask(std::size_t count, std::int64_t prompt_tokens = 1) {
    Request request;
    request.prompt_ids.assign(static_cast<std::size_t>(prompt_tokens), 1);
    request.max_tokens = 1;  // it is never fed back, so it needs no slot
    program_.requests.assign(count, request);
  }
  std::int64_t blocks() const { return paged_shape(program_).blocks; }
  std::int64_t block_bytes() const {
    return program_.options.block_size * program_.model->config().kv_bytes_per_token(4);
  }

  ThreadPool threads_{1};
  Program program_{};
};

TEST_F(PoolSize, OfALoneRequestIsWhatItNeedsWithoutAWatermark) {
  for (const std::int64_t tokens : {1, 99, 100, 101, 500}) {
    ask(1, tokens);
    EXPECT_EQ(blocks(), tokens);
  }
}

TEST_F(PoolSize, OfSeveralRequestsLeavesTheWatermarkFreeAndIsTheSmallestThatDoes) {
  ask(2);
  for (std::int64_t needed = 2; needed <= 20'000; ++needed) {
    program_.pinned_prefix.resize(static_cast<std::size_t>(needed - 2));
    const std::int64_t total = blocks();
    ASSERT_GE(total - total / 100, needed);
    ASSERT_LT((total - 1) - (total - 1) / 100, needed) << total;
  }
}

// 4,096 contexts of 2^31 - 1 tokens, in blocks of one token, are nearly 2^43 blocks.
TEST(BlocksWithTheWatermark, AreTheFewestThatDoHoweverManyAreWanted) {
  const auto above = [](std::int64_t blocks) { return blocks - PagedShape{.blocks = blocks}.watermark(); };
  EXPECT_EQ(blocks_with_watermark(0), 0);
  std::int64_t total = 0;
  for (std::int64_t wanted = 1; wanted <= 100'000; ++wanted) {
    while (above(total) < wanted) ++total;
    ASSERT_EQ(blocks_with_watermark(wanted), total);
  }
  for (std::int64_t wanted = 100'000; wanted <= std::int64_t{1} << 43; wanted += 1 + wanted / 1000) {
    const std::int64_t blocks = blocks_with_watermark(wanted);
    ASSERT_GE(above(blocks), wanted);
    ASSERT_LT(above(blocks - 1), wanted);
  }
}

TEST_F(PoolSize, MayBeAllTheMemoryThereIsAndNoBlockMore) {
  ask(1);
  program_.memory = 10 * block_bytes() + block_bytes() - 1;
  program_.options.num_blocks = 10;
  EXPECT_EQ(blocks(), 10);
  program_.options.num_blocks = 11;
  EXPECT_THROW(blocks(), InputError);
  program_.options.num_blocks.reset();
  program_.options.kv_memory_bytes = program_.memory;
  EXPECT_EQ(blocks(), 10);
  ask(1, 10);
  program_.options.kv_memory_bytes.reset();
  EXPECT_EQ(blocks(), 10);
  ask(1, 11);
  EXPECT_THROW(blocks(), InputError);
}

TEST_F(PoolSize, HasNoMoreBlocksThanIdsCanName) {
  ask(1);
  program_.memory = std::numeric_limits<std::int64_t>::max();  // as where the system tells of none
  program_.options.kv_memory_bytes = (std::int64_t{1} << 31) * block_bytes();
  EXPECT_THROW(blocks(), InputError);
  *program_.options.kv_memory_bytes -= 1;
  EXPECT_EQ(blocks(), std::numeric_limits<std::int32_t>::max());
}

TEST(HostTierSize, MayBeAllTheMemoryThereIsAndNoBlockMore) {
  const PagedShape shape{.blocks = 1, .block_size = 16, .bytes_per_token = 1 << 16};
  const std::int64_t fitting = machine_memory().total / (shape.block_size * shape.bytes_per_token);
  EXPECT_NO_THROW(check_host_tier(fitting, shape));
  EXPECT_THROW(check_host_tier(fitting + 1, shape), InputError);
}

}  // namespace
}  // namespace kvcache
