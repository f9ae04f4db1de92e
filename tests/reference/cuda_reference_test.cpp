// Every step on the GPU against the answers of Hugging Face and against the CPU. In float32 the greedy ids
// are equal, and the logits within 1e-3 of the largest. In a 16-bit type the logits are within 2e-2 of the
// CPU's in the same type, or, where the type itself is less exact, within twice the CPU's distance from
// float64.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/cuda/cuda_backend.h"
#include "common/cuda/device_weights.h"
#include "common/engine/run.h"
#include "step1_no_cache/cuda_no_cache_store.h"
#include "step1_no_cache/no_cache.h"
#include "step2_flat_cache/cuda_flat_cache_store.h"
#include "step3_paged/cuda_paged_kv_store.h"
#include "step4_prefix_cache/cuda_tiered_kv_store.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "tests/support/gpu.h"
#include "tests/support/reference_model.h"

namespace kvcache {
namespace {

struct Cache {
  std::unique_ptr<KvManager> manager;
  std::unique_ptr<KvStore> store;
};

/// One kind of cache on the GPU.
struct Kind {
  const char* name;
  std::function<Cache(const ModelConfig&, DType, const cuda::Device&)> make;
};

constexpr std::int64_t kPositions = 2048;  // room for the longest case

PagedShape shape_of(const ModelConfig& config, DType dtype, std::int64_t block_size) {
  PagedShape shape{0, block_size, config.kv_bytes_per_token(size_of(dtype))};
  shape.blocks = 4 * shape.blocks_for(kPositions);
  return shape;
}

Kind paged(const char* name, AttentionPath path, std::int64_t block_size) {
  return {name, [=](const ModelConfig& config, DType dtype, const cuda::Device& device) -> Cache {
            const PagedShape shape = shape_of(config, dtype, block_size);
            return {std::make_unique<PagedManager>(shape),
                    std::make_unique<CudaPagedKvStore>(config, shape, dtype,
                                                       PagedKvStore::Settings{path, DebugFill::nan}, device)};
          }};
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"no cache",
       [](const ModelConfig& config, DType dtype, const cuda::Device& device) -> Cache {
         return {std::make_unique<NoCacheManager>(),
                 std::make_unique<CudaNoCacheStore>(config, dtype, device)};
       }},
      {"flat",
       [](const ModelConfig& config, DType dtype, const cuda::Device& device) -> Cache {
         const FlatCacheShape shape{4, kPositions, config.kv_bytes_per_token(size_of(dtype))};
         return {std::make_unique<FlatCacheManager>(shape),
                 std::make_unique<CudaFlatCacheStore>(config, shape, dtype, device)};
       }},
      paged("paged", AttentionPath::paged, 16),
      paged("paged, gather", AttentionPath::gather, 16),
      paged("paged, blocks of 7", AttentionPath::paged, 7),
      {"prefix cache",
       [](const ModelConfig& config, DType dtype, const cuda::Device& device) -> Cache {
         const PagedShape shape = shape_of(config, dtype, 8);
         const SharingSettings sharing{.prefix_cache = true, .salt = "", .host_blocks = 16};
         return {std::make_unique<PrefixCachingManager>(shape, sharing),
                 std::make_unique<CudaTieredKvStore>(
                     config, shape, 16, dtype, PagedKvStore::Settings{AttentionPath::paged, DebugFill::nan},
                     device)};
       }},
  };
  return all;
}

std::unique_ptr<Transformer> model_on_gpu(const std::string& name, DType dtype,
                                          const std::shared_ptr<const cuda::Device>& device) {
  const ModelConfig config = read_config(checkpoint_folder(name));
  const Weights weights = load_weights(checkpoint_folder(name), config, dtype);
  return std::make_unique<Transformer>(config, cuda::upload_weights(weights, dtype, *device),
                                       std::make_unique<cuda::CudaBackend>(dtype, device));
}

/// The largest difference as a share of the largest right value; infinite if anything is not finite.
double distance(const std::vector<float>& ours, const std::vector<double>& right) {
  double largest = 0, worst = 0;
  if (ours.size() != right.size()) return std::numeric_limits<double>::infinity();
  for (std::size_t id = 0; id < right.size(); ++id) {
    if (!std::isfinite(ours[id])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(right[id]));
    worst = std::max(worst, std::abs(static_cast<double>(ours[id]) - right[id]));
  }
  return worst / largest;
}

/// The cases of a checkpoint as requests, and their answers.
struct Cases {
  std::vector<Request> requests;
  std::vector<std::vector<std::int32_t>> greedy_ids;
  std::vector<std::vector<double>> logits;
};

Cases cases_of(const std::string& checkpoint) {
  const nlohmann::json answers = answers_of(checkpoint);
  Cases cases;
  for (const nlohmann::json& answer : answers["cases"]) {
    Request request;
    request.prompt_ids = answer["prompt_ids"].get<std::vector<std::int32_t>>();
    cases.greedy_ids.push_back(answer["greedy_ids"].get<std::vector<std::int32_t>>());
    cases.logits.push_back(answer["next_token_logits"].get<std::vector<double>>());
    request.max_tokens = std::ssize(cases.greedy_ids.back());
    request.ignore_eos = true;
    cases.requests.push_back(std::move(request));
  }
  return cases;
}

