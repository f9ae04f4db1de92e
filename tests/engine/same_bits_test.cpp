// The promise that holds the steps together: a cache changes no bit. Logits and greedy ids equal those of the
// step without a cache, for every block size, way to attend, batch, number of threads and preemption, on
// every kind of model.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "common/engine/run.h"
#include "step1_no_cache/no_cache.h"
#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/paged_kv_store.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "step4_prefix_cache/tiered_kv_store.h"
#include "tests/support/reference_model.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBlockSizes[] = {1, 2, 3, 7, 16, 17, 64};
constexpr std::int64_t kTwoSizes[] = {3, 16};
constexpr std::int64_t kOneSize[] = {7};
constexpr std::int64_t kNewTokens = 9;

/// The sizes that a cache is made for.
struct Setting {
  const ModelConfig& config;
  ThreadPool& threads;
  DType dtype;
  std::int64_t sequences;
  PagedShape shape;  ///< for caches with blocks
  DebugFill fill;
};

struct Cache {
  std::unique_ptr<KvManager> manager;
  std::unique_ptr<KvStore> store;
};

/// One kind of cache.
struct Kind {
  std::string name;
  bool has_blocks;
  std::function<Cache(const Setting&)> make;
};

Cache make_flat(const Setting& s) {
  const FlatCacheShape shape{s.sequences, 128, s.shape.bytes_per_token};
  return {std::make_unique<FlatCacheManager>(shape),
          std::make_unique<FlatCacheStore>(s.config, shape, s.dtype, s.threads)};
}

std::function<Cache(const Setting&)> make_paged(AttentionPath path) {
  return [path](const Setting& s) -> Cache {
    return {std::make_unique<PagedManager>(s.shape),
            std::make_unique<PagedKvStore>(s.config, s.shape, s.dtype, PagedKvStore::Settings{path, s.fill},
                                           s.threads)};
  };
}

std::function<Cache(const Setting&)> make_sharing(AttentionPath path, std::int64_t host_blocks) {
  return [path, host_blocks](const Setting& s) -> Cache {
    const SharingSettings sharing{.prefix_cache = true, .salt = "", .host_blocks = host_blocks};
    return {std::make_unique<PrefixCachingManager>(s.shape, sharing),
            std::make_unique<TieredKvStore>(s.config, s.shape, host_blocks, s.dtype,
                                            PagedKvStore::Settings{path, s.fill}, s.threads)};
  };
}

/// The kinds that are compared with the first.
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"no cache", false,
       [](const Setting& s) -> Cache {
         return {std::make_unique<NoCacheManager>(),
                 std::make_unique<NoCacheStore>(s.config, s.dtype, s.threads)};
       }},
      {"flat", false, make_flat},
      {"paged, gather", true, make_paged(AttentionPath::gather)},
      {"paged", true, make_paged(AttentionPath::paged)},
      {"prefix cache", true, make_sharing(AttentionPath::paged, 0)},
      {"prefix cache, gather, host tier", true, make_sharing(AttentionPath::gather, 5)},
  };
  return all;
}

/// Prompts of lengths on both sides of blocks and of attention's chunks; the last two have a prefix in
/// common.
std::vector<Request> requests() {
  std::vector<Request> all;
  for (const std::int64_t length : {1, 16, 33, 71, 65}) {
    Request request;
    for (std::int64_t n = 0; n < length; ++n)
      request.prompt_ids.push_back(
          static_cast<std::int32_t>((length < 60 ? length * 13 : 0) + n * n * 7 + 3) % 700);
    request.max_tokens = kNewTokens;
    request.ignore_eos = true;
    all.push_back(std::move(request));
  }
  return all;
}

