// After how many seconds a refused client may come again. Times are made up.
#include "common/server/pace.h"

#include <gtest/gtest.h>

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
}

TEST(Pace, GuessesWhileFewRequestsHaveEndedLately) {
  Pace pace;
  const auto now = end_requests(pace, Pace::kFewestEnds - 1, milliseconds(1));
  EXPECT_EQ(pace.retry_after(10 * Pace::kFirstGuess, now), 10);
  Pace rested;
  const auto later = end_requests(rested, 100, milliseconds(1)) + Pace::kLately + seconds(1);
  EXPECT_EQ(rested.retry_after(10 * Pace::kFirstGuess, later), 10);
}

TEST(Pace, SpreadsThoseWhoAreToldToComeAgain) {
  Pace pace;
  const auto now = end_requests(pace, 20, milliseconds(100)) + milliseconds(100);
  std::int64_t last = 0;
  for (int client = 0; client < 100; ++client) last = pace.retry_after(100, now);
  EXPECT_EQ(last, 20) << "199 requests before it";
  for (int client = 0; client < 50; ++client) pace.note_taken(/*line=*/50);
  EXPECT_EQ(pace.retry_after(100, now), 15) << "half of them have come";
  pace.note_taken(/*line=*/0);
  EXPECT_EQ(pace.retry_after(100, now), 10) << "nobody else seems to come";
}

}  // namespace
}  // namespace kvcache
