/// @file
/// Engines of every kind on a tiny model, and listeners that keep their events.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "common/engine/run.h"
#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/paged_kv_store.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "step4_prefix_cache/tiered_kv_store.h"
#include "tests/support/reference_model.h"

namespace kvcache {

/// The events that a listener got of one request, checked for their order.
struct Answer {
  struct Output {
    std::vector<std::int32_t> ids;
    std::string text, reason, error;
  };
  std::map<std::int64_t, Output> samples;
  std::optional<GenerationSummary> summary;

  void hear(const GenerationEvent& event) {
    EXPECT_FALSE(summary) << "something is told after the end";
    Output& output = samples[event.sample];
    EXPECT_EQ(output.reason, "") << "something is told of a sample that has ended";
    if (event.id) output.ids.push_back(*event.id);
    output.text += event.text;
    output.reason = event.finish_reason;
    output.error = event.error;
    summary = event.summary;
  }
  const std::vector<std::int32_t>& ids() const { return samples.at(0).ids; }
  const std::string& reason() const { return samples.at(0).reason; }
};

/// The steps that serve.
enum class Kind : std::uint8_t { flat, paged, sharing, tiered };
inline constexpr Kind kAllKinds[] = {Kind::flat, Kind::paged, Kind::sharing, Kind::tiered};
inline std::string name_of(Kind kind) {
  const char* names[] = {"flat", "paged", "sharing", "tiered"};
  return names[static_cast<std::size_t>(kind)];
}

/// A manager whose promises are checked after every call. Between `plan` and the `commit` or `abort` after it
/// there must be no other call.
template <typename Manager>
class CheckedManager final : public KvManager {
 public:
  explicit CheckedManager(std::unique_ptr<Manager> manager) : manager_(std::move(manager)) {}

  std::optional<PassPlan> plan(std::span<const Work> work) override {
    expect_no_plan();
    std::optional<PassPlan> plan = manager_->plan(work);
    planned_ = plan.has_value();
    if (!plan) check();
    return plan;
  }
  void commit(const PassPlan& plan) override {
    manager_->commit(plan);
    planned_ = false;
    check();
  }
  void abort(const PassPlan& plan) override {
    manager_->abort(plan);
    planned_ = false;
    check();
  }
  void free(std::int32_t sequence) override {
    expect_no_plan();
    manager_->free(sequence);
    check();
  }
  void discard(const Work& work, std::int64_t cached_tokens) override {
    expect_no_plan();
    manager_->discard(work, cached_tokens);
    check();
  }
  void fork(std::int32_t parent, std::int32_t child) override {
    expect_no_plan();
    manager_->fork(parent, child);
    check();
  }
  void pin(std::int32_t sequence) override {
    expect_no_plan();
    manager_->pin(sequence);
    check();
  }
  bool can_fork() const override { return manager_->can_fork(); }
  std::int64_t capacity() const override { return manager_->capacity(); }
  std::int64_t capacity_for(std::span<const std::int32_t> token_ids, std::string_view salt) const override {
    return manager_->capacity_for(token_ids, salt);
  }
  KvMemoryReport memory() const override { return manager_->memory(); }
  std::vector<std::int32_t> block_table(std::int32_t sequence) const override {
    return manager_->block_table(sequence);
  }
  std::int64_t cached_tokens(std::int32_t sequence) const override {
    return manager_->cached_tokens(sequence);
  }
  BlocksReport blocks() const override { return manager_->blocks(); }
  CountersReport counters() const override { return manager_->counters(); }
  CacheState state() const override { return manager_->state(); }

 private:
  void expect_no_plan() const { EXPECT_FALSE(planned_) << "a plan is neither committed nor aborted"; }
  void check() const { ASSERT_NO_THROW(manager_->check_invariants()); }

  std::unique_ptr<Manager> manager_;
  bool planned_ = false;
};

/// A step's cache of `blocks` blocks of `block_size` tokens. Step 2 gets reservations as long as 16 blocks.
struct ServingCache {
  ServingCache(Kind kind, std::int64_t blocks, std::int64_t block_size, const ModelConfig& config,
               ThreadPool& threads) {
    const std::int64_t bytes = config.kv_bytes_per_token(4);
    if (kind == Kind::flat) {
      const FlatCacheShape shape{std::max<std::int64_t>(1, blocks / 16),
                                 block_size * std::min<std::int64_t>(blocks, 16), bytes};
      keep(std::make_unique<FlatCacheManager>(shape));
      store = std::make_unique<FlatCacheStore>(config, shape, DType::f32, threads);
      return;
    }
    const PagedShape shape{blocks, block_size, bytes};
    // Fresh blocks hold NaN, so a read of an empty slot gives wrong ids.
    const PagedKvStore::Settings settings{AttentionPath::paged, DebugFill::nan};
    const std::int64_t host_blocks = kind == Kind::tiered ? blocks / 2 : 0;
    if (kind == Kind::paged) {
      keep(std::make_unique<PagedManager>(shape));
      store = std::make_unique<PagedKvStore>(config, shape, DType::f32, settings, threads);
    } else {
      keep(std::make_unique<PrefixCachingManager>(shape, SharingSettings{.host_blocks = host_blocks}));
      store = std::make_unique<TieredKvStore>(config, shape, host_blocks, DType::f32, settings, threads);
    }
  }

  std::unique_ptr<KvManager> manager;
  std::unique_ptr<KvStore> store;

 private:
  template <typename Manager>
  void keep(std::unique_ptr<Manager> made) {
    manager = std::make_unique<CheckedManager<Manager>>(std::move(made));
  }
};

/// An engine at work, pass by pass, and all events of its listeners.
class ServingPlay {
 public:
  ServingPlay(Kind kind, std::int64_t blocks, Transformer& model, ThreadPool& threads,
              const SchedulerSettings& settings, const Tokenizer* tokenizer = nullptr,
              std::int64_t block_size = 4)
      : cache(kind, blocks, block_size, model.config(), threads),
        engine(model, *cache.manager, *cache.store, tokenizer, settings) {}

  GenerationId submit(const GenerationRequest& request) {
    engine.check(request);
    const GenerationId id = ++last_;
    engine.add(id, request, [this, id](const GenerationEvent& event) { answers[id].hear(event); });
    return id;
  }
  bool step() {
    const bool worked = engine.run_pass();
    check();
    return worked;
  }
  void run() {
    while (step()) {
    }
    EXPECT_EQ(held(), 0);
  }
  void cancel(GenerationId id) {
    engine.cancel(id);
    check();
  }

  /// Expects that running sequences and the pinned prefix hold memory, and that the rest is free. Counts step
  /// 2's reservations as blocks.
  void check() const {
    ASSERT_NO_THROW(engine.scheduler().check_invariants());
    const CacheState state = cache.manager->state();
    std::set<std::int32_t> holders, entitled;
    for (const auto& [id, sequence] : state.sequences) holders.insert(id);
    for (const ScheduledSequence* sequence : engine.scheduler().running()) entitled.insert(sequence->id);
    holders.erase(0);  // the pinned prefix
    ASSERT_EQ(holders, entitled);
    const auto held = std::ranges::count_if(state.references, [](std::int32_t n) { return n > 0; });
    ASSERT_EQ(held + std::ssize(state.free), std::ssize(state.references));
  }
  /// Bytes of K and V that sequences hold.
  std::int64_t held() const { return cache.manager->memory().used_bytes; }

  ServingCache cache;
  Engine engine;
  std::map<GenerationId, Answer> answers;

 private:
  GenerationId last_ = 0;
};

}  // namespace kvcache