std::int64_t blocks_needed(const PagedShape& shape, const Request& request) {
  return shape.blocks_for(static_cast<std::int64_t>(request.prompt_ids.size()) + request.max_tokens - 1);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return !a.empty() && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class SameBits : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(checkpoint_folder(GetParam()) / "model.safetensors") &&
        !std::filesystem::exists(checkpoint_folder(GetParam()) / "model.safetensors.index.json")) {
      GTEST_SKIP() << "no such checkpoint here";
    }
  }

  /// The shipped model, which the test takes through fewer ways than the tiny ones.
  static bool is_large() { return GetParam() == "fairytale"; }

  /// A model on `threads` threads; the right answers are those of one thread.
  void load(int threads, DType dtype) {
    dtype_ = dtype;
    model_.reset();
    threads_ = std::make_unique<ThreadPool>(threads);
    model_ = reference_model(GetParam(), *threads_, dtype);
  }

  Setting setting(std::int64_t sequences, const PagedShape& shape) {
    // Fresh blocks are filled with another value each time.
    constexpr DebugFill kFills[] = {DebugFill::none, DebugFill::nan, DebugFill::huge};
    return {model_->config(), *threads_, dtype_, sequences, shape, kFills[++settings_ % 3]};
  }
  PagedShape shape(std::int64_t block_size) const {
    return {0, block_size, model_->config().kv_bytes_per_token(size_of(dtype_))};
  }

  std::vector<SequenceReport> run_all(const Kind& kind, std::span<const Request> asked, PagedShape shape,
                                      std::int64_t preempt_every) {
    const Cache cache = kind.make(setting(static_cast<std::int64_t>(asked.size()), shape));
    Report report = run(*model_, *cache.manager, *cache.store, asked,
                        {.keep_logits = true, .preempt_every = preempt_every});
    EXPECT_EQ(report.counters.preemptions > 0, preempt_every > 0);
    EXPECT_EQ(report.blocks.in_use, 0);
    return std::move(report.sequences);
  }

  /// Each request in a cache of its own, with just the blocks that it needs.
  void check_alone(const Kind& kind, std::int64_t block_size, std::int64_t preempt_every) {
    for (std::size_t n = 0; n < requests_.size(); ++n) {
      PagedShape own = shape(block_size);
      own.blocks = blocks_needed(own, requests_[n]);
      check(run_all(kind, {&requests_[n], 1}, own, preempt_every), n);
    }
  }

  /// All at once, with room for all; or, if sequences are to be preempted, with room for the longest only.
  void check_batched(const Kind& kind, std::int64_t block_size, std::int64_t preempt_every) {
    PagedShape common = shape(block_size);
    for (const Request& request : requests_) {
      const std::int64_t blocks = blocks_needed(common, request);
      common.blocks = preempt_every > 0 ? std::max(common.blocks, blocks) : common.blocks + blocks;
    }
    check(run_all(kind, requests_, common, preempt_every), 0);
  }

  /// `sequences` must be those of the right answers from number `first` on.
  void check(const std::vector<SequenceReport>& sequences, std::size_t first) {
    for (std::size_t n = 0; n < sequences.size(); ++n) {
      EXPECT_EQ(sequences[n].output_ids, right_[first + n].output_ids) << "prompt " << first + n;
      EXPECT_TRUE(same_bits(sequences[n].logits, right_[first + n].logits)) << "prompt " << first + n;
      EXPECT_EQ(sequences[n].finish_reason, "length");
    }
  }

  void check_every_way(std::span<const std::int64_t> block_sizes, std::initializer_list<int> threads,
                       DType dtype) {
    load(1, dtype);
    right_.clear();
    for (const Request& request : requests_)
      right_.push_back(run_all(kinds().front(), {&request, 1}, shape(1), 0).front());
    for (const int count : threads) {
      load(count, dtype);
      for (const Kind& kind : kinds()) {
        for (const std::int64_t block_size : kind.has_blocks ? block_sizes : block_sizes.first(1)) {
          for (const std::int64_t preempt_every : {0, 3}) {
            SCOPED_TRACE(kind.name + ", block size " + std::to_string(block_size) + ", " +
                         std::to_string(count) + " threads, preempted every " +
                         std::to_string(preempt_every));
            check_alone(kind, block_size, preempt_every);
            check_batched(kind, block_size, preempt_every);
            if (HasFailure()) return;
          }
        }
      }
    }
  }

  const std::vector<Request> requests_ = requests();
  std::vector<SequenceReport> right_;
  DType dtype_ = DType::f32;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Transformer> model_;
  std::size_t settings_ = 0;
};

TEST_P(SameBits, InEveryStepBlockSizeBatchThreadCountAndPreemption) {
  if (is_large()) {
    check_every_way(kTwoSizes, {1, 3}, DType::f32);
  } else {
    check_every_way(kBlockSizes, {1, 2, 3}, DType::f32);
  }
}

TEST_P(SameBits, AlsoInTheShortTypes) {
  if (is_large()) {
    check_every_way(kOneSize, {2}, DType::bf16);
  } else {
    for (const DType dtype : {DType::f16, DType::bf16}) check_every_way(kTwoSizes, {2}, dtype);
  }
}

TEST_P(SameBits, WhenAPromptIsComputedInChunks) {
  load(2, DType::f32);
  const Request& longest = requests_[3];
  const auto length = static_cast<std::int64_t>(longest.prompt_ids.size());
  right_ = run_all(kinds().front(), {&longest, 1}, shape(1), 0);
  for (const Kind& kind : kinds()) {
    for (const std::int64_t chunk :
         {std::int64_t{1}, std::int64_t{6}, std::int64_t{7}, std::int64_t{8}, length}) {
      PagedShape own = shape(7);
      own.blocks = own.blocks_for(length);
      const Cache cache = kind.make(setting(1, own));
      std::vector<float> logits;
      for (std::int64_t end = 0; end < length;) {
        end = std::min(length, end + chunk);
        const Work work{0, std::span(longest.prompt_ids).first(static_cast<std::size_t>(end))};
        const std::optional<PassPlan> plan = cache.manager->plan({&work, 1});
        ASSERT_TRUE(plan);
        model_->forward(*plan, *cache.store);
        cache.manager->commit(*plan);
        logits = model_->logits();
      }
      EXPECT_TRUE(same_bits(logits, right_.front().logits)) << kind.name << ", chunks of " << chunk;
    }
  }
}

std::vector<std::string> all_checkpoints() {
  std::vector<std::string> all = tiny_checkpoints();
  all.emplace_back("fairytale");
  return all;
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, SameBits, testing::ValuesIn(all_checkpoints()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace kvcache
