// Step 4's storage on the GPU beside that on the CPU: blocks go to the host tier and come back byte for byte
// while the GPU computes, and the host does not wait.
#include "step4_prefix_cache/cuda_tiered_kv_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <string>

#include "step4_prefix_cache/prefix_caching_manager.h"
#include "step4_prefix_cache/tiered_kv_store.h"
#include "tests/support/gpu.h"
#include "tests/support/gpu_matrix.h"
#include "tests/support/random_numbers.h"
#include "tests/support/tiered_store_cases.h"

namespace kvcache {
namespace {

ModelConfig config_of(std::int64_t layers, AttentionShape heads) {
  ModelConfig config;
  config.layers = layers;
  config.heads = heads.heads;
  config.kv_heads = heads.kv_heads;
  config.head_dim = heads.head_dim;
  return config;
}

/// Made-up numbers for K and V of a few passes, on both devices. Each pass takes the next ones. All queries
/// are 0.
class MadeUpPasses {
 public:
  MadeUpPasses(const ModelConfig& config, std::int64_t most_rows, DType dtype, std::uint32_t seed,
               const cuda::Device& device)
      : config_(config), dtype_(dtype) {
    for (std::size_t n = 0; n < 3 * static_cast<std::size_t>(config.layers); ++n) {
      Numbers& made = numbers_.emplace_back();
      const std::int64_t kv_width = config.kv_heads * config.head_dim;
      made.k = rounded(most_rows * kv_width, ++seed);
      made.v = made.k;
      for (float& number : made.v) number = round_to(dtype, number * -100);
      made.gpu_k = matrix_on_gpu(of(made.k, most_rows, kv_width), dtype, device);
      made.gpu_v = matrix_on_gpu(of(made.v, most_rows, kv_width), dtype, device);
    }
    const std::int64_t width = config.heads * config.head_dim;
    zeros_.resize(static_cast<std::size_t>(most_rows * width));
    out_ = zeros_;
    gpu_q_ = matrix_on_gpu(of(zeros_, most_rows, width), dtype, device);
    gpu_out_ = matrix_on_gpu(of(zeros_, most_rows, width), dtype, device);
  }

  /// Layer `layer` of pass `pass` through a store on the CPU and one on the GPU; the answers are dropped.
  void send(std::int64_t pass, std::int64_t layer, std::int64_t rows, KvStore& cpu, KvStore& gpu) {
    const std::int64_t width = config_.heads * config_.head_dim;
    Matrix q = of(zeros_, rows, width), new_k = k(pass, layer, rows), out = of(out_, rows, width);
    cpu.store_and_attend(layer, {}, {q, new_k, v(pass, layer, rows)}, out);
    Matrix on_gpu = first_rows(gpu_q_, rows), new_gpu_k = gpu_k(pass, layer, rows);
    Matrix gpu_out = first_rows(gpu_out_, rows);
    gpu.store_and_attend(layer, {}, {on_gpu, new_gpu_k, gpu_v(pass, layer, rows)}, gpu_out);
  }

  /// K and V of layer `layer` of pass `pass`.
  Matrix k(std::int64_t pass, std::int64_t layer, std::int64_t rows) {
    return of(at(pass, layer).k, rows, config_.kv_heads * config_.head_dim);
  }
  Matrix v(std::int64_t pass, std::int64_t layer, std::int64_t rows) {
    return of(at(pass, layer).v, rows, config_.kv_heads * config_.head_dim);
  }
  Matrix gpu_k(std::int64_t pass, std::int64_t layer, std::int64_t rows) {
    return first_rows(at(pass, layer).gpu_k, rows);
  }
  Matrix gpu_v(std::int64_t pass, std::int64_t layer, std::int64_t rows) {
    return first_rows(at(pass, layer).gpu_v, rows);
  }

