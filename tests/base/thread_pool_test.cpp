// Every task runs exactly once, runs follow each other cleanly, and a pool may be larger than the machine.
#include "common/base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvcache {
namespace {

TEST(ThreadPool, RunsEachTaskExactlyOnceInManyRunsOfEverySize) {
  for (const int threads : {1, 2, 3, 9}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (std::int64_t run = 0; run < 3000; ++run) {
      const std::int64_t count = run % 37;
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
      pool.run(count, [&](std::int64_t index) { ++calls[static_cast<std::size_t>(index)]; });
      for (const std::atomic<int>& call : calls)
        ASSERT_EQ(call.load(), 1) << "run " << run << ", " << threads << " threads";
    }
  }
}

TEST(ThreadPool, WhatTasksWroteIsSeenAfterTheRun) {
  ThreadPool pool(4);
  std::vector<std::int64_t> squares(1000);
  for (int run = 0; run < 200; ++run) {
    pool.run(1000,
             [&](std::int64_t index) { squares[static_cast<std::size_t>(index)] = index * index + run; });
    for (std::int64_t index = 0; index < 1000; ++index)
      ASSERT_EQ(squares[static_cast<std::size_t>(index)], index * index + run);
  }
}

TEST(ThreadPool, PiecesCoverTheRangeWithoutOverlap) {
  ThreadPool pool(3);
  for (const std::int64_t count : {0, 1, 7, 8, 9, 100}) {
    std::vector<int> seen(static_cast<std::size_t>(count), 0);
    pool.run_pieces(count, 8, [&](std::int64_t begin, std::int64_t end) {
      EXPECT_LE(end - begin, 8);
      for (std::int64_t n = begin; n < end; ++n) ++seen[static_cast<std::size_t>(n)];
    });
    EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), count);
    for (const int times : seen) EXPECT_EQ(times, 1);
  }
}

TEST(ThreadPool, TasksTakeSubnormalNumbersForZeroAndTheCallerAfterwardsDoesNot) {
#if !defined(__x86_64__) && !defined(__aarch64__)
  GTEST_SKIP() << "only on x86-64 and AArch64";
#endif
  const volatile float small = 1e-30F, factor = 1e-10F, subnormal = 1e-40F, large = 1e10F;
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::vector<float> products(1000, -1), read(1000, -1);
    pool.run(1000, [&](std::int64_t index) {
      products[static_cast<std::size_t>(index)] = small * factor;
      read[static_cast<std::size_t>(index)] = subnormal * large;
    });
    EXPECT_EQ(products, std::vector<float>(1000, 0.0F));
    EXPECT_EQ(read, std::vector<float>(1000, 0.0F));
    EXPECT_GT(small * factor, 0.0F);
    EXPECT_GT(subnormal * large, 0.0F);
  }
}

TEST(ThreadPool, ABusyThreadLeavesTheRestOfItsShareToOthers) {
  for (const int threads : {2, 5}) {
    ThreadPool pool(threads);
    for (const std::int64_t busy : {0, 19}) {
      std::atomic<int> others = 0;
      pool.run(20, [&](std::int64_t index) {
        if (index != busy) {
          ++others;
        } else {
          while (others.load() < 19) std::this_thread::yield();
        }
      });
      EXPECT_EQ(others.load(), 19);
    }
  }
}

TEST(ThreadPool, TheSharesOfItsThreadsAreAllTasksInOrder) {
  for (const int threads : {1, 2, 7}) {
    const ThreadPool pool(threads);
    for (const std::int64_t count : {0, 1, 6, 7, 8, 1000}) {
      EXPECT_EQ(pool.first_of(0, count), 0);
      EXPECT_EQ(pool.first_of(threads, count), count);
      for (int thread = 0; thread < threads; ++thread) {
        const std::int64_t tasks = pool.first_of(thread + 1, count) - pool.first_of(thread, count);
        EXPECT_TRUE(tasks == count / threads || tasks == (count + threads - 1) / threads) << tasks;
      }
    }
  }
}

TEST(ThreadPool, ReadingAheadKeepsNoRunFromItsTasks) {
  ThreadPool pool(3);
  const std::vector<std::byte> memory(100'000);
  for (std::size_t run = 0; run < 300; ++run) {
    for (int thread = 0; thread < 3; ++thread) pool.read_ahead(thread, std::span(memory).first(run * 300));
    std::atomic<int> calls = 0;
    pool.run(7, [&](std::int64_t) { ++calls; });
    EXPECT_EQ(calls.load(), 7);
    if (run % 3 == 0) pool.read_ahead(1, {});
  }
}

TEST(ThreadPool, EndsCleanlyWhenNothingWasEverRun) {
  const ThreadPool pool(5);
}

}  // namespace
}  // namespace kvcache
