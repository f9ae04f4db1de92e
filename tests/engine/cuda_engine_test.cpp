// The serving engine on a GPU. While the device computes a pass, the host plans the next one and gives blocks
// to other sequences. In float32, in a pool for a few sequences, every answer is still that of its solo run
// on the CPU.
#include <gtest/gtest.h>

#include "common/cuda/cuda_backend.h"
#include "common/cuda/device_weights.h"
#include "step2_flat_cache/cuda_flat_cache_store.h"
#include "step3_paged/cuda_paged_kv_store.h"
#include "step4_prefix_cache/cuda_tiered_kv_store.h"
#include "tests/support/damaged_model.h"
#include "tests/support/gpu.h"
#include "tests/support/serving.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBlocks = 20, kHostBlocks = 30, kBlockSize = 4;

class CudaEngine : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (!IsSkipped()) load(checkpoint_folder("llama-mha"));
  }
  void load(const std::filesystem::path& folder) {
    ModelConfig config = read_config(folder);
    config.eos_ids.clear();
    const Weights weights = load_weights(folder, config, DType::f32);
    on_cpu_ =
        std::make_unique<Transformer>(config, weights, std::make_unique<CpuBackend>(DType::f32, threads_));
    on_gpu_ = std::make_unique<Transformer>(config, cuda::upload_weights(weights, DType::f32, device()),
                                            std::make_unique<cuda::CudaBackend>(DType::f32, shared_device()));
  }

  static GenerationRequest request(std::int64_t n) {
    GenerationRequest result;
    for (std::int64_t token = 0; token < 1 + n * 5 % 23; ++token)
      result.prompt_ids.push_back(static_cast<std::int32_t>((n % 3 + token * 31) % 700));
    result.max_tokens = 3 + n * 7 % 40;
    return result;
  }
  std::vector<std::int32_t> alone(const GenerationRequest& asked) {
    ServingCache cache(Kind::paged, 200, kBlockSize, on_cpu_->config(), threads_);
    const Request request{asked.prompt_ids, asked.max_tokens, asked.ignore_eos, asked.sampling};
    return run(*on_cpu_, *cache.manager, *cache.store, {&request, 1}).sequences[0].output_ids;
  }

  /// Many requests at once, against their solo answers.
  void expect_solo_answers(KvManager& manager, KvStore& store) {
    Engine engine(*on_gpu_, manager, store, nullptr, {.max_batch_tokens = 16, .max_sequences = 8});
    std::vector<Answer> answers(24);
    for (std::size_t n = 0; n < answers.size(); ++n) {
      engine.add(n, request(static_cast<std::int64_t>(n)),
                 [&answer = answers[n]](const GenerationEvent& event) { answer.hear(event); });
    }
    while (engine.run_pass()) EXPECT_NO_THROW(engine.scheduler().check_invariants());
    for (std::size_t n = 0; n < answers.size(); ++n)
      EXPECT_EQ(answers[n].ids(), alone(request(static_cast<std::int64_t>(n)))) << "request " << n;
    EXPECT_EQ(manager.memory().used_bytes, 0);
    EXPECT_GT(engine.totals().prepared_passes, engine.totals().passes * 3 / 4);
    preemptions_ = engine.scheduler().preemptions();
  }
  PagedShape shape() const { return {kBlocks, kBlockSize, on_gpu_->config().kv_bytes_per_token(4)}; }

  ThreadPool threads_{1};
  std::unique_ptr<Transformer> on_cpu_, on_gpu_;
  std::int64_t preemptions_ = 0;
  const PagedKvStore::Settings settings_{AttentionPath::paged, DebugFill::nan};
};

TEST_F(CudaEngine, GivesTheSoloAnswersInAFlatCache) {
  const FlatCacheShape shape{4, 80, on_gpu_->config().kv_bytes_per_token(4)};
  CheckedManager manager(std::make_unique<FlatCacheManager>(shape));
  CudaFlatCacheStore store(on_gpu_->config(), shape, DType::f32, device());
  expect_solo_answers(manager, store);
}