 private:
  struct Numbers {
    std::vector<float> k, v;  // [most_rows, kv_heads, head_dim]
    Matrix gpu_k, gpu_v;
  };
  Numbers& at(std::int64_t pass, std::int64_t layer) {
    return numbers_[static_cast<std::size_t>(pass + layer) % numbers_.size()];
  }
  std::vector<float> rounded(std::int64_t count, std::uint32_t seed) const {
    std::vector<float> numbers = random_numbers(static_cast<std::size_t>(count), seed * 7919);
    for (float& number : numbers) number = round_to(dtype_, number);
    return numbers;
  }
  static Matrix of(std::vector<float>& numbers, std::int64_t rows, std::int64_t cols) {
    Matrix matrix;
    matrix.data = numbers.data();
    matrix.rows = rows;
    matrix.cols = matrix.stride = cols;
    return matrix;
  }
  static Matrix first_rows(Matrix matrix, std::int64_t rows) {
    matrix.rows = rows;
    return matrix;
  }

  const ModelConfig& config_;
  DType dtype_;
  std::vector<Numbers> numbers_;
  std::vector<float> zeros_, out_;  // [most_rows, heads * head_dim]
  Matrix gpu_q_, gpu_out_;
};

/// A step 4 cache with a store on each device; both stores get the same numbers.
class TieredTwins {
 public:
  TieredTwins(const ModelConfig& config, const TieredSizes& sizes, DType dtype, DebugFill fill,
              MadeUpPasses& passes, const cuda::Device& device)
      : manager({sizes.blocks, sizes.block_size, 1}, {.host_blocks = sizes.host_blocks}),
        cpu(config, {sizes.blocks, sizes.block_size, 1}, sizes.host_blocks, dtype,
            {AttentionPath::paged, fill}, threads_),
        gpu(config, {sizes.blocks, sizes.block_size, 1}, sizes.host_blocks, dtype,
            {AttentionPath::paged, fill}, device),
        config_(config),
        passes_(passes) {}

  PassPlan plan(std::int32_t sequence, const Tokens& tokens) {
    const Work work{sequence, tokens};
    return manager.plan({&work, 1}).value();
  }
  void begin(const PassPlan& plan) {
    cpu.begin(plan);
    gpu.begin(plan);
  }
  /// Writes K and V of a plan that has begun, and commits it.
  void finish(const PassPlan& plan) {
    for (std::int64_t layer = 0; layer < config_.layers; ++layer)
      passes_.send(passes_run_, layer, plan.tokens(), cpu, gpu);
    cpu.end();
    gpu.end();
    manager.commit(plan);
    ++passes_run_;
  }
  PassPlan pass(std::int32_t sequence, const Tokens& tokens) {
    PassPlan made = plan(sequence, tokens);
    begin(made);
    finish(made);
    return made;
  }

  /// The checksums of the GPU's blocks, which must equal the CPU's.
  std::vector<std::uint64_t> checksums(const std::vector<std::int32_t>& blocks) {
    std::vector<std::uint64_t> sums;
    for (const std::int32_t block : blocks) {
      sums.push_back(gpu.checksum_of_block(block));
      EXPECT_EQ(sums.back(), cpu.checksum_of_block(block)) << "block " << block;
    }
    return sums;
  }
  std::uint64_t checksum_of_host_block(std::int32_t host_block) {
    EXPECT_EQ(gpu.checksum_of_host_block(host_block), cpu.checksum_of_host_block(host_block))
        << "host block " << host_block;
    return gpu.checksum_of_host_block(host_block);
  }

  PrefixCachingManager manager;

 private:
  ThreadPool threads_{1};

 public:
  TieredKvStore cpu;
  CudaTieredKvStore gpu;

 private:
  const ModelConfig& config_;
  MadeUpPasses& passes_;
  std::int64_t passes_run_ = 0;
};

const ModelConfig kSmall = config_of(3, {4, 2, 8});

class CudaTieredKvStoreTest : public OnGpu {
 protected:
  TieredTwins cache(const TieredSizes& sizes, DType dtype, DebugFill fill) {
    passes_.emplace(kSmall, 24, dtype, seed_, device());
    return TieredTwins(kSmall, sizes, dtype, fill, *passes_, device());
  }

  std::uint32_t seed_ = std::random_device{}();

