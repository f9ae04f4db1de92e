// Requests that wait at the server: which body is read next, whose memory is given back, and after how many
// seconds a refused client may come again. Times are made up.
#include "common/server/waiting_line.h"

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace kvcache {
namespace {

using Reader = UnreadRequests::Reader;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A client that ignores its answers.
class Exchange final : public HttpExchange {
 public:
  Exchange() : HttpExchange({}) {}
  void answer(const HttpAnswer&) override {}
  void begin_stream(const std::string&) override {}
  void send(std::string_view) override {}
  void end_stream() override {}
  void on_departure(std::function<void()>) override {}
  bool departed() const override { return false; }
  bool is_behind() const override { return false; }
  void on_caught_up(std::function<void()>) override {}
};

constexpr std::size_t kLong = UnreadRequests::kShortBody + 1;

class AnUnreadRequest : public testing::Test {
 protected:
  /// @return its client
  std::shared_ptr<HttpExchange> add(std::size_t bytes) {
    const auto exchange = std::make_shared<Exchange>();
    EXPECT_TRUE(unread_.add({exchange, std::string(bytes, ' '), {}, {}}));
    return exchange;
  }
  /// Whose request a reader takes.
  HttpExchange* take(Reader reader) {
    const std::optional<UnreadRequest> request = unread_.take(reader);
    return request ? request->exchange.get() : nullptr;
  }
  UnreadRequests unread_;
};

TEST_F(AnUnreadRequest, IsReadInOrderOfArrivalButAShortOnePassesLongOnes) {
  const auto first = add(kLong), second = add(kLong), third = add(kLong - 1), fourth = add(1);
  EXPECT_EQ(take(Reader::of_short), third.get());
  EXPECT_EQ(take(Reader::of_all), first.get());
  EXPECT_EQ(take(Reader::of_all), second.get());
  EXPECT_EQ(take(Reader::of_all), fourth.get()) << "whatever its length";
  EXPECT_EQ(take(Reader::of_all), nullptr);
  add(kLong);
  EXPECT_EQ(take(Reader::of_short), nullptr);
}

TEST_F(AnUnreadRequest, IsDroppedWithItsBodyWhenItsClientLeaves) {
  const auto first = add(1), second = add(1), third = add(1);
  unread_.drop(*second);
  unread_.drop(*second);
  EXPECT_EQ(second.use_count(), 1) << "nobody else knows it";
  EXPECT_EQ(unread_.size(), 2);
  EXPECT_EQ(take(Reader::of_all), first.get());
  EXPECT_EQ(take(Reader::of_all), third.get());
}

TEST_F(AnUnreadRequest, IsRefusedWhereTheBodiesThatWaitWouldHaveTooManyBytes) {
  constexpr std::size_t kHalf = UnreadRequests::kMostBytes / 2;
  const auto first = add(kHalf);
  const auto second = add(kHalf);
  const auto exchange = std::make_shared<Exchange>();
  EXPECT_FALSE(unread_.add({exchange, "x", {}, {}}));
  EXPECT_EQ(unread_.size(), 2);
  unread_.drop(*first);
  EXPECT_TRUE(unread_.add({exchange, std::string(kHalf, ' '), {}, {}}));
  EXPECT_FALSE(unread_.add({exchange, "x", {}, {}}));
  unread_.take(Reader::of_all);
  EXPECT_TRUE(unread_.add({exchange, "x", {}, {}}));
  EXPECT_EQ(unread_.take_all().size(), 2U);
  EXPECT_EQ(unread_.size(), 0);
  add(2 * kHalf);
}

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
