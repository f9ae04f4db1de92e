// After how many seconds a refused client may come again. Times are made up.
#include "common/server/pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvcache {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Ends `count` requests, one every `gap`.
Pace::Clock::time_point end_requests(Pace& pace, int count, milliseconds gap,
                                     Pace::Clock::time_point now = Pace::Clock::time_point(seconds(1000))) {
  for (int n = 0; n < count; ++n) pace.note_end(now += gap);
  return now;
}

TEST(Pace, TellsHowLongTheLineTakesAsRequestsEndLately) {
  const auto told = [](int ends, milliseconds gap, std::int64_t line) {
    Pace pace;
    const auto now = end_requests(pace, ends, gap);
    return pace.retry_after(line, now + gap);
  };
  EXPECT_EQ(told(20, milliseconds(100), 100), 10);
  EXPECT_EQ(told(20, milliseconds(100), 101), 11) << "whole seconds, rather later than too early";
  EXPECT_EQ(told(20, milliseconds(100), 1), 1);
  EXPECT_EQ(told(20, milliseconds(1), 0), 1) << "at least one";
  EXPECT_EQ(told(20, milliseconds(1000), 1040), 60) << "at most a minute";
  EXPECT_EQ(told(1000, milliseconds(10), 1000), 10) << "a thousand ends tell no more than the last of them";
  EXPECT_EQ(told(100, milliseconds(4000), 10), 40);
  EXPECT_EQ(told(100, milliseconds(5000), 10), 50)
      << "the last eight, although two are older than half a minute";
  EXPECT_EQ(told(13, milliseconds(10000), 4), 40);
}

TEST(Pace, GuessesWhileFewRequestsHaveEnded) {
  Pace pace;
  const auto now = end_requests(pace, Pace::kFewestEnds - 1, milliseconds(1));
  EXPECT_EQ(pace.retry_after(10 * Pace::kFirstGuess, now), 10);
}

TEST(Pace, CountsNoIdleTime) {
  Pace pace;
  const auto later = end_requests(pace, 100, milliseconds(100)) + Pace::kLately + seconds(1);
  pace.note_taken(/*line=*/0, later);
  EXPECT_EQ(pace.retry_after(100, later + milliseconds(100)), 10);
}

TEST(Pace, SpreadsThoseWhoAreToldToComeAgain) {
  Pace pace;
  auto now = end_requests(pace, 20, milliseconds(100)) + milliseconds(100);
  std::vector<std::int64_t> told;
  for (int client = 0; client < 100; ++client) told.push_back(pace.retry_after(100, now));
  EXPECT_EQ(told.front(), 10);
  EXPECT_EQ(told.back(), 20) << "199 requests before it";
  EXPECT_EQ(std::ranges::count(told, 15), 10) << "as many as end in a second";
  now = end_requests(pace, 150, milliseconds(100), now);
  EXPECT_EQ(pace.retry_after(100, now), 15) << "the time of half of them has come, whether they have or not";
  pace.note_taken(/*line=*/0, now);
  EXPECT_EQ(pace.retry_after(100, now), 10) << "nobody else seems to come";
}

TEST(Pace, CountsNoRefusedClientLongerThanItWasTold) {
  Pace pace;
  auto now = end_requests(pace, 20, milliseconds(100)) + milliseconds(100);
  for (int client = 0; client < 100; ++client) pace.retry_after(100, now);
  now = end_requests(pace, 200, milliseconds(100), now);  // they give up; the line stays full
  EXPECT_EQ(pace.retry_after(100, now), 10);
}

// One client that does not heed what it is told comes every 50 ms, for a minute. The others must not wait for
// requests that it does not have: at most as long again as for the line.
TEST(Pace, AtMostDoublesForOneClientThatAsksAgainAndAgain) {
  Pace pace;
  auto now = end_requests(pace, 20, milliseconds(100));
  std::int64_t longest = 0;
  for (int ask = 0; ask < 1200; ++ask) {
    if (ask % 2 == 0) now = end_requests(pace, 1, milliseconds(100), now);
    longest = std::max(longest, pace.retry_after(100, now));
  }
  EXPECT_EQ(longest, 20);
  now = end_requests(pace, 200, milliseconds(100), now);
  EXPECT_EQ(pace.retry_after(100, now), 10) << "it has gone";
}

}  // namespace
}  // namespace kvcache