TEST_F(CudaEngine, GivesTheSoloAnswersInAPoolForAFew) {
  CheckedManager manager(std::make_unique<PagedManager>(shape()));
  CudaPagedKvStore store(on_gpu_->config(), shape(), DType::f32, settings_, device());
  expect_solo_answers(manager, store);
  EXPECT_GT(preemptions_, 0);
}

TEST_F(CudaEngine, GivesTheSoloAnswersWhenBlocksAreSharedAndMovedOutAndBack) {
  CheckedManager manager(
      std::make_unique<PrefixCachingManager>(shape(), SharingSettings{.host_blocks = kHostBlocks}));
  CudaTieredKvStore store(on_gpu_->config(), shape(), kHostBlocks, DType::f32, settings_, device());
  expect_solo_answers(manager, store);
  EXPECT_GT(preemptions_, 0);
  EXPECT_GT(manager.counters().swaps_in, 0);
}

// A kernel attends over a few tokens together; for a query, later tokens among them have the weight 0. With
// blocks of 3, the last token of a full block and the damaged token after it are attended together.
TEST_F(CudaEngine, FindsABlockSoundThatWasComputedBesideADamagedToken) {
  const DamagedModel damaged;
  load(damaged.path());
  const PagedShape thirds{kBlocks, 3, shape().bytes_per_token};
  PrefixCachingManager manager(thirds);
  CudaTieredKvStore store(on_gpu_->config(), thirds, 0, DType::f32, settings_, device());
  const auto pick = [&](std::int32_t sequence, const std::vector<std::int32_t>& ids) {
    const Work work{sequence, ids};
    const std::optional<PassPlan> plan = manager.plan({&work, 1});
    on_gpu_->forward(plan.value(), store);
    manager.commit(*plan);
    Sampler greedy{SamplingParams{}};
    const Pick wanted{0, &greedy};
    return on_gpu_->pick({&wanted, 1}).front();
  };
  GenerationRequest good;
  good.prompt_ids = good_prompt(3 * thirds.block_size + 1);
  good.max_tokens = 1;
  std::vector<std::int32_t> bad = good.prompt_ids;
  bad.back() = DamagedModel::kBadToken;
  EXPECT_FALSE(pick(1, bad).ok());
  EXPECT_EQ(pick(2, good.prompt_ids), Picked{.id = alone(good).front()});
  EXPECT_EQ(manager.cached_tokens(2), 3 * thirds.block_size);
}

TEST_F(CudaEngine, EndsTheRequestsWhoseLogitsAreNotFiniteAndNoOther) {
  const DamagedModel damaged;
  load(damaged.path());
  for (const AttentionPath attention : {AttentionPath::paged, AttentionPath::gather}) {
    CheckedManager manager(
        std::make_unique<PrefixCachingManager>(shape(), SharingSettings{.host_blocks = kHostBlocks}));
    CudaTieredKvStore store(on_gpu_->config(), shape(), kHostBlocks, DType::f32, {attention, DebugFill::none},
                            device());
    Engine engine(*on_gpu_, manager, store, nullptr, {.max_batch_tokens = 16, .max_sequences = 8});
    std::vector<Answer> answers(32);
    const auto asked = [](std::size_t n) {
      const auto number = static_cast<std::int64_t>(n);
      GenerationRequest request;
      request.prompt_ids =
          n % 2 == 0 ? good_prompt(1 + number % 23, number) : bad_prompt(6 + number, number % 6, number);
      request.max_tokens = 1 + number % 5 * 6;
      return request;
    };
    for (std::size_t n = 0; n < answers.size(); ++n) {
      engine.add(n, asked(n), [&answer = answers[n]](const GenerationEvent& event) { answer.hear(event); });
    }
    while (engine.run_pass()) EXPECT_NO_THROW(engine.scheduler().check_invariants());
    for (std::size_t n = 0; n < answers.size(); ++n) {
      if (n % 2 == 0) {
        EXPECT_EQ(answers[n].ids(), alone(asked(n))) << "request " << n;
      } else {
        EXPECT_EQ(answers[n].reason(), "error") << "request " << n;
        EXPECT_NE(answers[n].samples.at(0).error.find("is NaN"), std::string::npos);
      }
    }
    EXPECT_EQ(manager.memory().used_bytes, 0);
  }
}

}  // namespace
}  // namespace kvcache
