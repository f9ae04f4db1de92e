// Step 4's storage on the CPU: blocks go to the host tier and come back byte for byte, and copy-on-write
// copies K and V of every layer. V is clearly unlike K, so that a mix-up shows.
#include <gtest/gtest.h>

#include "common/cpu/cpu_backend.h"
#include "common/engine/run.h"
#include "step1_no_cache/no_cache.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "step4_prefix_cache/tiered_kv_store.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/made_up_layers.h"
#include "tests/support/random_numbers.h"
#include "tests/support/tiered_store_cases.h"

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
  FilledStore(const TieredSizes& sizes, DType dtype, DebugFill fill)
      : manager({sizes.blocks, sizes.block_size, 1}, {.host_blocks = sizes.host_blocks}),
        store_(config_, {sizes.blocks, sizes.block_size, 1}, sizes.host_blocks, dtype,
               {AttentionPath::paged, fill}, threads_) {}

  PassPlan plan(std::int32_t sequence, const Tokens& tokens) {
    const Work work{sequence, tokens};
    return manager.plan({&work, 1}).value();
  }
  void begin(const PassPlan& plan) { store_.begin(plan); }
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
      Matrix q = MadeUpLayers::matrix_of(plan.tokens(), config_.heads * config_.head_dim), out = q;
      for (std::int64_t row = 0; row < q.rows; ++row) std::fill_n(q.row(row), q.cols, 0.0F);
      store_.store_and_attend(layer, {}, {q, matrix, negated_hundredfold(matrix)}, out);
    }
    store_.end();
    manager.commit(plan);
  }
  PassPlan pass(std::int32_t sequence, const Tokens& tokens) {
    PassPlan made = plan(sequence, tokens);
    begin(made);
    finish(made);
    return made;
  }
  std::vector<std::uint64_t> checksums(const std::vector<std::int32_t>& blocks) {
    std::vector<std::uint64_t> sums;
    for (const std::int32_t block : blocks) sums.push_back(store_.checksum_of_block(block));
    return sums;
  }
  std::uint64_t checksum_of_host_block(std::int32_t host_block) {
    return store_.checksum_of_host_block(host_block);
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
  ThreadPool threads_{1};
  std::vector<float> v_;
  std::uint32_t random_seed_ = 0;
  TieredKvStore store_;
};

class CpuTieredStore : public testing::Test {
 protected:
  static bool has(DType /*dtype*/) { return true; }
  static FilledStore cache(const TieredSizes& sizes, DType dtype, DebugFill fill) {
    return FilledStore(sizes, dtype, fill);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, TieredStore, CpuTieredStore);

TEST(TieredKvStore, ForksOfAModelWhoseValuesDwarfItsKeysAnswerLikeSoloRuns) {
  test::TestCheckpoint checkpoint("Qwen3ForCausalLM");
  for (auto& [name, tensor] : checkpoint.tensors) {
    if (name.find("v_proj") == std::string::npos) continue;
    for (float& value : tensor.values) value *= 100;
  }
  const TemporaryFolder folder;
  checkpoint.save(folder.path());
  ThreadPool threads(2);
  const ModelConfig config = read_config(folder.path());
  Transformer model(config, load_weights(folder.path(), config, DType::f32),
                    std::make_unique<CpuBackend>(DType::f32, threads));

  std::vector<Request> requests(3);
  for (std::size_t sample = 0; sample < requests.size(); ++sample) {
    requests[sample].prompt_ids = Tokens{3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    requests[sample].max_tokens = 20;
    requests[sample].sampling.temperature = 1;
    requests[sample].sampling.seed = 40 + sample;
  }
  NoCacheManager solo_manager;
  NoCacheStore solo_store(model.config(), DType::f32, threads);
  const Report solo = run(model, solo_manager, solo_store, requests);

  requests[0].forks = 2;
  const PagedShape shape{24, kBlockSize, config.kv_bytes_per_token(4)};
  for (const AttentionPath path : {AttentionPath::paged, AttentionPath::gather}) {
    PrefixCachingManager manager(shape);
    TieredKvStore store(model.config(), shape, 0, DType::f32, {path, DebugFill::nan}, threads);
    const Report forked = run(model, manager, store, requests);
    for (std::size_t sample = 0; sample < requests.size(); ++sample)
      EXPECT_EQ(forked.sequences[sample].output_ids, solo.sequences[sample].output_ids) << sample;
    EXPECT_EQ(forked.counters.copies, 2);
  }
  EXPECT_NE(solo.sequences[0].output_ids, solo.sequences[1].output_ids);
}

}  // namespace
}  // namespace kvcache