 private:
  std::optional<MadeUpPasses> passes_;
  testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
};

INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, TieredStore, CudaTieredKvStoreTest);

/// So large that a move takes a while, and a race shows.
const ModelConfig kLarge = config_of(8, {8, 8, 64});

// SW1: six blocks for four prompts of three blocks, which move each other to the host tier again and again.
TEST_F(CudaTieredKvStoreTest, BlocksReusedAtOnceOverManyPassesKeepWhatIsTheirs) {
  constexpr std::int64_t kBlockSize = 16, kPrompt = 3 * kBlockSize, kRounds = 60;
  constexpr std::int64_t kScratchBytes = 256 << 20;
  const cuda::DeviceBuffer<std::byte> scratch(kScratchBytes, "a test");
  MadeUpPasses passes(kLarge, kPrompt + 1, DType::f32, seed_, device());
  // When the moves come, the GPU is behind the host, or idle.
  for (const bool behind : {true, false}) {
    SCOPED_TRACE(behind ? "the GPU is behind" : "the GPU is idle");
    TieredTwins cache(kLarge, {6, kBlockSize, 16}, DType::f32, DebugFill::none, passes, device());
    for (std::int32_t round = 0; round < kRounds; ++round) {
      if (behind) {
        cuda::check(cudaMemsetAsync(scratch.data(), round, static_cast<std::size_t>(kScratchBytes), stream()),
                    "keeping the GPU busy");
      }
      cache.pass(round, joined(unlike_ids(round % 4, kPrompt), {100'000 + round}));
      cache.manager.free(round);
    }
    EXPECT_GT(cache.manager.counters().swaps_in, kRounds);
    for (std::int32_t prompt = 0; prompt < 4; ++prompt) {
      const std::int32_t sequence = static_cast<std::int32_t>(kRounds) + prompt;
      const PassPlan back = cache.plan(sequence, joined(unlike_ids(prompt, kPrompt), {200'000}));
      EXPECT_EQ(back.tokens(), 1) << "nothing is lost";
      cache.begin(back);
      std::vector<std::int32_t> table = cache.manager.block_table(sequence);
      table.resize(3);
      cache.checksums(table);
      cache.finish(back);
      cache.manager.free(sequence);
    }
  }
}

// SW1 and SW7, seen from the answers: a wait after every pass must change none of them.
TEST_F(CudaTieredKvStoreTest, TheAnswersAreThoseOfWaitingAfterEveryPass) {
  constexpr std::int64_t kBlockSize = 16, kPrompt = 3 * kBlockSize, kRounds = 60;
  MadeUpPasses passes(kLarge, kPrompt + 1, DType::f32, seed_, device());
  const std::int64_t width = kLarge.heads * kLarge.head_dim;
  const auto answers = [&](bool wait) {
    PrefixCachingManager manager({6, kBlockSize, 1}, {.host_blocks = 16});
    CudaTieredKvStore store(kLarge, {6, kBlockSize, 1}, 16, DType::f32, {}, device());
    std::vector<PassPlan> plans;
    plans.reserve(kRounds);
    const auto count = kRounds * (kPrompt + 1) * width;
    const cuda::DeviceBuffer<float> out(count, "a test");  // [rounds, kPrompt + 1, width]
    cuda::check(cudaMemsetAsync(out.data(), 0, static_cast<std::size_t>(count) * sizeof(float), stream()),
                "clearing the answers");
    for (std::int32_t round = 0; round < kRounds; ++round) {
      const Tokens tokens = joined(unlike_ids(round % 4, kPrompt), {100'000 + round});
      const Work work{round, tokens};
      const PassPlan& plan = plans.emplace_back(manager.plan({&work, 1}).value());
      store.begin(plan);
      for (std::int64_t layer = 0; layer < kLarge.layers; ++layer) {
        Matrix q = passes.gpu_k(round + 1, layer, plan.tokens());
        Matrix k = passes.gpu_k(round, layer, plan.tokens());
        Matrix answer;  // of the last layer: K and V of the others are read and their answers overwritten
        answer.data = out.data() + round * (kPrompt + 1) * width;
        answer.rows = plan.tokens();
        answer.cols = answer.stride = width;
        store.store_and_attend(layer, {}, {q, k, passes.gpu_v(round, layer, plan.tokens())}, answer);
      }
      store.end();
      manager.commit(plan);
      manager.free(round);
      if (wait) device().synchronize();
    }
    return from_gpu(out.data(), count);
  };
  const std::vector<float> right = answers(true);
  const std::vector<float> got = answers(false);
  EXPECT_EQ(std::memcmp(got.data(), right.data(), got.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace kvcache
