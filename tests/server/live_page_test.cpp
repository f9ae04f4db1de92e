/// @file
/// GET /state: what it tells of an engine, and that its length has a bound.
#include "common/server/live_page.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <numeric>

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

/// `sequences` that run and as many that wait; each that runs has the `blocks` 0, 1, ...
EngineStatus crowded(std::int32_t sequences, std::int32_t blocks) {
  EngineStatus status;
  std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  for (std::int32_t sequence = 0; sequence < sequences; ++sequence) {
    status.running.push_back({sequence, blocks, table});
    status.queue.push_back({sequences + sequence, 3, 1, 0});
  }
  status.running_count = status.waiting = sequences;
  return status;
}

TEST(PageState, ListsAllThatThereIsWhereItIsLittle) {
  const Json state = page_state(crowded(64, 1024), {});
  EXPECT_EQ(state["running"].size(), 64U);
  EXPECT_EQ(state["all_running"], 64);
  EXPECT_EQ(state["running"][63]["blocks"].size(), 1024U);
  EXPECT_EQ(state["running"][63]["all_blocks"], 1024);
  EXPECT_EQ(state["queue"].size(), 64U);
}

TEST(PageState, ListsTheFirstAndCountsAll) {
  const Json state = page_state(crowded(65, 1025), {});
  EXPECT_EQ(state["running"].size(), 64U);
  EXPECT_EQ(state["running"][0]["sequence"], 0) << "the oldest";
  EXPECT_EQ(state["all_running"], 65);
  EXPECT_EQ(state["running"][63]["blocks"].size(), 1024U);
  EXPECT_EQ(state["running"][63]["blocks"][1023], 1023);
  EXPECT_EQ(state["running"][63]["all_blocks"], 1025);
  EXPECT_EQ(state["queue"].size(), 64U);
  EXPECT_EQ(state["queue"][0]["sequence"], 65) << "the next";
  EXPECT_EQ(state["waiting"], 65);
}

TEST(PageState, HasABoundHoweverMuchThereIs) {
  EngineStatus status = crowded(4096, 2048);
  status.cache.emplace().references.resize(100'000, 1);
  const Json state = page_state(status, {});
  EXPECT_EQ(state["cells"].get<std::string>().size(), 4096U);
  EXPECT_EQ(state["all_cells"], 100'000);
  EXPECT_LT(state.dump().size(), 500'000U);
}

TEST(PageState, HasTheReservationsOfStep2AsBlocks) {
  EngineStatus status = crowded(1, 0);
  status.cache.emplace().references = {0, 1};
  EXPECT_EQ(page_state(status, {})["running"][0]["blocks"], Json::array()) << "none that the cache knows";
  status.cache->sequences[0].blocks = {1};
  const Json state = page_state(status, {});
  EXPECT_EQ(state["running"][0]["blocks"], Json({1}));
  EXPECT_EQ(state["running"][0]["all_blocks"], 1);
  EXPECT_EQ(state["cells"], ".1");
}

TEST(PageState, TellsWhetherTheServerIsShuttingDown) {
  PageContext context;
  EXPECT_EQ(page_state({}, context)["stopping"], false);
  context.stopping = true;
  EXPECT_EQ(page_state({}, context)["stopping"], true);
}

}  // namespace
}  // namespace kvcache
