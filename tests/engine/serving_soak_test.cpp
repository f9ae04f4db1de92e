// Many clients at once on the shipped model. They share a prompt, and the pool holds the prompts of some
// clients without their answers, so sequences are preempted. Every answer is that of its solo run, and
// nothing is lost. server_soak.py runs more and longer rounds.
#include <gtest/gtest.h>

#include <random>

#include "common/engine/engine_thread.h"
#include "tests/support/serving.h"

namespace kvcache {
namespace {

constexpr int kClients = 12, kRounds = 2;
constexpr std::int64_t kSharedTokens = 200, kOwnTokens = 24, kMostOutputs = 40, kBlockSize = 16;

/// The request of one client in one round.
GenerationRequest request_of(int client, int round) {
  std::mt19937 random(static_cast<std::uint32_t>(client * 1000 + round));
  GenerationRequest request;
  for (std::int64_t n = 0; n < kSharedTokens; ++n)
    request.prompt_ids.push_back(static_cast<std::int32_t>((n * 7919 + 1) % 2000));
  for (std::int64_t n = 1 + static_cast<std::int64_t>(random() % kOwnTokens); n > 0; --n)
    request.prompt_ids.push_back(static_cast<std::int32_t>(random() % 2000));
  request.max_tokens = 1 + static_cast<std::int64_t>(random() % kMostOutputs);
  request.ignore_eos = true;
  return request;
}
bool hangs_up(int client, int round) {
  return (client * kRounds + round) % 12 == 7;
}

/// Blocks for the prompts of a quarter of the clients, or of all clients where the common part is stored
/// once. The blocks of the answers are missing.
std::int64_t blocks_for_prompts(Kind kind) {
  const std::int64_t common = kSharedTokens / kBlockSize;
  const std::int64_t own = (kSharedTokens + kOwnTokens) / kBlockSize - common;
  return kind == Kind::tiered ? common + kClients * own : kClients / 4 * (common + own);
}

class ServingSoak : public testing::TestWithParam<Kind> {
 protected:
  std::vector<std::int32_t> alone(const GenerationRequest& asked) {
    ServingCache cache(Kind::sharing, 40, kBlockSize, model_->config(), threads_);
    const Request request{asked.prompt_ids, asked.max_tokens, asked.ignore_eos, asked.sampling};
    return run(*model_, *cache.manager, *cache.store, {&request, 1}).sequences[0].output_ids;
  }

  ThreadPool threads_{2};
  std::unique_ptr<Transformer> model_ = reference_model("fairytale", threads_);
};

/// A client: submits, listens, sometimes hangs up, and submits again.
struct Client {
  std::mutex mutex;
  std::condition_variable heard;
  std::vector<Answer> answers = std::vector<Answer>(kRounds);

  void play(int number, EngineThread& door) {
    for (int round = 0; round < kRounds; ++round) {
      Answer& answer = answers[static_cast<std::size_t>(round)];
      const auto id =
          std::get<GenerationId>(door.submit(request_of(number, round), [&](const GenerationEvent& event) {
            const std::lock_guard lock(mutex);
            answer.hear(event);
            heard.notify_one();
          }));
      std::unique_lock lock(mutex);
      if (hangs_up(number, round)) {
        heard.wait(lock, [&] { return !answer.samples.empty(); });
        door.cancel(id);
      }
      heard.wait(lock, [&] { return answer.summary.has_value(); });
    }
  }
};

TEST_P(ServingSoak, GivesEverySurvivingRequestItsSoloAnswer) {
  ServingCache cache(GetParam(), blocks_for_prompts(GetParam()), kBlockSize, model_->config(), threads_);
  Engine engine(*model_, *cache.manager, *cache.store, nullptr,
                {.max_batch_tokens = 256, .max_sequences = kClients});
  std::vector<Client> clients(kClients);
  {
    EngineThread door(engine, kClients);
    std::vector<std::thread> threads;
    for (int number = 0; number < kClients; ++number)
      threads.emplace_back([&, number] { clients[static_cast<std::size_t>(number)].play(number, door); });
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(door.wait_until_idle(std::chrono::minutes(1)));
    EXPECT_EQ(door.status(std::chrono::minutes(1)).failure, "");
  }
  EXPECT_EQ(cache.manager->memory().used_bytes, 0);
  EXPECT_EQ(engine.totals().requests, kClients * kRounds);
  EXPECT_GT(engine.scheduler().preemptions(), 0) << "the pool holds all answers";
  int compared = 0;
  for (int number = 0; number < kClients; ++number) {
    for (int round = 0; round < kRounds; ++round) {
      const Answer& answer =
          clients[static_cast<std::size_t>(number)].answers[static_cast<std::size_t>(round)];
      if (answer.reason() == "cancelled" && hangs_up(number, round)) continue;
      EXPECT_EQ(answer.reason(), "length");
      EXPECT_EQ(answer.ids(), alone(request_of(number, round))) << "client " << number << ", round " << round;
      ++compared;
    }
  }
  EXPECT_GE(compared, kClients * kRounds * 9 / 10);
  EXPECT_EQ(cache.manager->counters().prefix_hits > 0, GetParam() == Kind::tiered);
}

INSTANTIATE_TEST_SUITE_P(Steps, ServingSoak, testing::Values(Kind::paged, Kind::tiered),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace kvcache
