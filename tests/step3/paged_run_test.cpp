// Many sequences in one small pool, seen from outside: which are preempted, that the oldest always gets on,
// that no token is told twice, and that every way to end gives all blocks back.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "common/engine/run.h"
#include "step3_paged/paged_kv_store.h"
#include "step3_paged/paged_manager.h"
#include "tests/support/reference_model.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBlockSize = 4;

/// A manager that notes which sequences gave blocks back, and how often a plan was asked for.
class WatchedManager final : public KvManager {
 public:
  explicit WatchedManager(std::int64_t blocks) : manager_({blocks, kBlockSize, 1}) {}

  std::optional<PassPlan> plan(std::span<const Work> work) override {
    ++plans;
    std::optional<PassPlan> result = manager_.plan(work);
    if (!result) manager_.check_invariants();
    return result;
  }
  void commit(const PassPlan& plan) override {
    manager_.commit(plan);
    manager_.check_invariants();
  }
  void abort(const PassPlan& plan) override { manager_.abort(plan); }
  void free(std::int32_t sequence) override {
    manager_.free(sequence);
    manager_.check_invariants();
    freed.push_back(sequence);
  }
  std::int64_t capacity() const override { return manager_.capacity(); }
  KvMemoryReport memory() const override { return manager_.memory(); }
  std::vector<std::int32_t> block_table(std::int32_t sequence) const override {
    return manager_.block_table(sequence);
  }
  BlocksReport blocks() const override { return manager_.blocks(); }

  int plans = 0;
  std::vector<std::int32_t> freed;  // in order: preempted or ended

 private:
  PagedManager manager_;
};

class PagedRun : public testing::Test {
 protected:
  void load(std::vector<std::int32_t> eos_ids = {}) {
    model_ = reference_model("llama-mha", threads_, DType::f32, eos_ids);
  }

  static Request request(std::int64_t length, std::int64_t tokens, std::int32_t first = 5) {
    Request result;
    for (std::int64_t n = 0; n < length; ++n)
      result.prompt_ids.push_back(static_cast<std::int32_t>(first + n * 31) % 700);
    result.max_tokens = tokens;
    return result;
  }

  Report run_in(WatchedManager& manager, const std::vector<Request>& requests, OnToken on_token = {}) {
    const PagedShape shape{manager.blocks().total, kBlockSize, 1};
    PagedKvStore store(model_->config(), shape, DType::f32, {AttentionPath::paged, DebugFill::nan}, threads_);
    Report report = run(*model_, manager, store, requests, {.on_token = std::move(on_token)});
    EXPECT_EQ(report.blocks.in_use, 0);
    EXPECT_EQ(report.blocks.free, report.blocks.total);
    return report;
  }

  std::vector<std::int32_t> alone(const Request& request) {
    WatchedManager manager(200);
    return run_in(manager, {request}).sequences[0].output_ids;
  }

  ThreadPool threads_{1};
  std::unique_ptr<Transformer> model_;
};

TEST_F(PagedRun, TheYoungestIsPreemptedAndTheOldestNever) {
  load();
  const std::vector<Request> requests{request(4, 24), request(4, 24), request(4, 24)};
  WatchedManager manager(10);  // three at the start, and seven for the first alone
  const Report report = run_in(manager, requests);
  ASSERT_GT(report.counters.preemptions, 0);
  EXPECT_EQ(manager.freed.front(), 2);
  EXPECT_EQ(std::count(manager.freed.begin(), manager.freed.end(), 0), 1) << "the oldest only ends";
  for (std::size_t n = 0; n < manager.freed.size() && manager.freed[n] != 0; ++n)
    EXPECT_GT(manager.freed[n], 0);
}

TEST_F(PagedRun, TheOldestGetsATokenInEveryRound) {
  load();
  const std::vector<Request> requests{request(9, 30), request(3, 30), request(20, 30), request(1, 30),
                                      request(7, 30)};
  WatchedManager manager(13);  // 20 + 29 tokens need all of them
  std::vector<std::size_t> order;
  const Report report =
      run_in(manager, requests, [&](std::size_t index, std::int32_t) { order.push_back(index); });
  std::vector<int> left(5, 30);
  std::size_t oldest = 0;
  int others = 0;
  for (const std::size_t index : order) {
    others = index == oldest ? 0 : others + 1;
    EXPECT_LE(others, 8) << "sequence " << oldest << " waits while others go on";
    --left[index];
    while (oldest < left.size() && left[oldest] == 0) ++oldest;
  }
  EXPECT_EQ(oldest, 5U);
  // A sequence comes back only with room for its next token, so each stay gives at least one token.
  EXPECT_LE(report.counters.preemptions, 4 * 30);
}

TEST_F(PagedRun, EveryIdIsToldOnceInOrderAndIsThatOfTheSoloRun) {
  load();
  std::vector<Request> requests;
  for (int n = 0; n < 12; ++n) requests.push_back(request(1 + n * 5 % 17, 3 + n * 7 % 20, n));
  for (const std::int64_t blocks : {9, 10, 13, 20, 40}) {
    WatchedManager manager(blocks);
    std::map<std::size_t, std::vector<std::int32_t>> told;
    const Report report =
        run_in(manager, requests, [&](std::size_t index, std::int32_t id) { told[index].push_back(id); });
    for (std::size_t n = 0; n < requests.size(); ++n) {
      EXPECT_EQ(report.sequences[n].output_ids, alone(requests[n])) << blocks << " blocks, request " << n;
      EXPECT_EQ(told[n], report.sequences[n].output_ids);
    }
  }
}

TEST_F(PagedRun, ARequestThatDoesNotFitNowWaitsAndThenRuns) {
  load();
  const std::vector<Request> requests{request(13, 3), request(10, 2)};
  WatchedManager manager(5);  // four for the first, three for the second
  const Report report = run_in(manager, requests);
  EXPECT_EQ(report.counters.preemptions, 0);
  EXPECT_EQ(report.sequences[1].output_ids, alone(requests[1]));
  EXPECT_EQ(report.kv_memory.reserved_bytes, 4 * kBlockSize) << "never both at once";
}

TEST_F(PagedRun, EveryWayToEndAtEveryLengthGivesAllBlocksBack) {
  for (std::int64_t length = 1; length <= 2 * kBlockSize + 1; ++length) {
    load();
    const std::vector<std::int32_t> ids = alone(request(length, 3));
    const std::int32_t second = ids[1];
    if (second == ids[0]) continue;
    for (const std::int64_t blocks : {(length + 3) / 4, std::int64_t{5}}) {
      WatchedManager by_length(5);
      EXPECT_EQ(run_in(by_length, {request(length, 2)}).sequences[0].finish_reason, "length");
      WatchedManager by_capacity((length + 3) / 4);
      EXPECT_EQ(run_in(by_capacity, {request(length, 9)}).sequences[0].finish_reason, "capacity");
      load({second});
      WatchedManager by_id(blocks + 1);
      const Report stopped = run_in(by_id, {request(length, 9), request(length, 9)});
      for (const SequenceReport& sequence : stopped.sequences) {
        EXPECT_EQ(sequence.finish_reason, "stop");
        EXPECT_EQ(sequence.output_ids, (std::vector<std::int32_t>{ids[0], second}));
      }
      load();
    }
  }
}

// Pitfall 13: nothing may be tried for ever.
TEST_F(PagedRun, ASequenceThatOutgrowsThePoolEndsInABoundedNumberOfTries) {
  load();
  WatchedManager manager(4);
  const Report report = run_in(manager, {request(5, 500), request(3, 500), request(16, 500)});
  EXPECT_LT(manager.plans, 200);
  const std::int64_t lengths[] = {5, 3, 16};
  for (std::size_t n = 0; n < 3; ++n) {
    EXPECT_EQ(report.sequences[n].finish_reason, "capacity");
    EXPECT_EQ(static_cast<std::int64_t>(report.sequences[n].output_ids.size()), 16 - lengths[n] + 1);
  }
}

TEST_F(PagedRun, APromptThatCanNeverFitEndsWithoutAnIdAndLetsTheOthersRun) {
  load();
  WatchedManager manager(4);
  const Report report = run_in(manager, {request(5, 4), request(17, 4), request(3, 4)});
  EXPECT_EQ(report.sequences[1].finish_reason, "capacity");
  EXPECT_TRUE(report.sequences[1].output_ids.empty());
  EXPECT_EQ(report.sequences[0].output_ids, alone(request(5, 4)));
  EXPECT_EQ(report.sequences[2].output_ids, alone(request(3, 4)));
}

}  // namespace
}  // namespace kvcache
