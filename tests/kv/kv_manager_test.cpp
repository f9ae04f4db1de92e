// Work that no manager plans: each refusal names the sequence, and comes before any memory is taken.
#include "common/kv/kv_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "step1_no_cache/no_cache.h"
#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {
namespace {

using Tokens = std::vector<std::int32_t>;
using testing::HasSubstr;

/// Everything visible of a manager.
std::string observed(const KvManager& manager) {
  const CacheState state = manager.state();
  std::string seen = testing::PrintToString(state.references) + testing::PrintToString(state.free);
  for (const auto& [id, sequence] : state.sequences)
    seen += testing::PrintToString(id) + testing::PrintToString(sequence.blocks) +
            testing::PrintToString(sequence.length);
  return seen;
}

/// The reason why `work` is refused; "" if it is not. A refusal must change nothing.
std::string refusal(KvManager& manager, const std::vector<Work>& work) {
  const std::string before = observed(manager);
  try {
    static_cast<void>(manager.plan(work));
  } catch (const std::logic_error& error) {
    EXPECT_EQ(observed(manager), before);
    return error.what();
  }
  return "";
}

void store(KvManager& manager, std::int32_t sequence, const Tokens& tokens) {
  const Work work{sequence, tokens};
  manager.commit(manager.plan({&work, 1}).value());
}

/// The managers that store tokens.
std::vector<std::unique_ptr<KvManager>> managers_that_store() {
  std::vector<std::unique_ptr<KvManager>> managers;
  managers.push_back(std::make_unique<FlatCacheManager>(FlatCacheShape{4, 64, 1}));
  managers.push_back(std::make_unique<PagedManager>(PagedShape{16, 4, 1}));
  managers.push_back(std::make_unique<PrefixCachingManager>(PagedShape{16, 4, 1}));
  managers.push_back(
      std::make_unique<PrefixCachingManager>(PagedShape{16, 4, 1}, SharingSettings{.prefix_cache = false}));
  return managers;
}
std::vector<std::unique_ptr<KvManager>> all_managers() {
  std::vector<std::unique_ptr<KvManager>> managers = managers_that_store();
  managers.push_back(std::make_unique<NoCacheManager>());
  return managers;
}

TEST(KvManager, RefusesAPlanWithFewerTokensThanAreStored) {
  const Tokens tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, other{11, 12};
  for (const auto& manager : managers_that_store()) {
    store(*manager, 3, tokens);
    const std::span<const std::int32_t> all = tokens;
    for (std::size_t fewer = 1; fewer < tokens.size(); ++fewer) {
      EXPECT_THAT(refusal(*manager, {{7, other}, {3, all.first(fewer)}}),
                  HasSubstr("sequence 3 stores 10 tokens and is planned with " + std::to_string(fewer)));
    }
    manager->abort(manager->plan(std::vector<Work>{{7, other}, {3, all}}).value());
    store(*manager, 3, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  }
}

TEST(KvManager, RefusesAPlanWithASequenceTwice) {
  const Tokens tokens{1, 2, 3, 4, 5}, longer{1, 2, 3, 4, 5, 6}, other{7};
  for (const auto& manager : all_managers()) {
    EXPECT_EQ(refusal(*manager, {{3, tokens}, {4, other}, {3, tokens}}), "sequence 3 is twice in one plan");
    store(*manager, 3, tokens);
    EXPECT_EQ(refusal(*manager, {{3, longer}, {4, other}, {3, longer}}), "sequence 3 is twice in one plan");
    store(*manager, 3, longer);
  }
}

TEST(KvManager, RefusesAPlanOfASequenceWithoutAToken) {
  const Tokens tokens{1, 2, 3, 4, 5};
  for (const auto& manager : all_managers()) {
    EXPECT_EQ(refusal(*manager, {{4, tokens}, {3, {}}}), "sequence 3 is planned without a token");
    store(*manager, 3, tokens);
  }
}

TEST(KvManager, RefusesAPlanWhileTheOneBeforeIsOutstanding) {
  const Tokens tokens{1, 2, 3, 4, 5}, too_many(100, 1);
  for (const auto& manager : managers_that_store()) {
    const std::vector<Work> first{{3, tokens}}, second{{4, tokens}};
    for (int round = 0; round < 2; ++round) {
      const PassPlan plan = manager->plan(first).value();
      EXPECT_THAT(refusal(*manager, second), HasSubstr("neither committed nor aborted"));
      round == 0 ? manager->abort(plan) : manager->commit(plan);
    }
    EXPECT_FALSE(manager->plan(std::vector<Work>{{5, too_many}}).has_value());
    manager->commit(manager->plan(second).value());  // one that did not fit is no outstanding plan
  }
}

}  // namespace
}  // namespace kvcache
