// Requests whose bodies are still to be read: which body is read next, and whose memory is given back.
#include "common/server/unread_requests.h"

#include <gtest/gtest.h>

namespace kvcache {
namespace {

using Reader = UnreadRequests::Reader;

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

}  // namespace
}  // namespace kvcache
