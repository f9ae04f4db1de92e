// Step 4's storage on the CPU: blocks go to the host tier and come back byte for byte, and copy-on-write
// copies K and V of every layer. V is clearly unlike K throughout, so that one taken for the other shows.
#include <gtest/gtest.h>

#include "common/cpu/cpu_backend.h"
#include "common/engine/run.h"
#include "step1_no_cache/no_cache.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "step4_prefix_cache/tiered_kv_store.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBlockSize = 4;

ModelConfig small_config() {
  ModelConfig config;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  return config;
}

/// A store that follows a manager's plans and gets numbers in place of a model's K and V.
class FilledStore {
 public:
  FilledStore(std::int64_t blocks, std::int64_t host_blocks, DType dtype, DebugFill fill = DebugFill::none)
      : manager({blocks, kBlockSize, 1}, {.host_blocks = host_blocks}),
        store(config_, {blocks, kBlockSize, 1}, host_blocks, dtype, {AttentionPath::paged, fill}, pool_) {}

  PassPlan plan(std::int32_t sequence, const std::vector<std::int32_t>& tokens) {
    const Work work{sequence, tokens};
    return manager.plan({&work, 1}).value();
  }
  /// Writes K and V of a plan that has begun, and commits it.
  void finish(const PassPlan& plan) {
    const std::int64_t columns = config_.kv_heads * config_.head_dim;
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      std::vector<float> numbers =
          random_numbers(static_cast<std::size_t>(plan.tokens() * columns), ++random_seed_);
      Matrix matrix;
      matrix.data = numbers.data();
      matrix.rows = plan.tokens();
      matrix.cols = matrix.stride = columns;
      store.write(layer, matrix, negated_hundredfold(matrix));
    }
    store.end();
    manager.commit(plan);
  }
  PassPlan pass(std::int32_t sequence, const std::vector<std::int32_t>& tokens) {
    PassPlan made = plan(sequence, tokens);
    store.begin(made);
    finish(made);
    return made;
  }
  std::vector<std::uint64_t> checksums(const std::vector<std::int32_t>& blocks) {
    std::vector<std::uint64_t> sums;
    for (const std::int32_t block : blocks) sums.push_back(store.checksum_of_block(block));
    return sums;
  }

  PrefixCachingManager manager;

 private:
  Matrix negated_hundredfold(const Matrix& k) {
    v_.assign(k.row(0), k.row(0) + k.rows * k.stride);
    for (float& number : v_) number *= -100;
    Matrix v = k;
    v.data = v_.data();
    return v;
  }

  ModelConfig config_ = small_config();
  ThreadPool pool_{1};
  std::vector<float> v_;
  std::uint32_t random_seed_ = 0;

 public:
  TieredKvStore store;
};

std::vector<std::int32_t> counted_from(std::int32_t first, std::int32_t count) {
  std::vector<std::int32_t> ids;
  for (std::int32_t n = 0; n < count; ++n) ids.push_back(first + n);
  return ids;
}

TEST(TieredKvStore, BlocksGoToTheHostTierAndComeBackByteForByte) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const DebugFill fill : {DebugFill::none, DebugFill::nan}) {
      FilledStore cache(6, 3, dtype, fill);
      const std::vector<std::int32_t> first = counted_from(0, 12), second = counted_from(100, 24);
      cache.pass(0, first);
      const std::vector<std::uint64_t> before = cache.checksums(cache.manager.block_table(0));
      EXPECT_NE(before[0], before[1]);
      cache.manager.free(0);

      const PassPlan out = cache.pass(1, second);
      ASSERT_EQ(out.swaps_out.size(), 3U);
      for (const BlockCopy& move : out.swaps_out) {
        EXPECT_EQ(cache.store.checksum_of_host_slot(move.to), before[static_cast<std::size_t>(move.from)]);
        EXPECT_NE(cache.store.checksum_of_block(move.from), before[static_cast<std::size_t>(move.from)])
            << "its place in the pool is used for something else";
      }
      cache.manager.free(1);

      std::vector<std::int32_t> longer = first;
      longer.push_back(7);
      const PassPlan in = cache.plan(2, longer);
      ASSERT_EQ(in.swaps_in.size(), 3U);
      EXPECT_EQ(in.tokens(), 1);
      cache.store.begin(in);
      std::vector<std::int32_t> table = cache.manager.block_table(2);
      table.resize(3);
      EXPECT_EQ(cache.checksums(table), before);
      cache.finish(in);
      EXPECT_EQ(cache.checksums(table), before) << "the pass writes elsewhere";
    }
  }
}