class CudaReference : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = cuda::Device::why_unavailable(); !why.empty()) GTEST_SKIP() << why;
    device_ = std::make_shared<cuda::Device>();
  }
  std::vector<SequenceReport> run_all(Transformer& model, const Kind& kind, DType dtype,
                                      std::span<const Request> requests, std::int64_t preempt_every = 0) {
    const Cache cache = kind.make(model.config(), dtype, *device_);
    Report report = run(model, *cache.manager, *cache.store, requests,
                        {.keep_logits = true, .preempt_every = preempt_every});
    return std::move(report.sequences);
  }
  /// The bits of the logits [passes, vocab] of one sequence: `prompt` of its tokens in the first pass, then
  /// one in each.
  std::vector<std::uint32_t> logits_of_passes(Transformer& model, const Kind& kind, DType dtype,
                                              std::span<const std::int32_t> ids, std::size_t prompt) {
    const Cache cache = kind.make(model.config(), dtype, *device_);
    std::vector<std::uint32_t> bits;
    for (std::size_t length = prompt; length <= ids.size(); ++length) {
      const Work work{0, ids.first(length)};
      const PassPlan plan = cache.manager->plan({&work, 1}).value();
      model.forward(plan, *cache.store);
      cache.manager->commit(plan);
      for (const float logit : model.logits()) bits.push_back(std::bit_cast<std::uint32_t>(logit));
    }
    return bits;
  }

  std::shared_ptr<const cuda::Device> device_;
};

TEST_P(CudaReference, Float32GivesTheGreedyIdsAndLogitsOfTheOtherImplementationInEveryStep) {
  const Cases cases = cases_of(GetParam());
  const std::unique_ptr<Transformer> model = model_on_gpu(GetParam(), DType::f32, device_);
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    for (std::size_t n = 0; n < cases.requests.size(); ++n) {
      const SequenceReport alone = run_all(*model, kind, DType::f32, {&cases.requests[n], 1}).front();
      EXPECT_EQ(alone.output_ids, cases.greedy_ids[n]) << "case " << n;
      EXPECT_LE(distance(alone.logits, cases.logits[n]), 1e-3) << "case " << n;
    }
    // Three at a time, and sometimes preempted.
    const std::span<const Request> three = std::span(cases.requests).first(3);
    const std::vector<SequenceReport> together =
        run_all(*model, kind, DType::f32, three, std::string(kind.name) == "no cache" ? 0 : 5);
    for (std::size_t n = 0; n < three.size(); ++n)
      EXPECT_EQ(together[n].output_ids, cases.greedy_ids[n]) << "case " << n << " among others";
  }
}

TEST_P(CudaReference, ShortTypesStayNearTheCpuInTheSameType) {
  const Cases cases = cases_of(GetParam());
  for (const DType dtype : {DType::f16, DType::bf16}) {
    if (dtype == DType::bf16 && device_->compute_capability() < 80) continue;
    ThreadPool threads(2);
    const std::unique_ptr<Transformer> on_cpu = reference_model(GetParam(), threads, dtype);
    const std::unique_ptr<Transformer> model = model_on_gpu(GetParam(), dtype, device_);
    for (std::size_t n = 0; n < cases.requests.size(); ++n) {
      Request request = cases.requests[n];
      request.max_tokens = 0;  // the logits after the prompt
      NoCacheManager manager;
      NoCacheStore store(on_cpu->config(), dtype, threads);
      const Report right = run(*on_cpu, manager, store, {&request, 1}, {.keep_logits = true});
      const std::vector<float>& logits = right.sequences[0].logits;
      const double bound = std::max(2e-2, 2 * distance(logits, cases.logits[n]));
      for (const Kind& kind : kinds()) {
        const SequenceReport ours = run_all(*model, kind, dtype, {&request, 1}).front();
        EXPECT_LE(distance(ours.logits, {logits.begin(), logits.end()}), bound)
            << kind.name << " " << name_of(dtype) << " case " << n;
      }
    }
  }
}

// Every kind reads the same K and V with the same kernels, and passes of the same rows make the same
// products: even the bits agree, in every type. Step 1 has the same rows in its first pass only.
TEST_P(CudaReference, CachesAgreeBitForBitInEveryPassOfASequenceThatIsAlone) {
  const Cases cases = cases_of(GetParam());
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (dtype == DType::bf16 && device_->compute_capability() < 80) continue;
    const std::unique_ptr<Transformer> model = model_on_gpu(GetParam(), dtype, device_);
    for (const std::size_t n : {std::size_t{0}, cases.requests.size() / 2, cases.requests.size() - 1}) {
      std::vector<std::int32_t> ids = cases.requests[n].prompt_ids;
      const std::size_t prompt = ids.size(), more = std::min<std::size_t>(8, cases.greedy_ids[n].size());
      ids.insert(ids.end(), cases.greedy_ids[n].begin(),
                 cases.greedy_ids[n].begin() + static_cast<std::ptrdiff_t>(more));
      const std::vector<std::uint32_t> right = logits_of_passes(*model, kinds()[1], dtype, ids, prompt);
      for (const Kind& kind : kinds()) {
        const bool cached = std::string(kind.name) != "no cache";
        const std::vector<std::uint32_t> ours =
            logits_of_passes(*model, kind, dtype, std::span(ids).first(cached ? ids.size() : prompt), prompt);
        EXPECT_TRUE(std::equal(ours.begin(), ours.end(), right.begin()))
            << kind.name << " " << name_of(dtype) << " case " << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, CudaReference,
                         testing::Values("llama-gqa", "llama-mha", "llama3-rope", "qwen2-bias",
                                         "qwen3-sharded", "qwen3-tied", "fairytale", "llama-biases-linear",
                                         "llama3-long", "qwen2-untied"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvcache
