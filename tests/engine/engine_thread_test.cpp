// The door to the engine's thread. It carries out the orders of many threads, a full queue refuses, and every
// request hears how it ended, also when the engine is closed or fails. No test waits for a time: a listener
// holds the engine's thread where the test wants it.
#include "common/engine/engine_thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <latch>
#include <new>
#include <semaphore>

#include "common/base/error.h"
#include "tests/support/serving.h"

namespace kvcache {
namespace {

constexpr std::chrono::minutes kForEver{5};

/// A listener; another thread can wait for its events.
class Client {
 public:
  OnGenerationEvent listener() {
    return [this](const GenerationEvent& event) {
      const std::lock_guard lock(mutex_);
      answer_.hear(event);
      heard_.notify_all();
    };
  }
  Answer wait_for_end() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(heard_.wait_for(lock, kForEver, [this] { return answer_.summary.has_value(); }));
    return answer_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable heard_;
  Answer answer_;
};

/// A store whose pass number `fails_at` fails on the engine's thread, after `before_failure`.
class FailingStore final : public KvStore {
 public:
  FailingStore(KvStore& store, int fails_at, std::function<void()> before_failure)
      : store_(store), left_(fails_at), before_failure_(std::move(before_failure)) {}
  void begin(const PassPlan& plan) override {
    if (--left_ == 0) {
      before_failure_();
      throw RunError("the device is gone");
    }
    store_.begin(plan);
  }
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override {
    store_.store_and_attend(layer, heads, rows, out);
  }

 private:
  KvStore& store_;
  int left_;
  std::function<void()> before_failure_;
};

/// A manager that fails at a cancelled sequence, like a manager whose bookkeeping is broken.
class FailingManager final : public KvManager {
 public:
  explicit FailingManager(KvManager& manager) : manager_(manager) {}
  std::optional<PassPlan> plan(std::span<const Work> work) override { return manager_.plan(work); }
  void commit(const PassPlan& plan) override { manager_.commit(plan); }
  void abort(const PassPlan& plan) override { manager_.abort(plan); }
  void free(std::int32_t) override { throw std::logic_error("a block is held twice"); }
  std::int64_t capacity() const override { return manager_.capacity(); }
  KvMemoryReport memory() const override { return manager_.memory(); }

 private:
  KvManager& manager_;
};

class AnEngineThread : public testing::Test {
 protected:
  static constexpr std::int64_t kMaxRequests = 4;

  void start(
      int fails_at = 0, std::function<void()> before_failure = [] {}) {
    store_ = std::make_unique<FailingStore>(*cache_.store, fails_at, std::move(before_failure));
    engine_ = std::make_unique<Engine>(*model_, *cache_.manager, *store_, nullptr,
                                       SchedulerSettings{.max_batch_tokens = 16, .max_sequences = 4});
    door_ = std::make_unique<EngineThread>(*engine_, kMaxRequests);
  }
  void SetUp() override { start(); }
  void TearDown() override {
    if (!go_on_.try_wait()) go_on_.count_down();
    door_.reset();
  }

  static GenerationRequest request(std::int64_t length, std::int64_t tokens) {
    GenerationRequest result;
    for (std::int64_t n = 0; n < length; ++n)
      result.prompt_ids.push_back(static_cast<std::int32_t>(5 + n * 31) % 700);
    result.max_tokens = tokens;
    return result;
  }
  GenerationId submit(Client& client, const GenerationRequest& request) {
    return std::get<GenerationId>(door_->submit(request, client.listener()));
  }

  /// Submits a request and holds the engine's thread at its first token until `go_on_` is counted down.
  GenerationId hold(Client& client, std::int64_t tokens = 2) {
    const auto id = std::get<GenerationId>(
        door_->submit(request(3, tokens),
                      [this, answer = client.listener(), first = true](const GenerationEvent& event) mutable {
                        if (std::exchange(first, false)) {
                          held_.count_down();
                          go_on_.wait();
                        }
                        answer(event);
                      }));
    held_.wait();
    return id;
  }

  std::latch held_{1}, go_on_{1};
  ThreadPool threads_{1};
  std::unique_ptr<Transformer> model_ =
      reference_model("llama-mha", threads_, DType::f32, std::vector<std::int32_t>{});
  ServingCache cache_{Kind::sharing, 40, 4, model_->config(), threads_};
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineThread> door_;
};

TEST_F(AnEngineThread, AnswersManyThreadsAtOnce) {
  Client first;
  submit(first, request(9, 12));
  const std::vector<std::int32_t> expected = first.wait_for_end().ids();
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&] {
      for (int round = 0; round < 25; ++round) {
        Client client;
        submit(client, request(9, 12));
        EXPECT_EQ(client.wait_for_end().ids(), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(door_->wait_until_idle(kForEver));
  const EngineStatus status = door_->status(kForEver);
  EXPECT_EQ(status.totals.requests, 101);
  EXPECT_EQ(status.totals.generated_tokens, 101 * 12);
  EXPECT_EQ(status.blocks.in_use, 0);
  EXPECT_TRUE(status.running.empty());
}

TEST_F(AnEngineThread, RefusesAtOnceWhatIsWrong) {
  Client client;
  EXPECT_THROW(submit(client, request(0, 1)), InputError);
  GenerationRequest stops = request(2, 2);
  stops.stop = {"."};
  EXPECT_THROW(submit(client, stops), InputError) << "there is no tokenizer";
}

TEST_F(AnEngineThread, SaysThatTheQueueIsFullAndLaterThatItIsNot) {
  Client held;
  hold(held);
  std::vector<Client> clients(kMaxRequests - 1);
  for (Client& client : clients) submit(client, request(4, 3));
  Client refused;
  EXPECT_EQ(std::get<EngineThread::Refusal>(door_->submit(request(4, 3), refused.listener())),
            EngineThread::Refusal::queue_full);
  go_on_.count_down();
  for (Client& client : clients) EXPECT_EQ(client.wait_for_end().ids().size(), 3U);
  Client later;
  submit(later, request(4, 3));
  EXPECT_EQ(later.wait_for_end().reason(), "length");
}

TEST_F(AnEngineThread, HasRoomForAnotherOnceTheEndOfARequestIsTold) {
  std::vector<std::int64_t> there;
  Client client;
  const auto tell = client.listener();
  const auto submitted = door_->submit(request(4, 2), [&](const GenerationEvent& event) {
    there.push_back(door_->requests());
    tell(event);
  });
  ASSERT_TRUE(std::holds_alternative<GenerationId>(submitted));
  client.wait_for_end();
  EXPECT_EQ(there, (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(door_->max_requests(), kMaxRequests);
}

TEST_F(AnEngineThread, CancelsFromOtherThreadsWhatRunsAndWhatWaits) {
  Client running, waiting, neighbour;
  const GenerationId runs = hold(running, 100);
  const GenerationId waits = submit(waiting, request(3, 100));
  submit(neighbour, request(4, 9));
  door_->cancel(waits);
  door_->cancel(runs);
  door_->cancel(runs);
  door_->cancel(12345);
  go_on_.count_down();
  EXPECT_EQ(running.wait_for_end().reason(), "cancelled");
  EXPECT_EQ(running.wait_for_end().ids().size(), 1U);
  EXPECT_EQ(waiting.wait_for_end().reason(), "cancelled");
  EXPECT_TRUE(waiting.wait_for_end().ids().empty());
  EXPECT_EQ(neighbour.wait_for_end().ids().size(), 9U);
  ASSERT_TRUE(door_->wait_until_idle(kForEver));
  EXPECT_EQ(door_->status(kForEver).blocks.in_use, 0);
}

TEST_F(AnEngineThread, ShowsWhoRunsWhoWaitsAndWhatTheyHold) {
  constexpr auto kAtOnce = std::chrono::milliseconds(0);
  std::counting_semaphore<> reached(0), go_on(0);
  const auto submitted = door_->submit(request(3, 9), [&](const GenerationEvent&) {  // held at every token
    reached.release();
    go_on.acquire();
  });
  ASSERT_TRUE(std::holds_alternative<GenerationId>(submitted));
  reached.acquire();
  std::vector<Client> clients(3);
  for (Client& client : clients) submit(client, request(6, 40));
  EXPECT_TRUE(door_->status(kAtOnce).running.empty()) << "waits for nobody: this is from before the pass";
  EXPECT_EQ(door_->status(kAtOnce).running_count, 1);
  EXPECT_EQ(door_->status(kAtOnce).waiting, 3) << "they have just come";
  go_on.release();
  reached.acquire();  // in the second pass
  const EngineStatus first = door_->status(kAtOnce);
  ASSERT_EQ(first.running.size(), 1U);
  EXPECT_EQ(first.running[0].tokens, 3);
  EXPECT_EQ(first.running[0].block_table.size(), 1U);
  EXPECT_EQ(first.blocks.in_use, 1);
  EXPECT_EQ(first.running_count, 4) << "the counts are of the pass that is running";
  EXPECT_EQ(first.waiting, 0);
  go_on.release();
  reached.acquire();  // in the third
  const EngineStatus second = door_->status(kAtOnce);
  EXPECT_EQ(second.running.size(), 4U);
  EXPECT_EQ(second.waiting, 0);
  EXPECT_EQ(second.running[3].tokens, 3) << "the youngest has half of its prompt";
  EXPECT_EQ(second.blocks.in_use, 4 * 2) << "the third pass is planned: it completes that prompt";
  EXPECT_EQ(second.totals.generated_tokens, 1 + 3);
  EXPECT_GT(second.memory.used_bytes, 0);
  go_on.release(100);
  door_.reset();
}

TEST_F(AnEngineThread, TakesNothingNewOnceItIsClosedAndEndsWhatRuns) {
  Client running, late;
  submit(running, request(3, 30));
  door_->close();
  EXPECT_EQ(std::get<EngineThread::Refusal>(door_->submit(request(3, 3), late.listener())),
            EngineThread::Refusal::closed);
  EXPECT_TRUE(door_->wait_until_idle(kForEver));
  EXPECT_EQ(running.wait_for_end().ids().size(), 30U);
}

TEST_F(AnEngineThread, CancelsAll) {
  Client held, waiting, later;
  hold(held, 100);
  submit(waiting, request(3, 100));
  EXPECT_FALSE(door_->wait_until_idle(std::chrono::milliseconds(0)));
  door_->cancel_all();
  submit(later, request(3, 9));
  go_on_.count_down();
  EXPECT_EQ(held.wait_for_end().reason(), "cancelled");
  EXPECT_EQ(waiting.wait_for_end().reason(), "cancelled");
  EXPECT_EQ(later.wait_for_end().reason(), "length");
}

TEST_F(AnEngineThread, CancelsAllThatIsLeftWhenItGoes) {
  Client held, waiting;
  hold(held, 100);
  submit(waiting, request(3, 100));
  // The held pass goes on only while the door is being closed: the test tells a closed door from a full one.
  std::thread releases([this, door = door_.get()] {
    const auto closed = std::variant<GenerationId, EngineThread::Refusal>(EngineThread::Refusal::closed);
    while (door->submit(request(3, 100), [](const GenerationEvent&) {}) != closed) std::this_thread::yield();
    go_on_.count_down();
  });
  door_.reset();
  releases.join();
  EXPECT_EQ(held.wait_for_end().reason(), "cancelled");
  EXPECT_EQ(waiting.wait_for_end().reason(), "cancelled");
}

// HT9: an engine that has failed says so, and no request waits for ever.
TEST_F(AnEngineThread, TellsEveryRequestWhenTheEngineFails) {
  door_.reset();
  start(/*fails_at=*/3);
  Client held, waiting;
  hold(held, 100);
  submit(waiting, request(3, 100));
  go_on_.count_down();
  EXPECT_EQ(held.wait_for_end().reason(), "error");
  EXPECT_EQ(waiting.wait_for_end().reason(), "error");
  EXPECT_TRUE(door_->wait_until_idle(kForEver));
  EXPECT_EQ(door_->status(kForEver).failure, "the device is gone");
  Client late;
  EXPECT_EQ(std::get<EngineThread::Refusal>(door_->submit(request(3, 3), late.listener())),
            EngineThread::Refusal::closed);
  door_->cancel(1);
  door_->cancel_all();
  EXPECT_TRUE(door_->wait_until_idle(std::chrono::milliseconds(0))) << "a failed engine has nothing to do";
}

TEST_F(AnEngineThread, TellsAListenerThatCouldNotTakeTheEnd) {
  Client client;
  auto listener = [answer = client.listener(), fails = true](const GenerationEvent& event) mutable {
    if (!event.finish_reason.empty() && std::exchange(fails, false)) throw std::bad_alloc();
    answer(event);
  };
  static_cast<void>(door_->submit(request(3, 1), std::move(listener)));
  EXPECT_EQ(client.wait_for_end().reason(), "error");
  EXPECT_TRUE(door_->wait_until_idle(kForEver));
  EXPECT_EQ(door_->requests(), 0);
}

TEST_F(AnEngineThread, TouchesAFailedEngineForNoCancellationThatCameWithTheFailure) {
  door_.reset();
  Client cancelled, neighbour;
  GenerationId id = 0;
  start(/*fails_at=*/3, [&] {
    door_->cancel(id);
    door_->cancel_all();
  });
  id = hold(cancelled, 100);
  submit(neighbour, request(3, 100));
  go_on_.count_down();
  EXPECT_EQ(cancelled.wait_for_end().reason(), "error");
  EXPECT_EQ(neighbour.wait_for_end().reason(), "error");
  EXPECT_TRUE(door_->wait_until_idle(kForEver));
}

TEST_F(AnEngineThread, TellsThoseWhoseOrdersWereNotCarriedOutThatTheEngineHasFailed) {
  door_.reset();
  FailingManager manager(*cache_.manager);
  engine_ = std::make_unique<Engine>(*model_, manager, *store_, nullptr,
                                     SchedulerSettings{.max_batch_tokens = 16, .max_sequences = 4});
  door_ = std::make_unique<EngineThread>(*engine_, kMaxRequests);
  Client cancelled;
  const GenerationId id = hold(cancelled, 100);
  std::vector<Client> clients(kMaxRequests - 1);
  submit(clients[0], request(3, 4));
  door_->cancel(id);  // here the engine fails, and two orders have not been carried out
  GenerationRequest several = request(3, 4);
  several.samples = 2;
  submit(clients[1], several);
  submit(clients[2], request(3, 4));
  go_on_.count_down();
  EXPECT_EQ(cancelled.wait_for_end().reason(), "error");
  for (Client& client : clients) {
    const Answer answer = client.wait_for_end();
    for (const auto& [sample, output] : answer.samples) {
      EXPECT_EQ(output.reason, "error");
      EXPECT_EQ(output.error, "") << "the engine's fault";
    }
  }
  EXPECT_EQ(clients[1].wait_for_end().samples.size(), 2U);
  EXPECT_TRUE(door_->wait_until_idle(kForEver));
  EXPECT_EQ(door_->status(kForEver).failure, "a block is held twice");
  EXPECT_EQ(door_->requests(), 0);
  door_.reset();
}

}  // namespace
}  // namespace kvcache