TEST(TieredKvStore, ABlockMovesOutBeforeAnotherMovesIntoItsPlace) {
  FilledStore cache(2, 4, DType::f32);
  const std::vector<std::int32_t> p = counted_from(0, 5), q = counted_from(100, 8);
  cache.pass(0, p);
  const std::uint64_t of_p = cache.store.checksum_of_block(cache.manager.block_table(0)[0]);
  cache.manager.free(0);
  cache.pass(1, q);
  const std::vector<std::uint64_t> before = cache.checksums({0, 1});
  cache.manager.free(1);
  const PassPlan exchange = cache.plan(2, p);  // both blocks of q go, the block of p comes
  ASSERT_EQ(exchange.swaps_out.size(), 2U);
  ASSERT_EQ(exchange.swaps_in.size(), 1U);
  cache.store.begin(exchange);
  EXPECT_EQ(cache.store.checksum_of_block(exchange.swaps_in[0].to), of_p);
  for (const BlockCopy& move : exchange.swaps_out)
    EXPECT_EQ(cache.store.checksum_of_host_slot(move.to), before[static_cast<std::size_t>(move.from)]);
  cache.finish(exchange);
}

TEST(TieredKvStore, CopyOnWriteCopiesKAndVOfAllLayersAndLeavesTheOriginal) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    FilledStore cache(6, 0, dtype, DebugFill::nan);
    std::vector<std::int32_t> tokens = counted_from(0, 7);
    cache.pass(0, tokens);
    cache.manager.fork(0, 1);
    const std::int32_t tail = cache.manager.block_table(0)[1];
    const std::uint64_t before = cache.store.checksum_of_block(tail);
    tokens.push_back(9);
    const PassPlan plan = cache.plan(1, tokens);
    ASSERT_EQ(plan.copies.size(), 1U);
    cache.store.begin(plan);
    EXPECT_EQ(cache.store.checksum_of_block(plan.copies[0].to), before);
    cache.finish(plan);
    EXPECT_NE(cache.store.checksum_of_block(plan.copies[0].to), before) << "the fork has written its token";
    EXPECT_EQ(cache.store.checksum_of_block(tail), before) << "and not where the other reads";
  }
}

TEST(TieredKvStore, ForksOfAModelWhoseValuesDwarfItsKeysAnswerLikeSoloRuns) {
  test::TestCheckpoint checkpoint("Qwen3ForCausalLM");
  for (auto& [name, tensor] : checkpoint.tensors) {
    if (name.find("v_proj") == std::string::npos) continue;
    for (float& value : tensor.values) value *= 100;
  }
  const TemporaryFolder folder;
  checkpoint.save(folder.path());
  ThreadPool pool(2);
  const ModelConfig config = read_config(folder.path());
  Transformer model(config, load_weights(folder.path(), config, DType::f32),
                    std::make_unique<CpuBackend>(DType::f32, pool));

  std::vector<Request> requests(3);
  for (std::size_t sample = 0; sample < requests.size(); ++sample) {
    requests[sample].prompt_ids = counted_from(3, 10);
    requests[sample].max_tokens = 20;
    requests[sample].sampling.temperature = 1;
    requests[sample].sampling.seed = 40 + sample;
  }
  NoCacheManager solo_manager;
  NoCacheStore solo_store(model.config(), DType::f32, pool);
  const Report solo = run(model, solo_manager, solo_store, requests);

  requests[0].forks = 2;
  const PagedShape shape{24, kBlockSize, config.kv_bytes_per_token(4)};
  for (const AttentionPath path : {AttentionPath::paged, AttentionPath::gather}) {
    PrefixCachingManager manager(shape);
    TieredKvStore store(model.config(), shape, 0, DType::f32, {path, DebugFill::nan}, pool);
    const Report forked = run(model, manager, store, requests);
    for (std::size_t sample = 0; sample < requests.size(); ++sample)
      EXPECT_EQ(forked.sequences[sample].output_ids, solo.sequences[sample].output_ids) << sample;
    EXPECT_EQ(forked.counters.copies, 2);
  }
  EXPECT_NE(solo.sequences[0].output_ids, solo.sequences[1].output_ids);
}

}  // namespace
}  // namespace kvcache
