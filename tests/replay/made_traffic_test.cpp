// Made-up traces: equal seeds give equal ones, and each kind shares what it is said to share.
#include "common/replay/made_traffic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

namespace kvcache {
namespace {

constexpr TrafficKind kKinds[] = {TrafficKind::chat, TrafficKind::system, TrafficKind::agents};

std::string name_of(TrafficKind kind) {
  const char* names[] = {"chat", "system", "agents"};
  return names[static_cast<std::size_t>(kind)];
}

std::string text_of(const Traffic& traffic) {
  std::string text;
  for (const TrafficRequest& request : traffic.requests) text += line_of(request);
  return text;
}

std::vector<std::int32_t> full_blocks(const Traffic& traffic, const TrafficRequest& request) {
  return {request.blocks.begin(), request.blocks.begin() + request.input_length / traffic.block_size};
}

/// Full blocks at the beginning that two requests share.
std::int64_t shared(const Traffic& traffic, const TrafficRequest& one, const TrafficRequest& other) {
  const auto mine = full_blocks(traffic, one), theirs = full_blocks(traffic, other);
  std::int64_t count = 0;
  while (count < std::min(std::ssize(mine), std::ssize(theirs)) &&
         mine[static_cast<std::size_t>(count)] == theirs[static_cast<std::size_t>(count)])
    ++count;
  return count;
}

class MadeTrafficOfEachKind : public testing::TestWithParam<TrafficKind> {
 protected:
  static Traffic made(MadeTraffic wanted = {}) {
    wanted.kind = GetParam();
    return made_traffic(wanted);
  }
};

TEST_P(MadeTrafficOfEachKind, IsEqualForEqualSeedsAlone) {
  EXPECT_EQ(text_of(made()), text_of(made()));
  EXPECT_EQ(text_of(made({.seed = 7})), text_of(made({.seed = 7})));
  EXPECT_NE(text_of(made({.seed = 7})), text_of(made({.seed = 8})));
}

TEST_P(MadeTrafficOfEachKind, HasAsManyRequestsAsWantedInTheOrderOfTime) {
  for (const std::int64_t count : {1, 2, 37, 500}) {
    const Traffic traffic = made({.requests = count});
    EXPECT_EQ(std::ssize(traffic.requests), count);
    EXPECT_TRUE(std::ranges::is_sorted(traffic.requests, {}, &TrafficRequest::timestamp_ms));
    EXPECT_GE(traffic.requests.front().timestamp_ms, 0);
  }
}

TEST_P(MadeTrafficOfEachKind, IsReadAgain) {
  for (const std::int64_t block_size : {1, 16, 512}) {
    const Traffic traffic = made({.requests = 60, .block_size = block_size, .longest = 3000});
    EXPECT_EQ(traffic.block_size, block_size);
    std::istringstream lines(text_of(traffic));
    const Traffic again = read_traffic(lines, "made", block_size);
    ASSERT_EQ(again.requests.size(), traffic.requests.size());
    std::map<std::int32_t, std::int32_t> number_of;  // a block's number after, by that before
    for (std::size_t n = 0; n < again.requests.size(); ++n) {
      const TrafficRequest &before = traffic.requests[n], &after = again.requests[n];
      EXPECT_EQ(after.timestamp_ms, before.timestamp_ms);
      EXPECT_EQ(after.input_length, before.input_length);
      EXPECT_EQ(after.output_length, before.output_length);
      ASSERT_EQ(after.blocks.size(), before.blocks.size());
      for (std::size_t block = 0; block < after.blocks.size(); ++block)
        EXPECT_EQ(number_of.try_emplace(before.blocks[block], after.blocks[block]).first->second,
                  after.blocks[block]);
    }
  }
}

TEST_P(MadeTrafficOfEachKind, EqualBlocksHaveEqualBeginnings) {
  const Traffic traffic = made({.requests = 300, .longest = 8000});
  std::map<std::int32_t, std::vector<std::int32_t>> beginnings;
  for (const TrafficRequest& request : traffic.requests) {
    for (std::size_t n = 0; n < request.blocks.size(); ++n) {
      const std::vector<std::int32_t> before(request.blocks.begin(),
                                             request.blocks.begin() + static_cast<std::ptrdiff_t>(n));
      EXPECT_EQ(beginnings.try_emplace(request.blocks[n], before).first->second, before);
    }
  }
}

TEST_P(MadeTrafficOfEachKind, NoRequestIsLongerThanTheLongest) {
  for (const std::int64_t longest : {64, 500, 4096, 100'000}) {
    std::int64_t most = 0;
    for (const TrafficRequest& request : made({.requests = 400, .longest = longest}).requests) {
      EXPECT_GE(request.input_length, 1);
      EXPECT_GE(request.output_length, 1);
      most = std::max(most, request.input_length + request.output_length);
    }
    EXPECT_LE(most, longest);
    EXPECT_GE(most, longest / 3) << "lengths grow with it";
  }
}

TEST_P(MadeTrafficOfEachKind, ShortRequestsComeFaster) {
  const std::int64_t longest = GetParam() == TrafficKind::chat     ? 16'800
                               : GetParam() == TrafficKind::system ? 4'200
                                                                   : 133'500;
  const Traffic usual = made(), tenth = made({.longest = longest / 10});
  const std::int64_t last = usual.requests.back().timestamp_ms;
  EXPECT_EQ(text_of(usual), text_of(made({.longest = longest})));
  EXPECT_NEAR(static_cast<double>(tenth.requests.back().timestamp_ms), static_cast<double>(last) / 10, 1);
}

INSTANTIATE_TEST_SUITE_P(, MadeTrafficOfEachKind, testing::ValuesIn(kKinds),
                         [](const auto& info) { return name_of(info.param); });

TEST(MadeTraffic, ATurnOfAChatBeginsWithAllFullBlocksOfTheTurnsBefore) {
  const Traffic traffic = made_traffic({.kind = TrafficKind::chat, .requests = 300});
  std::map<std::int32_t, std::vector<const TrafficRequest*>> chats;  // by their first block
  for (const TrafficRequest& request : traffic.requests) {
    if (request.input_length >= traffic.block_size) chats[request.blocks[0]].push_back(&request);
  }
  std::int64_t turns = 0;
  for (const auto& [block, requests] : chats) {
    EXPECT_LE(requests.size(), 8U);
    for (std::size_t n = 1; n < requests.size(); ++n, ++turns) {
      const TrafficRequest &before = *requests[n - 1], &after = *requests[n];
      EXPECT_GT(after.timestamp_ms, before.timestamp_ms);
      EXPECT_GE(after.input_length, before.input_length + before.output_length + 50) << "answer and question";
      EXPECT_EQ(shared(traffic, before, after), std::ssize(full_blocks(traffic, before)));
    }
  }
  EXPECT_GT(turns, 150);
  EXPECT_GT(chats.size(), 20U);
}

TEST(MadeTraffic, AllRequestsBehindASystemPromptShareItsFullBlocksAndNothingElse) {
  const Traffic traffic = made_traffic({.kind = TrafficKind::system, .requests = 100});
  for (const TrafficRequest& one : traffic.requests) {
    EXPECT_GE(one.input_length, 3020);
    EXPECT_LE(one.input_length, 3800);
    for (const TrafficRequest& other : traffic.requests) {
      if (&one != &other) {
        EXPECT_EQ(shared(traffic, one, other), 3000 / 512);
      }
    }
  }
}

TEST(MadeTraffic, AllAgentsShareTheirToolsAndTheCallsOfOneItsContext) {
  const Traffic traffic = made_traffic({.kind = TrafficKind::agents, .requests = 200});
  constexpr std::int64_t kTools = 6000 / 512;
  std::int64_t calls = 0, agents = 0;
  for (std::size_t n = 0; n < traffic.requests.size(); ++n) {
    const TrafficRequest& one = traffic.requests[n];
    std::int64_t most = 0;
    for (std::size_t before = 0; before < n; ++before) {
      const std::int64_t count = shared(traffic, traffic.requests[before], one);
      EXPECT_GE(count, kTools);
      // Another agent's, or all of a call before.
      if (count > kTools) {
        EXPECT_EQ(count, std::ssize(full_blocks(traffic, traffic.requests[before])));
      }
      most = std::max(most, count);
    }
    (most > kTools ? calls : agents) += 1;
  }
  EXPECT_GT(calls, 100);
  EXPECT_GT(agents, 3);
}

}  // namespace
}  // namespace kvcache
