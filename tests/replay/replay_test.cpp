// A trace in virtual time. Small traces have their right values by hand; the hit shares of longer ones are
// those of a plain model of an LRU prefix cache.
#include "common/replay/replay.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/error.h"
#include "common/replay/made_traffic.h"
#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {
namespace {

constexpr std::int64_t kBytesPerToken = 64;

EngineParts flat(std::int64_t reservations, std::int64_t max_seq_len) {
  return {std::make_unique<FlatCacheManager>(FlatCacheShape{reservations, max_seq_len, kBytesPerToken})};
}
EngineParts paged(std::int64_t blocks, std::int64_t block_size = 4) {
  return {std::make_unique<PagedManager>(PagedShape{blocks, block_size, kBytesPerToken})};
}
EngineParts sharing(std::int64_t blocks, std::int64_t block_size = 4, std::int64_t host_blocks = 0) {
  auto manager = std::make_unique<PrefixCachingManager>(PagedShape{blocks, block_size, kBytesPerToken},
                                                        SharingSettings{.host_blocks = host_blocks});
  const PrefixCachingManager& cache = *manager;
  return {std::move(manager), [&cache](std::span<const std::int32_t> ids) { return cache.peek(ids); }};
}

/// A trace in blocks of 4 in which no prompt shares a block with another.
Traffic apart(std::vector<TrafficRequest> requests) {
  Traffic traffic{.block_size = 4, .requests = std::move(requests)};
  std::int32_t block = 0;
  for (TrafficRequest& request : traffic.requests) {
    for (std::int64_t left = request.input_length; left > 0; left -= 4) request.blocks.push_back(block++);
  }
  return traffic;
}

ReplayReport replay_alone(const Traffic& traffic, EngineParts parts, const ReplaySettings& settings) {
  return replay(traffic, {&parts, 1}, settings);
}

ReplaySettings settings_of(std::int64_t rows, std::int64_t sequences, double pass_ms) {
  return {.scheduler = {.max_batch_tokens = rows, .max_sequences = sequences},
          .cost = {.constant_ms = pass_ms}};
}

// Times

// Passes of 8 rows, two sequences, 10 ms:
//   0 to 10  the first 8 tokens of request 0
//  10 to 20  its last 2, all 4 of request 1, which came at 5
//  20 to 30  a row of each; request 2, which came at 12, has no seat; request 1 ends
//  30 to 40  a row of request 0, all 3 of request 2; both end
class ReplayByHand : public testing::Test {
 protected:
  const Traffic traffic_ = apart({{.timestamp_ms = 0, .input_length = 10, .output_length = 3},
                                  {.timestamp_ms = 5, .input_length = 4, .output_length = 2},
                                  {.timestamp_ms = 12, .input_length = 3, .output_length = 1}});
  const ReplayReport report_ = replay_alone(traffic_, paged(100), settings_of(8, 2, 10));
};

TEST_F(ReplayByHand, Drained) {
  const ReplayFigures& drained = report_.drained;
  EXPECT_EQ(drained.at_ms, 40);
  EXPECT_EQ(drained.done, 3);
  EXPECT_EQ(drained.refused + drained.waiting + drained.running, 0);
  EXPECT_EQ(drained.passes, 4);
  EXPECT_EQ(drained.most_sequences, 2);
  EXPECT_DOUBLE_EQ(drained.mean_sequences, (1 + 2 + 2 + 2) * 10 / 40.0);
  EXPECT_EQ(drained.busy_share, 1);
  EXPECT_EQ(drained.computed_tokens, 8 + 6 + 2 + 4);
  EXPECT_EQ(drained.recomputed_tokens, 0);
  EXPECT_EQ(drained.generated_tokens, 6);
  EXPECT_DOUBLE_EQ(drained.generated_per_s(), 150);
  EXPECT_EQ(drained.input_tokens, 17);
  EXPECT_EQ(drained.input_blocks, 2 + 1 + 0) << "full ones";
  EXPECT_EQ(drained.found_tokens, 0);
  EXPECT_TRUE(report_.meets_slo);
}

TEST_F(ReplayByHand, Latencies) {
  const Spread& first = report_.drained.first_token_ms;  // 20, 20 - 5, 40 - 12
  EXPECT_EQ(first.count, 3);
  EXPECT_DOUBLE_EQ(first.mean, (20 + 15 + 28) / 3.0);
  EXPECT_EQ(first.median, 20);
  EXPECT_EQ(first.p90, 28);
  EXPECT_EQ(first.p99, 28);
  const Spread& next = report_.drained.output_token_ms;  // (40 - 20) / 2, (30 - 20) / 1, none
  EXPECT_EQ(next.count, 2);
  EXPECT_EQ(next.mean, 10);
}

TEST_F(ReplayByHand, AtTheLastArrival) {
  const ReplayFigures& then = report_.at_last_arrival;  // in the second pass
  EXPECT_EQ(then.at_ms, 12);
  EXPECT_EQ(then.done, 0);
  EXPECT_EQ(then.refused, 0);
  EXPECT_EQ(then.running, 2);
  EXPECT_EQ(then.waiting, 1) << "it has just come";
  EXPECT_EQ(then.passes, 2) << "begun";
  EXPECT_EQ(then.input_tokens, 14);
  EXPECT_EQ(then.first_token_ms.count, 0) << "the pass that gives them has not ended";
  EXPECT_EQ(then.output_token_ms.count, 0);
}

TEST_F(ReplayByHand, AtTheLastArrivalAPassThatRunsCountsForItsTimeSoFar) {
  const ReplayFigures& then = report_.at_last_arrival;
  EXPECT_DOUBLE_EQ(then.busy_share, 1);
  EXPECT_DOUBLE_EQ(then.mean_sequences, (10 * 1 + 2 * 2) / 12.0);
  EXPECT_EQ(then.generated_tokens, 0) << "its outputs come at its end";
}

TEST(Replay, CountsWhatEndsAsTheLastRequestComes) {
  const ReplayReport report =
      replay_alone(apart({{.timestamp_ms = 0, .input_length = 2, .output_length = 1},
                          {.timestamp_ms = 10, .input_length = 2, .output_length = 1}}),
                   paged(10), settings_of(8, 2, 10));
  EXPECT_EQ(report.at_last_arrival.done, 1);
  EXPECT_EQ(report.at_last_arrival.waiting, 1);
  EXPECT_EQ(report.at_last_arrival.first_token_ms.count, 1);
  EXPECT_EQ(report.drained.at_ms, 20);
}

TEST(Replay, IdleTimeIsTime) {
  const ReplayReport report =
      replay_alone(apart({{.timestamp_ms = 30, .input_length = 4, .output_length = 1},
                          {.timestamp_ms = 990, .input_length = 4, .output_length = 1}}),
                   paged(10), settings_of(8, 2, 10));
  EXPECT_EQ(report.drained.at_ms, 1000);
  EXPECT_DOUBLE_EQ(report.drained.busy_share, 0.02);
  EXPECT_DOUBLE_EQ(report.drained.mean_sequences, 0.02);
  EXPECT_DOUBLE_EQ(report.drained.generated_per_s(), 2);
  EXPECT_EQ(report.drained.first_token_ms.mean, 10);
  EXPECT_DOUBLE_EQ(report.at_last_arrival.busy_share, 10 / 990.0);
}

TEST(Replay, TheRateBringsArrivalsTogether) {
  ReplaySettings settings = settings_of(8, 1, 10);
  settings.rate = 4;
  const ReplayReport report =
      replay_alone(apart({{.timestamp_ms = 0, .input_length = 4, .output_length = 1},
                          {.timestamp_ms = 20, .input_length = 4, .output_length = 1}}),
                   paged(10), settings);
  EXPECT_EQ(report.at_last_arrival.at_ms, 5);
  EXPECT_EQ(report.drained.at_ms, 20);
  EXPECT_EQ(report.drained.first_token_ms.p99, 15);
}

TEST(Replay, SerialRequestsComeOneAfterTheOther) {
  ReplaySettings settings = settings_of(8, 4, 10);
  settings.serial = true;
  const ReplayReport report = replay_alone(apart({{.timestamp_ms = 0, .input_length = 12},
                                                  {.timestamp_ms = 0, .input_length = 4},
                                                  {.timestamp_ms = 500'000, .input_length = 4}}),
                                           paged(10), settings);
  EXPECT_EQ(report.at_last_arrival.at_ms, 30);
  EXPECT_EQ(report.drained.at_ms, 40);
  EXPECT_EQ(report.drained.passes, 4);
  EXPECT_EQ(report.drained.most_sequences, 1);
  EXPECT_EQ(report.drained.done, 3);
  EXPECT_EQ(report.drained.generated_tokens, 0);
  EXPECT_EQ(report.drained.first_token_ms.count, 0) << "nothing is generated";
}

// Refusals

TEST(Replay, CountsRequestsThatWaitRunAndAreRefused) {
  // One reservation of 20 tokens. Request 0 takes the passes 0 to 10 ms, request 1 two passes after it.
  const ReplayReport report =
      replay_alone(apart({{.timestamp_ms = 0, .input_length = 4, .output_length = 10},
                          {.timestamp_ms = 1, .input_length = 4, .output_length = 2},
                          {.timestamp_ms = 2, .input_length = 18, .output_length = 4}}),
                   flat(1, 20), settings_of(32, 4, 1));
  const ReplayFigures& then = report.at_last_arrival;
  EXPECT_EQ(then.refused, 1);
  EXPECT_EQ(then.waiting, 1);
  EXPECT_EQ(then.running, 1);
  EXPECT_EQ(then.done, 0);
  EXPECT_EQ(then.input_tokens, 4);
  const ReplayFigures& drained = report.drained;
  EXPECT_EQ(drained.done, 2);
  EXPECT_EQ(drained.refused, 1);
  EXPECT_EQ(drained.at_ms, 12);
  EXPECT_EQ(drained.most_sequences, 1);
  EXPECT_EQ(drained.input_tokens, 8) << "of those that were admitted";
  EXPECT_EQ(drained.input_blocks, 0) << "step 2 has none";
  EXPECT_EQ(drained.found_block_share(), 0);
  EXPECT_EQ(drained.first_token_ms.count, 2);
  EXPECT_EQ(drained.first_token_ms.p99, 10) << "request 1: 11 - 1";
}

TEST(Replay, AReservationOfJustTheLongestRequestHoldsIt) {
  const Traffic traffic = apart({{.input_length = 18, .output_length = 3}});
  EXPECT_EQ(replay_alone(traffic, flat(1, 20), settings_of(32, 4, 1)).drained.done, 1);
  EXPECT_EQ(replay_alone(traffic, flat(1, 19), settings_of(32, 4, 1)).drained.refused, 1);
  EXPECT_EQ(replay_alone(traffic, paged(5), settings_of(32, 4, 1)).drained.done, 1);
  EXPECT_EQ(replay_alone(traffic, paged(4), settings_of(32, 4, 1)).drained.refused, 1);
  EXPECT_EQ(replay_alone(traffic, sharing(5), settings_of(32, 4, 1)).drained.done, 1);
  EXPECT_EQ(replay_alone(traffic, sharing(4), settings_of(32, 4, 1)).drained.refused, 1);
}

TEST(Replay, WithoutAnyReservationAllAreRefused) {
  std::int64_t passes = 0;
  EngineParts parts = flat(0, 1000);
  const ReplayReport report = replay(apart({{.timestamp_ms = 0, .input_length = 4, .output_length = 2},
                                            {.timestamp_ms = 3, .input_length = 4, .output_length = 2},
                                            {.timestamp_ms = 3000, .input_length = 4, .output_length = 2}}),
                                     {&parts, 1}, settings_of(8, 2, 10), [&](std::int64_t) { ++passes; });
  EXPECT_EQ(report.at_last_arrival.waiting, 0) << "they are refused at once";
  EXPECT_EQ(report.drained.refused, 3);
  EXPECT_EQ(report.drained.done + report.drained.waiting + report.drained.running, 0);
  EXPECT_EQ(report.drained.passes, 0);
  EXPECT_EQ(passes, 0) << "no pass was computed";
  EXPECT_EQ(report.drained.at_ms, 3000);
  EXPECT_EQ(report.drained.found_share(), 0);
  EXPECT_EQ(report.drained.generated_per_s(), 0);
  EXPECT_EQ(report.memory.pool_bytes, 0);
}

// Preemption

// Two requests of 4 + 9 tokens in 4 blocks. From the length 9 on they need 3 blocks each, so the sixth pass
// preempts request 1, which has computed 8 tokens. Request 0 ends with the ninth pass.
const Traffic kTwoThatGrow =
    apart({{.input_length = 4, .output_length = 9}, {.input_length = 4, .output_length = 9}});

TEST(Replay, CountsWhatIsComputedAgainAfterAPreemption) {
  const ReplayReport report = replay_alone(kTwoThatGrow, paged(4), settings_of(16, 2, 1));
  const ReplayFigures& drained = report.drained;
  EXPECT_EQ(drained.counters.preemptions, 1);
  EXPECT_EQ(drained.passes, 9 + 4);
  EXPECT_EQ(drained.recomputed_tokens, 8);
  EXPECT_EQ(drained.computed_tokens, 12 + 12 + 8);
  EXPECT_EQ(drained.generated_tokens, 18);
  EXPECT_DOUBLE_EQ(drained.mean_sequences, (5 * 2 + 8) / 13.0);
  // Request 0: a token each ms. Request 1: the first at 1, the last at 13.
  EXPECT_DOUBLE_EQ(drained.output_token_ms.mean, (1 + 12 / 8.0) / 2);
}

TEST(Replay, StepFourComputesAgainOnlyWhatWasEvicted) {
  // Request 0 takes the second of the two blocks that request 1 has left.
  const ReplayReport report = replay_alone(kTwoThatGrow, sharing(4), settings_of(16, 2, 1));
  EXPECT_EQ(report.drained.counters.preemptions, 1);
  EXPECT_EQ(report.drained.counters.prefix_hits, 1);
  // That one, and as request 1 grows: of the blocks that request 0 has left.
  EXPECT_GE(report.drained.counters.evictions, 1);
  EXPECT_EQ(report.drained.recomputed_tokens, 4);
  EXPECT_EQ(report.drained.computed_tokens, 12 + 12 + 4);
  EXPECT_EQ(report.drained.found_tokens, 0) << "found when it was admitted first";
}

TEST(Replay, AHostTierBringsEvictedBlocksBackForTheirCost) {
  ReplaySettings settings = settings_of(16, 2, 1);
  settings.cost.swap_ms = 100;
  const ReplayReport report = replay_alone(kTwoThatGrow, sharing(4, 4, 8), settings);
  const CountersReport& counters = report.drained.counters;
  EXPECT_EQ(report.drained.recomputed_tokens, 0);
  EXPECT_GE(counters.swaps_out, 1);
  EXPECT_EQ(counters.swaps_in, 1);
  EXPECT_EQ(report.drained.at_ms, static_cast<double>(13 + 100 * (counters.swaps_out + counters.swaps_in)));
}

// What is found

TEST(Replay, CountsWhatIsFoundInTokensAndInBlocks) {
  Traffic traffic =
      apart({{.timestamp_ms = 0, .input_length = 10}, {.timestamp_ms = 100, .input_length = 10}});
  traffic.requests[1].blocks = traffic.requests[0].blocks;
  const ReplayReport report = replay_alone(traffic, sharing(10), settings_of(16, 2, 1));
  EXPECT_EQ(report.drained.found_tokens, 8);
  EXPECT_EQ(report.drained.found_blocks, 2);
  EXPECT_EQ(report.drained.input_blocks, 4);
  EXPECT_DOUBLE_EQ(report.drained.found_share(), 0.4);
  EXPECT_DOUBLE_EQ(report.drained.found_block_share(), 0.5);
  EXPECT_EQ(report.at_last_arrival.found_tokens, 0);
  EXPECT_EQ(replay_alone(traffic, paged(10), settings_of(16, 2, 1)).drained.found_tokens, 0);
}

TEST(Replay, OutputsAreFoundByNoOtherRequest) {
  // Request 1 begins as request 0 does, and goes on where the outputs of request 0 are.
  Traffic traffic = apart({{.timestamp_ms = 0, .input_length = 4, .output_length = 9},
                           {.timestamp_ms = 100, .input_length = 12, .output_length = 1}});
  traffic.requests[1].blocks[0] = traffic.requests[0].blocks[0];
  EXPECT_EQ(replay_alone(traffic, sharing(10), settings_of(16, 2, 1)).drained.found_tokens, 4);
}

// Memory

TEST(Replay, SamplesTheMemoryOnceASecond) {
  // Passes of 400 ms. In the third, from 800 ms to 1200, request 0 has 6 tokens; in the fifth, from 1600, 8;
  // in the sixth, from 2000, 9.
  const Traffic traffic = apart({{.timestamp_ms = 0, .input_length = 4, .output_length = 7}});
  const ReplayReport report = replay_alone(traffic, paged(8), settings_of(16, 2, 400));
  ASSERT_EQ(report.memory.samples.size(), 3U);
  EXPECT_EQ(report.memory.pool_bytes, 8 * 4 * kBytesPerToken);
  const std::int64_t reserved[] = {0, 2, 2}, used[] = {0, 6, 8};
  for (std::size_t n = 0; n < 3; ++n) {
    EXPECT_EQ(report.memory.samples[n].at_ms, 1000.0 * static_cast<double>(n));
    EXPECT_EQ(report.memory.samples[n].reserved_bytes, reserved[n] * 4 * kBytesPerToken) << n;
    EXPECT_EQ(report.memory.samples[n].used_bytes, used[n] * kBytesPerToken) << n;
  }
}

TEST(Replay, SamplesOfWeeksLieFurtherApart) {
  const ReplayReport report = replay_alone(apart({{.timestamp_ms = 0, .input_length = 4, .output_length = 1},
                                                  {.timestamp_ms = 2'592'000'000,  // 30 days
                                                   .input_length = 4,
                                                   .output_length = 1}}),
                                           paged(8), settings_of(16, 2, 400));
  const std::vector<ReplayMemory::Sample>& samples = report.memory.samples;
  ASSERT_EQ(samples.size(), 2'592'000U / 4 + 1);
  for (const std::size_t n : {0U, 1U, 2U, 524'288U, 648'000U})
    EXPECT_EQ(samples[n].at_ms, 4000.0 * static_cast<double>(n)) << n;
  EXPECT_EQ(report.drained.done, 2);
}

TEST(Replay, SamplesAreOfAllEnginesTogetherAndOfIdleTimeToo) {
  EngineParts parts[] = {flat(2, 10), flat(2, 10)};
  ReplaySettings settings = settings_of(16, 2, 600);
  settings.router = Router::round_robin;
  const ReplayReport report = replay(apart({{.timestamp_ms = 2500, .input_length = 4, .output_length = 4},
                                            {.timestamp_ms = 2500, .input_length = 5, .output_length = 4}}),
                                     parts, settings);
  EXPECT_EQ(report.memory.pool_bytes, 40 * kBytesPerToken);
  ASSERT_GE(report.memory.samples.size(), 4U);
  for (std::size_t n = 0; n < 4; ++n)
    EXPECT_EQ(report.memory.samples[n].reserved_bytes, 40 * kBytesPerToken) << "step 2 reserves always";
  EXPECT_EQ(report.memory.samples[2].used_bytes, 0);
  EXPECT_EQ(report.memory.samples[3].used_bytes, (4 + 5) * kBytesPerToken) << "at 3000, in the first passes";
}

TEST(Replay, ARequestHoldsItsMemoryInItsLastPassToo) {
  const ReplayReport report = replay_alone(apart({{.timestamp_ms = 0, .input_length = 4, .output_length = 1},
                                                  {.timestamp_ms = 1700, .input_length = 1}}),
                                           paged(8), settings_of(16, 2, 1500));
  ASSERT_GE(report.memory.samples.size(), 2U);
  EXPECT_EQ(report.memory.samples[1].used_bytes, 4 * kBytesPerToken) << "at 1000, in a pass from 0 to 1500";
}

// Several engines

TEST(Routers, RoundRobinTakesTheNext) {
  EngineParts parts[] = {sharing(100), sharing(100)};
  ReplaySettings settings = settings_of(200, 1, 1);
  settings.router = Router::round_robin;
  const Traffic traffic = apart({{.input_length = 100, .output_length = 1},
                                 {.input_length = 10, .output_length = 1},
                                 {.input_length = 90, .output_length = 1},
                                 {.input_length = 9, .output_length = 1}});
  const ReplayReport report = replay(traffic, parts, settings);
  for (std::size_t n = 0; n < 4; ++n) {
    const TokenIds ids = traffic.prompt_ids(n);
    EXPECT_GT(parts[n % 2].peek({ids.begin(), ids.size()}), 0) << n;
    EXPECT_EQ(parts[1 - n % 2].peek({ids.begin(), ids.size()}), 0) << n;
  }
  EXPECT_EQ(report.drained.at_ms, 2);
  EXPECT_EQ(report.drained.passes, 4);
  EXPECT_EQ(report.drained.most_sequences, 1) << "of one engine";
  EXPECT_EQ(report.drained.most_requests, 2) << "of one engine";
  EXPECT_EQ(report.drained.mean_sequences, 2) << "of both";
  EXPECT_EQ(report.drained.busy_share, 1);
}

TEST(Routers, LeastLoadedTakesTheEngineWithTheFewestTokensInHand) {
  EngineParts parts[] = {sharing(200), sharing(200)};
  ReplaySettings settings = settings_of(400, 8, 1);
  settings.router = Router::least_loaded;
  const Traffic traffic = apart({{.input_length = 100, .output_length = 1},   // 0: 101, 0
                                 {.input_length = 10, .output_length = 50},   // 1: 101, 60
                                 {.input_length = 10, .output_length = 1},    // 1: 101, 71
                                 {.input_length = 100, .output_length = 1},   // 1: 101, 172
                                 {.input_length = 10, .output_length = 1}});  // 0
  static_cast<void>(replay(traffic, parts, settings));
  const std::size_t engines[] = {0, 1, 1, 1, 0};
  for (std::size_t n = 0; n < 5; ++n) {
    const TokenIds ids = traffic.prompt_ids(n);
    EXPECT_GT(parts[engines[n]].peek({ids.begin(), ids.size()}), 0) << n;
    EXPECT_EQ(parts[1 - engines[n]].peek({ids.begin(), ids.size()}), 0) << n;
  }
}

TEST(Routers, LongestPrefixTakesTheEngineThatFindsMost) {
  EngineParts parts[] = {sharing(200), sharing(200)};
  ReplaySettings settings = settings_of(400, 8, 1);
  settings.router = Router::longest_prefix;
  Traffic traffic =
      apart({{.timestamp_ms = 0, .input_length = 20, .output_length = 1},     // 0
             {.timestamp_ms = 0, .input_length = 20, .output_length = 1},     // 1: the other
             {.timestamp_ms = 50, .input_length = 30, .output_length = 100},  // as 1: 1
             {.timestamp_ms = 60, .input_length = 24, .output_length = 1},    // as 1: 1, and 1 is loaded
             {.timestamp_ms = 60, .input_length = 24, .output_length = 1},    // as 0: 0
             {.timestamp_ms = 60, .input_length = 20, .output_length = 1}});  // as none: 0, no load
  const auto begin_alike = [&](std::size_t one, std::size_t other, std::int64_t blocks) {
    std::copy_n(traffic.requests[other].blocks.begin(), blocks, traffic.requests[one].blocks.begin());
  };
  begin_alike(2, 1, 4);
  begin_alike(3, 1, 3);
  begin_alike(4, 0, 5);
  traffic.requests[5].timestamp_ms = 65;
  const ReplayReport report = replay(traffic, parts, settings);
  const std::size_t engines[] = {0, 1, 1, 1, 0, 0};
  for (std::size_t n = 0; n < 6; ++n) {
    const TokenIds ids = traffic.prompt_ids(n);
    EXPECT_GT(parts[engines[n]].peek({ids.begin(), ids.size()}), 12) << n;
    EXPECT_LE(parts[1 - engines[n]].peek({ids.begin(), ids.size()}), 0) << n;
  }
  EXPECT_EQ(report.drained.found_tokens, 16 + 12 + 20);
}

TEST(Routers, APeekThatIsMissingFindsNothing) {
  EngineParts parts[] = {paged(200), paged(200)};
  ReplaySettings settings = settings_of(400, 8, 1);
  settings.router = Router::longest_prefix;
  const ReplayReport report =
      replay(apart({{.input_length = 20, .output_length = 1}, {.input_length = 20, .output_length = 1}}),
             parts, settings);
  EXPECT_EQ(report.drained.most_sequences, 1) << "the least loaded";
}

// The SLO

/// 100 requests, one each 100 ms; `long_ones` of them fit no pool of 10 blocks.
Traffic hundred(std::int64_t long_ones = 0) {
  std::vector<TrafficRequest> requests;
  for (std::int64_t n = 0; n < 100; ++n)
    requests.push_back(
        {.timestamp_ms = 100 * n, .input_length = n >= 100 - long_ones ? 100 : 4, .output_length = 1});
  return apart(std::move(requests));
}

ReplayReport with_slo(const Traffic& traffic, double slo_ms,
                      const ReplaySettings& base = settings_of(8, 1, 10)) {
  ReplaySettings settings = base;
  settings.slo_ms = slo_ms;
  return replay_alone(traffic, paged(10), settings);
}

TEST(Slo, IsKeptByFirstTokensThatComeJustInTime) {
  const ReplayReport report = with_slo(hundred(), 10);
  EXPECT_TRUE(report.meets_slo);
  EXPECT_EQ(report.drained.done, 100);
  EXPECT_EQ(report.drained.first_token_ms.p99, 10);
}

TEST(Slo, IsGivenUpWithTheSecondOfAHundredThatIsLate) {
  const ReplayReport report = with_slo(hundred(), 9.9);
  EXPECT_FALSE(report.meets_slo);
  EXPECT_EQ(report.drained.passes, 2);
  EXPECT_EQ(report.drained.done, 2);
}

TEST(Slo, OneOfAHundredMayBeLateOrRefused) {
  // The last two come together: one of them waits for the other.
  Traffic traffic = hundred();
  traffic.requests[99].timestamp_ms = traffic.requests[98].timestamp_ms;
  EXPECT_TRUE(with_slo(traffic, 10).meets_slo);
  traffic.requests[97].timestamp_ms = traffic.requests[98].timestamp_ms;
  EXPECT_FALSE(with_slo(traffic, 10).meets_slo);
  EXPECT_TRUE(with_slo(hundred(1), 10).meets_slo);
}

TEST(Slo, IsNotKeptWhereTwoOfAHundredAreRefused) {
  EXPECT_FALSE(with_slo(hundred(2), 10).meets_slo) << "they come last, and no pass follows";
  EXPECT_FALSE(with_slo(hundred(100), 10).meets_slo) << "there is no pass at all";
}

// Spreads

TEST(Spread, OfNothingIsZero) {
  const Spread spread = spread_of({});
  EXPECT_EQ(spread.count, 0);
  EXPECT_EQ(spread.mean + spread.median + spread.p90 + spread.p99, 0);
}

TEST(Spread, PercentilesAreTheNearestRanks) {
  const auto of = [](int count) {  // count, ..., 2, 1
    std::vector<double> values;
    for (int n = count; n > 0; --n) values.push_back(n);
    return spread_of(values);
  };
  struct {
    int count;
    double mean, median, p90, p99;
  } const expected[] = {{1, 1, 1, 1, 1},        {2, 1.5, 1, 2, 2},          {3, 2, 2, 3, 3},
                        {10, 5.5, 5, 9, 10},    {11, 6, 6, 10, 11},         {100, 50.5, 50, 90, 99},
                        {101, 51, 51, 91, 100}, {200, 100.5, 100, 180, 198}};
  for (const auto& [count, mean, median, p90, p99] : expected) {
    const Spread spread = of(count);
    EXPECT_EQ(spread.count, count);
    EXPECT_DOUBLE_EQ(spread.mean, mean) << count;
    EXPECT_EQ(spread.median, median) << count;
    EXPECT_EQ(spread.p90, p90) << count;
    EXPECT_EQ(spread.p99, p99) << count;
  }
}

// The plain hit rate

/// An LRU prefix cache as traces of traffic are measured with: requests one after the other, nothing
/// generated. A block is found only behind the blocks before it, and one token at least is left to compute. A
/// request holds its blocks, a partial last one too, and releases them from the last to the first.
struct PlainLru {
  std::int64_t room;                    // blocks that hold nothing
  std::list<std::int32_t> cached = {};  // the next to be evicted first
  std::unordered_map<std::int32_t, std::list<std::int32_t>::iterator> place = {};
  std::int64_t hits = 0, evictions = 0, full = 0, input_tokens = 0, refused = 0, twice = 0;

  void serve(const TrafficRequest& request, std::int64_t block_size, std::int64_t pool) {
    const auto blocks = std::span(request.blocks);
    if (std::ssize(blocks) > pool) return void(++refused);
    const auto full_ones = static_cast<std::size_t>(request.input_length / block_size);
    const auto to_look_up = static_cast<std::size_t>((request.input_length - 1) / block_size);
    std::size_t found = 0;
    while (found < to_look_up && place.contains(blocks[found])) ++found;
    for (const std::int32_t block : blocks.first(found)) {
      cached.erase(place.at(block));
      place.erase(block);
    }
    for (std::size_t n = found; n < blocks.size(); ++n) {
      if (room > 0) {
        --room;
        continue;
      }
      place.erase(cached.front());
      cached.pop_front();
      ++evictions;
    }
    room += std::ssize(blocks) - static_cast<std::int64_t>(full_ones);
    for (std::size_t n = full_ones; n-- > 0;) {
      if (place.contains(blocks[n])) ++twice;  // a full prompt once more: its last block is there twice
      place[blocks[n]] = cached.insert(cached.end(), blocks[n]);
    }
    hits += static_cast<std::int64_t>(found);
    full += static_cast<std::int64_t>(full_ones);
    input_tokens += request.input_length;
  }
};

ReplayFigures serial(Traffic traffic, std::int64_t blocks, std::int64_t block_size) {
  for (TrafficRequest& request : traffic.requests) request.output_length = 0;
  ReplaySettings settings = settings_of(2048, 256, 1);
  settings.serial = true;
  return replay_alone(traffic, sharing(blocks, block_size), settings).drained;
}

TEST(Serial, FindsAndEvictsWhatAPlainLruCacheDoes) {
  for (const TrafficKind kind : {TrafficKind::chat, TrafficKind::system, TrafficKind::agents}) {
    const Traffic traffic =
        made_traffic({.kind = kind, .requests = 300, .seed = 3, .block_size = 32, .longest = 6000});
    double before = -1;
    std::int64_t evictions = 0;
    for (const std::int64_t pool : {50, 130, 190, 400, 1000, 4000, 100'000}) {
      SCOPED_TRACE(fmt::format("kind {}, {} blocks", static_cast<int>(kind), pool));
      PlainLru plain{.room = pool};
      for (const TrafficRequest& request : traffic.requests) plain.serve(request, 32, pool);
      ASSERT_EQ(plain.twice, 0) << "the plain model knows no twins";
      const ReplayFigures figures = serial(traffic, pool, 32);
      EXPECT_EQ(figures.found_blocks, plain.hits);
      EXPECT_EQ(figures.counters.prefix_hits, plain.hits);
      EXPECT_EQ(figures.input_blocks, plain.full);
      EXPECT_EQ(figures.found_tokens, plain.hits * 32);
      EXPECT_EQ(figures.input_tokens, plain.input_tokens);
      EXPECT_EQ(figures.counters.evictions, plain.evictions);
      EXPECT_EQ(figures.refused, plain.refused);
      EXPECT_EQ(figures.computed_tokens, plain.input_tokens - plain.hits * 32);
      EXPECT_EQ(figures.counters.preemptions, 0);
      if (plain.refused == 0) {
        EXPECT_GE(figures.found_share(), before) << "a larger pool finds more";
        before = figures.found_share();
      }
      evictions += plain.evictions;
    }
    EXPECT_GT(evictions, 1000);
    EXPECT_GT(before, 0.4);
  }
}

// The full small blocks of a partial tail stay in the pool, where a pool of large blocks has room for others.
// So small blocks find a little less while the pool is too small, and as much when it is not.
TEST(Serial, SmallBlocksFindAboutAsMuchInAPoolOfEqualBytes) {
  struct {
    TrafficKind kind;
    std::int64_t blocks;
    double share, difference;
  } const pools[] = {{TrafficKind::chat, 100, 0.0359, 0.005},   {TrafficKind::chat, 300, 0.2004, 0.005},
                     {TrafficKind::chat, 600, 0.4237, 0.015},   {TrafficKind::chat, 1000, 0.6609, 0},
                     {TrafficKind::agents, 100, 0.4468, 0.015}, {TrafficKind::agents, 300, 0.8998, 0}};
  for (const auto& [kind, blocks, share, difference] : pools) {
    SCOPED_TRACE(blocks);
    const Traffic traffic = made_traffic({.kind = kind, .requests = 400, .seed = 1, .longest = 40'000});
    const ReplayFigures large = serial(traffic, blocks, 512), small = serial(traffic, blocks * 32, 16);
    EXPECT_NEAR(large.found_share(), share, 5e-5);
    EXPECT_LE(small.found_share(), large.found_share());
    EXPECT_GE(small.found_share(), large.found_share() - difference);
    EXPECT_EQ(small.input_tokens, large.input_tokens);
  }
}

// All of it

std::string text_of(const Spread& spread) {
  return fmt::format("{} {} {} {} {}; ", spread.count, spread.mean, spread.median, spread.p90, spread.p99);
}

std::string text_of(const ReplayFigures& f) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}; ", f.at_ms, f.done,
                     f.refused, f.waiting, f.running, f.most_requests, f.passes, f.most_sequences,
                     f.mean_sequences, f.busy_share, f.generated_tokens, f.computed_tokens,
                     f.recomputed_tokens, f.input_tokens, f.found_tokens, f.input_blocks, f.found_blocks,
                     f.counters.prefix_hits, f.counters.evictions, f.counters.preemptions,
                     f.counters.swaps_out, f.counters.swaps_in) +
         text_of(f.first_token_ms) + text_of(f.output_token_ms);
}

std::string text_of(const ReplayReport& report) {
  std::string text = text_of(report.at_last_arrival) + text_of(report.drained);
  for (const ReplayMemory::Sample& sample : report.memory.samples)
    text += fmt::format("{} {} {}, ", sample.at_ms, sample.reserved_bytes, sample.used_bytes);
  return text;
}

TEST(Replay, EqualInputGivesAnEqualReport) {
  const Traffic traffic = made_traffic({.requests = 150, .seed = 5, .longest = 4000});
  for (const Router router : {Router::round_robin, Router::least_loaded, Router::longest_prefix}) {
    std::string texts[2];
    for (std::string& text : texts) {
      EngineParts parts[] = {sharing(300, 16, 50), sharing(300, 16, 50), sharing(300, 16, 50)};
      ReplaySettings settings = settings_of(64, 16, 3);
      settings.cost.row_ms = 0.7;
      settings.cost.context_ms = 1e-4;
      settings.router = router;
      settings.rate = 3;
      text = text_of(replay(traffic, parts, settings));
    }
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_GT(texts[0].size(), 500U);
  }
}

TEST(Replay, ManagersAndSchedulersAreInOrderAllAlong) {
  Traffic traffic = made_traffic({.requests = 150, .seed = 6, .longest = 2000});
  for (TrafficRequest& request : traffic.requests) request.output_length += 200;
  auto manager = std::make_unique<PrefixCachingManager>(PagedShape{160, 16, kBytesPerToken},
                                                        SharingSettings{.host_blocks = 60});
  const PrefixCachingManager& cache = *manager;
  EngineParts parts{std::move(manager), {}};
  std::int64_t checks = 0;
  ReplaySettings settings = settings_of(64, 16, 20);
  settings.rate = 12;
  const ReplayReport report = replay(traffic, {&parts, 1}, settings, [&](std::int64_t passes) {
    if (passes % 50 != 0) return;
    ++checks;
    ASSERT_NO_THROW(cache.check_invariants());
  });
  EXPECT_GT(checks, 20);
  EXPECT_EQ(report.drained.done, 150);
  EXPECT_GT(report.drained.counters.preemptions, 10);
  EXPECT_GT(report.drained.counters.evictions, 100);
  EXPECT_GT(report.drained.counters.swaps_in, 10);
  EXPECT_EQ(cache.blocks().in_use, 0);
}

/// The requests of an hour, where a file of them is at hand.
class RealTrace : public testing::Test {
 protected:
  void SetUp() override {
    const char* const path = std::getenv("REPLAY_TRACE");
    if (path == nullptr) GTEST_SKIP() << "REPLAY_TRACE does not name the trace of a real hour";
    traffic_ = read_traffic_file(path, 512);
  }
  Traffic traffic_;
};

// The shares that a plain model of an LRU prefix cache gives for the trace "conversation" of Mooncake.
TEST_F(RealTrace, FindsAndEvictsWhatAPlainModelDoes) {
  ASSERT_EQ(traffic_.requests.size(), 12'031U);
  struct {
    std::int64_t blocks;
    double of_blocks, of_tokens;
    std::int64_t evictions;
  } const pools[] = {{1000, 0.04697, 0.04593, 262'504},   {10'000, 0.22424, 0.21924, 204'491},
                     {30'000, 0.34481, 0.33711, 151'156}, {50'000, 0.37152, 0.36324, 123'769},
                     {100'000, 0.37949, 0.37103, 71'566}, {400'000, 0.38194, 0.37342, 0}};
  for (const auto& [blocks, of_blocks, of_tokens, evictions] : pools) {
    SCOPED_TRACE(blocks);
    const ReplayFigures figures = serial(traffic_, blocks, 512);
    EXPECT_NEAR(figures.found_block_share(), of_blocks, 0.0005);
    EXPECT_NEAR(figures.found_share(), of_tokens, 0.0005);
    EXPECT_EQ(figures.counters.evictions, evictions);
    EXPECT_EQ(figures.done, 12'031);
  }
}

TEST_F(RealTrace, SmallBlocksFindAboutAsMuch) {
  for (const std::int64_t blocks : {1000, 10'000, 50'000}) {
    const double large = serial(traffic_, blocks, 512).found_share();
    EXPECT_NEAR(serial(traffic_, blocks * 32, 16).found_share(), large, 0.005) << blocks;
  }
}

}  // namespace
}  // namespace kvcache
