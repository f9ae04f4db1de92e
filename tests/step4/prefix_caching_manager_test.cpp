// Step 4's bookkeeping without a model: which sequences hold a block, find it, or lose it. The tests of
// SharingMistake are named after mistakes that are easily made in such code.
#include "step4_prefix_cache/prefix_caching_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>

#include "tests/support/cache_in_play.h"

namespace kvcache {
namespace {

using Table = std::vector<std::int32_t>;

/// Everything in a plan.
std::string as_text(const PassPlan& plan) {
  const auto moves = [](const std::vector<BlockCopy>& list) {
    std::string text;
    for (const BlockCopy& move : list) text += fmt::format("{}>{} ", move.from, move.to);
    return text;
  };
  return fmt::format("{} {} {} {} {} {} fresh {} out {} in {} copies {}", plan.sequences, plan.token_ids,
                     plan.positions, plan.row_begin, plan.slots, plan.block_table, plan.fresh_blocks,
                     moves(plan.swaps_out), moves(plan.swaps_in), moves(plan.copies));
}

/// How many of the tokens a continuation of them would find in the cache.
std::int64_t resident(const CacheInPlay& cache, const Tokens& tokens) {
  return cache.peek(joined(tokens, {-1}));
}

/// Stores a prompt and frees it, so that its full blocks stay cached.
void warm(CacheInPlay& cache, const Tokens& tokens) {
  constexpr std::int32_t passing = 1000;
  cache.store(passing, tokens);
  cache.free(passing);
}

// ---- Plans made ahead ----

TEST(PrefixCachingManager, FindsABlockByTheIdThatWasKnownOnlyAtCommit) {
  PrefixCachingManager manager(PagedShape{8, 4, 1});
  Tokens tokens{7, 8, 9, -1};
  const Work work{0, tokens};
  PassPlan plan = *manager.plan({&work, 1});
  plan.token_ids.back() = 10;
  manager.commit(plan);
  ASSERT_NO_THROW(manager.check_invariants());
  EXPECT_EQ(manager.peek(Tokens{7, 8, 9, 10, 11}), 4);
  EXPECT_EQ(manager.peek(Tokens{7, 8, 9, -1, 11}), 0);
}

// ---- Sequences whose logits are not finite ----

TEST(Discard, NothingThatTheSequenceHasComputedIsFoundAfterwards) {
  for (const bool freed_before : {false, true}) {
    CacheInPlay cache(12, 4);
    const Tokens prefix = unlike_ids(1, 8), bad = joined(prefix, unlike_ids(2, 14));
    warm(cache, joined(prefix, {1}));
    cache.store(0, first_of(bad, 13));  // a prompt in chunks
    cache.store(0, bad);
    if (freed_before) cache.free(0);
    cache.discard(0, bad, /*cached_tokens=*/8);
    EXPECT_EQ(resident(cache, bad), 8) << "what others have computed stays";
    EXPECT_EQ(cache.manager.blocks().cached, 2);
    EXPECT_EQ(cache.manager.blocks().free, 10);
    cache.store(1, bad);
    EXPECT_EQ(cache.manager.cached_tokens(1), 8);
  }
}

TEST(Discard, TakesCopiesInTheHostTierAndEqualBlocksToo) {
  CacheInPlay cache(8, 4, {.host_blocks = 8});
  const Tokens bad = unlike_ids(1, 17);
  cache.pass({{0, bad}});
  cache.free(0);  // preempted
  cache.store(1, unlike_ids(2, 30));
  cache.free(1);
  EXPECT_EQ(cache.manager.host_blocks_stored(), 4) << "swapped out";
  EXPECT_EQ(resident(cache, bad), 16);
  cache.discard(0, bad);
  EXPECT_EQ(resident(cache, bad), 0);
  EXPECT_EQ(cache.manager.host_blocks_stored(), 0);

  CacheInPlay twins(12, 4);
  twins.pass({{0, bad}, {1, bad}});  // neither finds the other
  twins.free(1);
  twins.discard(0, bad);
  EXPECT_EQ(resident(twins, bad), 0);
  EXPECT_EQ(twins.manager.blocks().free, 12);

  CacheInPlay both(12, 4, {.host_blocks = 8});
  both.pass({{0, bad}, {1, bad}});
  both.free(0);
  both.free(1);
  both.store(2, unlike_ids(2, 30));  // evicts one of the two
  EXPECT_EQ(both.manager.host_blocks_stored(), 4);
  EXPECT_EQ(both.manager.blocks().cached, 4);
  both.discard(0, bad);
  EXPECT_EQ(resident(both, bad), 0);
  EXPECT_EQ(both.manager.host_blocks_stored(), 0);
  EXPECT_EQ(both.manager.blocks().cached, 0);
}

TEST(Discard, BlocksThatOthersUseAreFoundUntilTheLastOfThemEnds) {
  CacheInPlay cache(20, 4, {.host_blocks = 8});
  const Tokens bad = unlike_ids(1, 13);
  cache.store(0, bad);
  cache.store(1, joined(first_of(bad, 12), {7, 7}));
  cache.fork(1, 2);
  cache.discard(0, bad);
  EXPECT_EQ(resident(cache, bad), 12);
  cache.free(1);
  cache.store(3, joined(first_of(bad, 12), {8}));
  EXPECT_EQ(cache.manager.cached_tokens(3), 12);
  cache.free(2);
  EXPECT_EQ(resident(cache, bad), 12);
  cache.free(3);
  EXPECT_EQ(resident(cache, bad), 0);
  EXPECT_EQ(cache.manager.blocks().free, 20);
}

TEST(Discard, ASampleLeavesTheOthersTheBlocksTheyShare) {
  CacheInPlay cache(20, 4);
  const Tokens prompt = unlike_ids(1, 10);
  cache.store(0, prompt);
  cache.fork(0, 1);
  const Tokens bad = joined(prompt, unlike_ids(2, 8)), good = joined(prompt, unlike_ids(3, 8));
  cache.pass({{0, good}, {1, bad}});
  cache.discard(1, bad, /*cached_tokens=*/10);
  EXPECT_EQ(resident(cache, bad), 8);
  EXPECT_EQ(resident(cache, good), 16);
  cache.free(0);
  EXPECT_EQ(resident(cache, good), 16) << "the prompt was fine";
}

TEST(Discard, APinnedPrefixStays) {
  CacheInPlay cache(20, 4);
  const Tokens prefix = unlike_ids(1, 9), bad = joined(prefix, unlike_ids(2, 9));
  cache.store(0, prefix);
  cache.pin(0);
  cache.store(1, bad);
  cache.discard(1, bad, cache.manager.cached_tokens(1));
  EXPECT_EQ(cache.manager.blocks().in_use, 3);
  EXPECT_EQ(cache.peek(bad), 9);
  cache.discard(0, prefix);  // and of one that is discarded itself, nothing
  EXPECT_EQ(cache.manager.blocks().free, 20);
  EXPECT_EQ(cache.peek(bad), 0);
}

// ---- Fork and copy-on-write ----

TEST(SharingMistake, ForkSharesThePartialTailWithoutCopyOnWrite) {
  CacheInPlay cache(8, 4);
  const Tokens abcdef = {'a', 'b', 'c', 'd', 'e', 'f'};
  cache.store(0, abcdef);
  cache.fork(0, 1);
  EXPECT_EQ(cache.table(0), cache.table(1));
  const std::int32_t shared = cache.table(0).back();
  const PassPlan x = cache.append(0, 'X');
  ASSERT_EQ(x.copies.size(), 1U);
  EXPECT_EQ(x.copies[0].from, shared);
  EXPECT_EQ(x.copies[0].to, cache.table(0).back());
  const PassPlan y = cache.append(1, 'Y');
  EXPECT_TRUE(y.copies.empty()) << "the last holder writes in place";
  EXPECT_EQ(cache.table(1).back(), shared);
  EXPECT_EQ(cache.table(0)[0], cache.table(1)[0]) << "full blocks stay shared";
  EXPECT_NE(x.slots[0], y.slots[0]);
  EXPECT_EQ(cache.manager.counters().copies, 1);
}

TEST(SharingMistake, ReleasingTwoForksPutsTheirBlocksTwiceInTheFreeList) {
  CacheInPlay cache(8, 4);
  cache.store(0, unlike_ids(1, 6));
  cache.fork(0, 1);
  cache.fork(1, 2);
  EXPECT_EQ(cache.manager.reference_count(cache.table(0)[0]), 3);
  cache.free(0);
  EXPECT_EQ(cache.manager.blocks().in_use, 2) << "two still hold them";
  cache.free(1);
  EXPECT_EQ(cache.manager.blocks().in_use, 2);
  cache.free(2);
  EXPECT_EQ(cache.manager.blocks().in_use, 0);
  EXPECT_EQ(cache.manager.free_queue().size(), 8U);
}

TEST(CopyOnWrite, BranchesThatAdvanceUnevenlyCopyOnceEachAndTheLastHolderNever) {
  for (const std::int32_t branches : {2, 3, 4}) {
    CacheInPlay cache(40, 4);
    cache.store(0, unlike_ids(1, 13));
    for (std::int32_t branch = 1; branch < branches; ++branch) cache.fork(0, branch);
    for (std::int32_t step = 0; step < 9; ++step) {
      for (std::int32_t branch = 0; branch < branches; ++branch) {
        if (branch == 0 || step % 3 == 0) cache.append(branch, 100 * branch + step);
      }
    }
    EXPECT_EQ(cache.manager.counters().copies, branches - 1);
    for (std::int32_t branch = 1; branch < branches; ++branch) {
      for (std::size_t full = 0; full < 3; ++full) EXPECT_EQ(cache.table(branch)[full], cache.table(0)[full]);
    }
    EXPECT_EQ(cache.manager.reference_count(cache.table(0)[0]), branches);
  }
}

TEST(CopyOnWrite, ABranchThatIsCancelledSparesTheOthersACopy) {
  CacheInPlay cache(40, 4);
  cache.store(0, unlike_ids(1, 5));
  cache.fork(0, 1);
  cache.fork(0, 2);
  cache.append(1, 50);
  cache.free(2);
  EXPECT_TRUE(cache.append(0, 60).copies.empty());
  EXPECT_EQ(cache.manager.counters().copies, 1);
}

TEST(CopyOnWrite, AForkAtAnyOffsetSeesTheParentUpToTheForkOnly) {
  for (std::int32_t offset = 0; offset <= 4; ++offset) {
    CacheInPlay cache(20, 4);
    const Tokens at_fork = unlike_ids(1, 4 + offset);
    cache.store(0, at_fork);
    cache.fork(0, 1);
    for (std::int32_t n = 0; n < 5; ++n) cache.append(0, 900 + n);
    EXPECT_EQ(cache.sequences().at(1), at_fork);
    for (std::int32_t n = 0; n < 5; ++n) cache.append(1, 800 + n);
    // No copy if the fork's first write begins a new block.
    EXPECT_EQ(cache.manager.counters().copies, offset % 4 == 0 ? 0 : 1) << offset;
  }
}

TEST(CopyOnWrite, WritersOfOnePassAreAllButOneCountedAndCopied) {
  // Four sequences share one tail and write in one pass: three copies, so three free blocks are enough.
  for (const std::int64_t spare : {2, 3}) {
    CacheInPlay cache(2 + spare, 4);
    const Tokens prompt = unlike_ids(1, 6);
    cache.store(0, prompt);
    for (const std::int32_t branch : {1, 2, 3}) cache.fork(0, branch);
    std::map<std::int32_t, Tokens> wanted;
    for (const std::int32_t branch : {0, 1, 2, 3}) wanted[branch] = joined(prompt, {branch});
    const std::optional<PassPlan> plan = cache.pass(wanted);
    EXPECT_EQ(plan.has_value(), spare == 3);
    if (plan) {
      EXPECT_EQ(plan->copies.size(), 3U);
      std::set<std::int64_t> slots(plan->slots.begin(), plan->slots.end());
      EXPECT_EQ(slots.size(), 4U) << "four writers, four places";
    }
  }
}

TEST(CopyOnWrite, AWriterIsCountedWhoseBlockIsSharedOnlyByAHitOfTheSamePass) {
  // 0 computes its last token again, in a block that 1 finds: one copy, and one block for the tokens of 1.
  for (const std::int64_t spare : {1, 2}) {
    CacheInPlay cache(1 + spare, 4);
    const Tokens block = unlike_ids(1, 4);
    cache.store(0, block);
    const std::optional<PassPlan> plan = cache.pass({{0, block}, {1, joined(block, {5})}});
    EXPECT_EQ(plan.has_value(), spare == 2);
    if (plan) {
      EXPECT_EQ(plan->copies.size(), 1U);
    }
  }
}

TEST(CopyOnWrite, TheLastWriterOfAPinnedTailNeedsNoCopy) {
  // The pinned sequence grows beside a sequence that has found it. Both write, and one of them copies.
  CacheInPlay cache(2, 3);
  cache.store(0, {0});
  cache.pin(0);
  const std::optional<PassPlan> plan = cache.pass({{0, {0, 0}}, {1, {0, 1}}});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->copies.size(), 1U);
  EXPECT_EQ(cache.manager.blocks().in_use, 2);
}

TEST(CopyOnWrite, WithNothingNewTheLastTokenIsComputedOnceMoreInABlockOfItsOwn) {
  for (const std::int64_t block_size : {1, 3, 4}) {
    for (const std::int32_t length : {4, 5, 8, 12}) {
      SCOPED_TRACE(fmt::format("{} tokens in blocks of {}", length, block_size));
      CacheInPlay cache(40, block_size);
      const Tokens tokens = unlike_ids(1, length);
      cache.store(0, tokens);
      const PassPlan alone = cache.store(0, tokens);  // nobody shares: in place
      EXPECT_EQ(alone.positions, std::vector<std::int32_t>{length - 1});
      EXPECT_TRUE(alone.copies.empty());
      cache.fork(0, 1);
      const PassPlan shared = cache.store(1, tokens);
      EXPECT_EQ(shared.positions, std::vector<std::int32_t>{length - 1});
      EXPECT_EQ(shared.copies.size(), 1U);
      cache.check();
      cache.free(0);
      cache.free(1);
      cache.check();
    }
  }
}

TEST(CopyOnWrite, AForkNeedsAnIdThatNoSequenceHas) {
  CacheInPlay cache(8, 4);
  cache.store(0, unlike_ids(1, 6));
  cache.store(1, unlike_ids(2, 6));
  EXPECT_THROW(cache.manager.fork(0, 1), std::logic_error);
  cache.check();
}

// ---- Reference counts ----

TEST(SharingMistake, AReusedFreeBlockKeepsAReferenceCountOfZero) {
  CacheInPlay cache(8, 4);
  const Tokens prompt = unlike_ids(1, 9);
  warm(cache, prompt);
  cache.store(0, prompt);
  for (const std::int32_t block : cache.table(0)) EXPECT_EQ(cache.manager.reference_count(block), 1);
  cache.store(1, prompt);
  const std::int32_t shared = cache.table(1)[0];
  EXPECT_EQ(cache.manager.reference_count(shared), 2);
  cache.free(0);
  EXPECT_EQ(cache.manager.reference_count(shared), 1);
  EXPECT_EQ(std::ranges::count(cache.manager.free_queue(), shared), 0) << "one still holds it";
  cache.free(1);
  EXPECT_EQ(std::ranges::count(cache.manager.free_queue(), shared), 1);
}

TEST(BlockAccounting, EveryBlockIsFreeOrCachedAfterEveryWayToEnd) {
  for (const std::int64_t length : {3, 4, 5, 7, 8, 9}) {
    CacheInPlay cache(6, 4);
    const Tokens prompt = unlike_ids(1, length);
    const auto expect_idle = [&](std::int64_t cached) {
      const BlocksReport blocks = cache.manager.blocks();
      EXPECT_EQ(blocks.in_use, 0);
      EXPECT_EQ(blocks.cached, cached);
      EXPECT_EQ(blocks.free, 6 - cached);
    };
    const Work work{0, prompt};
    cache.manager.abort(cache.manager.plan({&work, 1}).value());
    expect_idle(0);
    cache.store(0, prompt);
    cache.free(0);
    expect_idle(length / 4);
    const std::string before = cache.observed();
    cache.manager.free(0);
    cache.manager.free(77);
    EXPECT_EQ(cache.observed(), before) << "nobody is freed twice";
  }
}

// ---- Finding ----

TEST(SharingMistake, TheStaleHashOfARefilledBlockStillAnswers) {
  CacheInPlay cache(4, 16);
  const Tokens x = unlike_ids(1, 60), y = unlike_ids(2, 60);
  const auto run = [&](const Tokens& prompt) {
    const PassPlan plan = cache.store(0, prompt);
    for (std::int32_t id = 0; id < 3; ++id) cache.append(0, 500 + id);
    cache.free(0);
    return 60 - plan.tokens();
  };
  EXPECT_EQ(run(x), 0);
  EXPECT_EQ(run(y), 0);
  EXPECT_EQ(resident(cache, x), 0);
  EXPECT_EQ(run(x), 0) << "its blocks hold y";
  EXPECT_EQ(resident(cache, y), 0);
  EXPECT_EQ(cache.manager.counters().prefix_hits, 0);
  EXPECT_EQ(cache.manager.counters().evictions, 6);
}

TEST(SharingMistake, OneHashOneBlockMakesATwinUnfindable) {
  CacheInPlay cache(5, 4);
  const Tokens prompt = unlike_ids(1, 4);
  // Two sequences in one pass find nothing yet, so both compute the same block.
  cache.pass({{0, prompt}, {1, prompt}});
  ASSERT_NE(cache.table(0)[0], cache.table(1)[0]);
  for (const std::int32_t gone : {0, 1}) {
    CacheInPlay both(5, 4);
    both.pass({{0, prompt}, {1, prompt}});
    both.free(gone);
    EXPECT_EQ(resident(both, prompt), 4);
    both.store(2, unlike_ids(2, 16));  // takes all that is free, the other twin with it
    EXPECT_EQ(both.manager.counters().evictions, 1);
    EXPECT_EQ(resident(both, prompt), 4) << "the one in use is still found";
  }
}

TEST(SharingMistake, AHitIsTrustedOnItsHashAlone) {
  std::mt19937 random(11);
  for (const int bits : {1, 4, 8}) {
    CacheInPlay exact(64, 4), colliding(64, 4, {.hash_bits = bits});
    for (std::int32_t prompt = 0; prompt < 300; ++prompt) {
      Tokens ids;
      for (std::size_t n = 0; n < 4 + random() % 20; ++n)
        ids.push_back(static_cast<std::int32_t>(random() % 3));
      const PassPlan expected = exact.store(prompt, ids), plan = colliding.store(prompt, ids);
      ASSERT_EQ(plan.tokens(), expected.tokens()) << "a collision is a miss, and costs no hit: " << bits;
      exact.free(prompt);
      colliding.free(prompt);
    }
    EXPECT_EQ(colliding.manager.counters().prefix_hits, exact.manager.counters().prefix_hits);
    EXPECT_GT(exact.manager.counters().prefix_hits, 50);
  }
}

TEST(SharingMistake, TheHashCoversOnlyPartOfTheBlock) {
  CacheInPlay cache(16, 4);
  const Tokens prompt = {10, 11, 12, 13, 14, 15, 16, 17};
  cache.store(0, prompt);
  for (std::size_t changed = 0; changed < 8; ++changed) {
    Tokens other = prompt;
    other[changed] = 99;
    EXPECT_EQ(resident(cache, other), changed < 4 ? 0 : 4) << changed;
  }
  for (const std::int32_t offset : {256, 65536, 1 << 24}) {
    Tokens other = prompt;
    for (std::int32_t& id : other) id += offset;
    EXPECT_EQ(resident(cache, other), 0) << "the low bytes are equal, the ids are not: " << offset;
  }
  EXPECT_EQ(resident(cache, {11, 10, 12, 13}), 0) << "the same ids in another order";
}

TEST(SharingMistake, TheHashForgetsTheParent) {
  for (const int bits : {64, 1}) {
    CacheInPlay cache(16, 4, {.hash_bits = bits});
    const Tokens p = unlike_ids(1, 4), q = unlike_ids(2, 4), x = unlike_ids(3, 4);
    cache.store(0, joined(p, q));
    cache.store(1, joined(x, p));
    EXPECT_EQ(resident(cache, q), 0) << "q follows p there, and nobody here";
    EXPECT_EQ(resident(cache, joined(x, q)), 4) << "q follows p there, and x here";
    EXPECT_EQ(resident(cache, joined(p, q)), 8);
  }
}

TEST(SharingMistake, AHitAfterAMissStillCounts) {
  CacheInPlay cache(16, 4);
  const Tokens p = unlike_ids(1, 4), q = unlike_ids(2, 4), x = unlike_ids(3, 4);
  cache.store(0, joined(p, q));
  // x is not cached. In the cache q follows p, not x.
  const PassPlan plan = cache.store(1, joined(joined(p, x), joined(q, {7})));
  EXPECT_EQ(plan.positions.front(), 4);
  EXPECT_EQ(cache.manager.cached_tokens(1), 4);
  EXPECT_EQ(cache.manager.counters().prefix_hits, 1);
}

TEST(SharingMistake, TheWholePromptIsTakenFromTheCacheAndNoLogitsAreLeft) {
  for (const std::int64_t block_size : {1, 4, 16}) {
    for (const std::int64_t length : {1, 4, 15, 16, 17, 32}) {
      CacheInPlay cache(80, block_size);
      const Tokens prompt = unlike_ids(1, length);
      cache.store(0, prompt);
      for (const std::int32_t again : {1, 2}) {
        const PassPlan plan = cache.store(again, prompt);
        EXPECT_EQ(plan.tokens(), length - (length - 1) / block_size * block_size);
        EXPECT_EQ(plan.logits_rows.back(), plan.tokens() - 1);
        // The last token, which is computed again, goes to a block of its own.
        for (const std::int64_t slot : plan.slots)
          EXPECT_EQ(cache.manager.reference_count(static_cast<std::int32_t>(slot / block_size)), 1);
      }
    }
  }
}

TEST(PrefixHit, AnIdenticalPromptHitsAllFullBlocksButKeepsOneTokenToCompute) {
  for (const std::int64_t block_size : {1, 8, 16, 17, 32, 256}) {
    for (const std::int64_t length : {block_size - 1, block_size, block_size + 1, 2 * block_size,
                                      2 * block_size + 1, 3 * block_size - 1}) {
      if (length == 0) continue;
      CacheInPlay cache(16, block_size);
      const Tokens prompt = unlike_ids(1, length);
      EXPECT_EQ(cache.store(0, prompt).tokens(), length);
      const std::int64_t cached = (length - 1) / block_size * block_size;
      EXPECT_EQ(cache.peek(prompt), cached);
      EXPECT_EQ(cache.store(1, prompt).tokens(), length - cached);
      EXPECT_EQ(cache.manager.cached_tokens(1), cached);
      EXPECT_EQ(cache.manager.counters().prefix_hits, cached / block_size);
    }
  }
}

TEST(SharingMistake, PositionsRestartAtZeroAfterAHit) {
  CacheInPlay cache(32, 4);
  const Tokens prompt = unlike_ids(1, 21);
  warm(cache, prompt);
  for (const std::int64_t hit_blocks : {1, 2, 5}) {
    for (const std::int64_t more : {1, 3, 4, 5}) {
      const auto kind = static_cast<std::int32_t>(10 * hit_blocks + more);
      const Tokens longer = joined(first_of(prompt, hit_blocks * 4), unlike_ids(kind, more));
      const PassPlan plan = cache.store(0, longer);
      ASSERT_EQ(plan.tokens(), more);
      EXPECT_EQ(plan.positions.front(), hit_blocks * 4);
      EXPECT_EQ(plan.positions.back(), hit_blocks * 4 + more - 1);
      EXPECT_EQ(plan.context_len.back(), hit_blocks * 4 + more) << "attention sees the cached part too";
      EXPECT_EQ(plan.table_width, static_cast<std::int32_t>(std::bit_ceil((longer.size() + 3) / 4)));
      cache.append(0, 1);
      cache.free(0);
    }
  }
}

TEST(PrefixHit, SeveralTurnsOfOneConversationEachHitTheTurnsBefore) {
  CacheInPlay cache(32, 4);
  Tokens conversation = unlike_ids(1, 6);
  for (std::int32_t turn = 0; turn < 4; ++turn) {
    const std::int64_t before = turn == 0 ? 0 : static_cast<std::int64_t>(conversation.size()) / 4 * 4;
    conversation = joined(conversation, unlike_ids(10 + turn, 5));
    const PassPlan plan = cache.store(turn, conversation);
    EXPECT_EQ(plan.positions.front(), before);
    cache.free(turn);
  }
}

TEST(PrefixHit, APartlyFilledBlockIsNeverFound) {
  CacheInPlay cache(16, 16);
  const Tokens prompt = unlike_ids(1, 20);
  cache.store(0, prompt);
  EXPECT_EQ(cache.store(1, joined(prompt, unlike_ids(2, 5))).positions.front(), 16);
  for (std::int32_t id = 0; id < 4; ++id) {
    cache.append(0, 100 + id);
    cache.append(1, 200 + id);
  }
  EXPECT_EQ(resident(cache, prompt), 16);
}

TEST(PrefixHit, ABlockHasOneKeyAndOnlyOnceItIsFull) {
  CacheInPlay cache(4, 4);
  cache.store(0, {1, 2, 3});
  EXPECT_FALSE(cache.manager.findable(cache.table(0)[0]));
  EXPECT_EQ(resident(cache, {1, 2, 3}), 0);
  cache.append(0, 4);
  EXPECT_TRUE(cache.manager.findable(cache.table(0)[0]));
  EXPECT_EQ(resident(cache, {1, 2, 3, 5, 6}), 0) << "the shorter prefix is no key";
  EXPECT_EQ(resident(cache, {1, 2, 3, 4}), 4);
  cache.free(0);
  EXPECT_EQ(resident(cache, {1, 2, 3, 4}), 4);
  EXPECT_EQ(cache.manager.blocks().cached, 1);
}

TEST(PrefixHit, PrefillInChunksComesToTheSameAndItsBlocksAreFound) {
  const Tokens prompt = unlike_ids(1, 18);
  for (const std::int64_t chunk : {1, 3, 4, 5, 18}) {
    CacheInPlay cache(16, 4);
    for (std::int64_t end = std::min<std::int64_t>(chunk, 18);;
         end = std::min<std::int64_t>(end + chunk, 18)) {
      const PassPlan plan = cache.store(0, first_of(prompt, end));
      EXPECT_EQ(plan.context_len.back(), end);
      EXPECT_EQ(resident(cache, first_of(prompt, end)), end / 4 * 4);
      if (end == 18) break;
    }
    EXPECT_EQ(cache.store(1, prompt).positions.front(), 16);
  }
}

TEST(PrefixHit, ASaltStartsTheChainOfHashes) {
  // The values are those of block_hash_test.cpp.
  CacheInPlay plain(8, 4), salted(8, 4, {.salt = "tenant-a"}), short_hash(8, 4, {.hash_bits = 4});
  for (CacheInPlay* cache : {&plain, &salted, &short_hash}) cache->store(0, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_EQ(plain.manager.hash(plain.table(0)[0]), 0x27f0147e6ec514a6U);
  EXPECT_EQ(plain.manager.hash(plain.table(0)[1]), 0xec11742426488122U);
  EXPECT_EQ(plain.manager.hash(plain.table(0)[2]), 0U) << "a partly filled block has no hash";
  EXPECT_EQ(salted.manager.hash(salted.table(0)[0]), 0x1612da8bc2ec43daU);
  EXPECT_NE(salted.manager.hash(salted.table(0)[1]), plain.manager.hash(plain.table(0)[1]));
  EXPECT_EQ(short_hash.manager.hash(short_hash.table(0)[0]), 0x6U);
}

TEST(PrefixHit, OnlyTheBitsOfAHashThatAreAskedForAreKept) {
  for (const int bits : {1, 2, 31, 32, 33, 40, 63}) {
    CacheInPlay cache(40, 1, {.hash_bits = bits});
    cache.store(0, unlike_ids(1, 40));
    std::uint64_t seen = 0;
    for (const std::int32_t block : cache.table(0)) seen |= cache.manager.hash(block);
    EXPECT_EQ(seen, (std::uint64_t{1} << bits) - 1) << "all of them, and no other";
  }
}

TEST(PrefixHit, SequencesOfOneSaltShare) {
  CacheInPlay plain(8, 4), salted(8, 4, {.salt = "x"});
  const Tokens prompt = unlike_ids(1, 9);
  for (CacheInPlay* cache : {&plain, &salted}) {
    EXPECT_EQ(cache->store(0, prompt).tokens(), 9);
    EXPECT_EQ(cache->store(1, prompt).tokens(), 1);
  }
}

TEST(SharingMistake, ABlockIsPublishedBeforeItsKeysAndValuesAreWritten) {
  CacheInPlay cache(16, 4);
  const Tokens prompt = unlike_ids(1, 8);
  const Work work{0, prompt};
  const PassPlan plan = cache.manager.plan({&work, 1}).value();
  EXPECT_EQ(resident(cache, prompt), 0) << "planned, not written";
  cache.run(plan);
  EXPECT_EQ(resident(cache, prompt), 0);
  cache.manager.commit(plan);
  EXPECT_EQ(resident(cache, prompt), 8);
}

TEST(PrefixHit, SequencesOfOnePassDoNotFindEachOther) {
  CacheInPlay cache(200, 4);
  const Tokens prefix = unlike_ids(1, 32);
  for (std::int32_t round = 0; round < 20; ++round) {
    std::map<std::int32_t, Tokens> wanted;
    for (std::int32_t n = 0; n < 16; ++n) wanted[n] = joined(prefix, unlike_ids(100 + n, 3));
    const std::optional<PassPlan> plan = cache.pass(wanted);  // checks that each reads its own
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->tokens(), round == 0 ? 16 * 35 : 16 * 3);
    for (std::int32_t n = 0; n < 16; ++n) cache.free(n);
  }
}

// ---- Eviction ----

TEST(SharingMistake, FreedBlocksEnterTheQueueHeadFirst) {
  CacheInPlay cache(5, 4);
  const Tokens prompt = unlike_ids(1, 16);
  cache.store(0, prompt);
  const Table blocks = cache.table(0);
  cache.free(0);
  // First the unused block, then the sequence's blocks from its tail to its head.
  EXPECT_EQ(cache.manager.free_queue(), (Table{4, blocks[3], blocks[2], blocks[1], blocks[0]}));
  cache.store(1, unlike_ids(2, 8));
  EXPECT_EQ(resident(cache, prompt), 12) << "the end is lost, the beginning can still be shared";
}

TEST(Eviction, TheLeastRecentlyUsedGoesFromItsTailAndAHitCountsAsUse) {
  CacheInPlay cache(8, 4);
  const Tokens a = unlike_ids(1, 13), b = unlike_ids(2, 13);
  warm(cache, a);
  warm(cache, b);
  warm(cache, a);
  const auto blocks_left = [&](const Tokens& prompt) { return cache.peek(prompt) / 4; };
  const std::vector<std::pair<int, int>> expected = {{3, 3}, {3, 3}, {3, 2}, {3, 1},
                                                     {3, 0}, {2, 0}, {1, 0}, {0, 0}};
  Tokens filler;
  for (const auto& [left_of_a, left_of_b] : expected) {
    filler = joined(filler, unlike_ids(50 + static_cast<std::int32_t>(filler.size()), 4));
    cache.store(9, filler);
    EXPECT_EQ(blocks_left(a), left_of_a) << filler.size() / 4;
    EXPECT_EQ(blocks_left(b), left_of_b) << filler.size() / 4;
  }
  EXPECT_EQ(cache.manager.counters().evictions, 6);
}

TEST(Eviction, PeekingIsNoUse) {
  CacheInPlay cache(8, 4);
  const Tokens a = unlike_ids(1, 16), b = unlike_ids(2, 16);
  warm(cache, a);
  warm(cache, b);
  const std::string before = cache.observed();
  EXPECT_EQ(resident(cache, a), 16);
  EXPECT_EQ(cache.observed(), before);
  cache.store(0, unlike_ids(3, 4));
  EXPECT_EQ(resident(cache, a), 12);
  EXPECT_EQ(resident(cache, b), 16);
}

TEST(SharingMistake, AllocationEvictsTheBlocksJustHit) {
  CacheInPlay cache(8, 4);
  const Tokens p = unlike_ids(1, 16), q = unlike_ids(2, 16);
  warm(cache, p);  // the oldest in the queue: the first to be evicted
  warm(cache, q);
  const PassPlan plan = cache.store(0, joined(p, unlike_ids(3, 8)));
  EXPECT_EQ(plan.positions.front(), 16);
  EXPECT_EQ(resident(cache, q), 8) << "q makes room, not p";
  cache.free(0);
  // In one pass, a sequence may not evict a block that another sequence has hit.
  CacheInPlay batch(8, 4);
  warm(batch, p);
  warm(batch, q);
  ASSERT_TRUE(batch.pass({{0, unlike_ids(4, 8)}, {1, joined(p, {5})}}));
  EXPECT_EQ(batch.manager.cached_tokens(1), 16);
}

TEST(SharingMistake, AdmissionCountsSharedBlocksAsIfTheyHadToBeAllocated) {
  CacheInPlay cache(10, 4);
  const Tokens prefix = unlike_ids(1, 24);
  cache.store(0, prefix);
  for (std::int32_t n = 1; n <= 4; ++n) cache.store(n, joined(prefix, unlike_ids(10 + n, 3)));
  EXPECT_EQ(cache.manager.blocks().in_use, 10);
  for (std::int32_t n = 1; n <= 4; ++n) cache.free(n);
  std::map<std::int32_t, Tokens> together;
  for (std::int32_t n = 1; n <= 4; ++n) together[n] = joined(prefix, unlike_ids(20 + n, 3));
  EXPECT_TRUE(cache.pass(together)) << "and all in one pass";
}

TEST(Admission, OfEqualBlocksOneThatIsInUseIsShared) {
  // Two blocks hold the same. If one of their sequences ends, the other's block is shared, and the free copy
  // can be taken.
  for (const std::int32_t gone : {0, 1}) {
    CacheInPlay cache(3, 4);
    const Tokens prompt = unlike_ids(1, 4);
    cache.pass({{0, prompt}, {1, prompt}});
    cache.free(gone);
    ASSERT_TRUE(cache.pass({{2, joined(prompt, unlike_ids(2, 8))}}));
    EXPECT_EQ(cache.table(2)[0], cache.table(1 - gone)[0]);
  }
}

TEST(Admission, HitsThatAreFreeTakeRoomToo) {
  CacheInPlay cache(8, 4);
  const Tokens p = unlike_ids(1, 16);
  warm(cache, p);
  cache.store(0, unlike_ids(2, 12));
  const Tokens too_long = joined(p, unlike_ids(3, 12));
  for (int attempt = 0; attempt < 3; ++attempt) EXPECT_TRUE(cache.refuses(1, too_long));
  EXPECT_TRUE(cache.refuses(1, joined(p, unlike_ids(3, 5))));
  cache.store(1, joined(p, unlike_ids(4, 4)));  // four that are revived, and the one that is left
  cache.free(1);
  cache.free(0);
  EXPECT_EQ(cache.store(1, too_long).positions.front(), 16);
  cache.free(1);
  EXPECT_EQ(cache.manager.blocks().in_use, 0);
}

TEST(Admission, WhatIsCachedIsLookedUpWhenTheSequenceIsAdmittedNotBefore) {
  CacheInPlay cache(8, 4);
  const Tokens p = unlike_ids(1, 16);
  warm(cache, p);
  cache.store(0, unlike_ids(2, 28));  // leaves one block of p
  EXPECT_TRUE(cache.refuses(1, joined(p, {5})));
  cache.free(0);
  const std::int64_t left = resident(cache, p);
  EXPECT_EQ(left, 4);
  cache.store(1, joined(p, {5}));
  EXPECT_EQ(cache.manager.cached_tokens(1), left);
}

TEST(Admission, TheWatermarkBindsBesideOtherSequencesOnly) {
  CacheInPlay cache(200, 1);
  cache.store(0, unlike_ids(1, 1));
  EXPECT_TRUE(cache.refuses(1, unlike_ids(2, 198))) << "two blocks stay free beside sequence 0";
  cache.store(1, unlike_ids(2, 197));
  cache.free(0);
  cache.free(1);
  cache.store(2, unlike_ids(3, 200));
  cache.free(2);
  cache.store(3, unlike_ids(4, 5));
  cache.pin(3);
  cache.store(4, joined(unlike_ids(4, 5), unlike_ids(5, 195)));  // a pinned prefix will not grow
}

// ---- Preemption ----

TEST(Preemption, ASequenceComesBackWithAllItsIdsHoweverMuchOfItIsLeft) {
  for (const std::int64_t length : {8, 9, 11}) {
    for (const std::int64_t lost_blocks : {0, 1, 2, 3}) {
      CacheInPlay cache(4, 4);
      const Tokens prompt = unlike_ids(1, length);
      cache.store(0, prompt);
      for (int round = 0; round < 2; ++round) {
        cache.free(0);
        if (lost_blocks > 0) {
          // Takes blocks that cannot be found first, then the tail of the preempted sequence.
          const std::int64_t unfindable = 4 - length / 4;
          cache.store(1, unlike_ids(20 + round, std::min<std::int64_t>(4, unfindable + lost_blocks) * 4));
          cache.free(1);
        }
        const std::int64_t left = std::max<std::int64_t>(0, length / 4 - lost_blocks) * 4;
        const PassPlan plan = cache.store(0, prompt);
        EXPECT_EQ(plan.positions.front(), std::min(left, (length - 1) / 4 * 4));
        EXPECT_EQ(cache.sequences().at(0), prompt);
      }
    }
  }
}

// ---- Salts ----

TEST(Salt, SequencesShareWithThoseOfEqualSaltAloneHoweverManyHashesCollide) {
  // With one bit, each hash equals half of the others, so the salts themselves must be compared.
  for (const int bits : {64, 8, 1}) {
    CacheInPlay cache(100, 4, {.hash_bits = bits});
    const Tokens prompt = unlike_ids(1, 9);
    const std::vector<std::string> salts = {"", "alice", "mallory", "alic", "a", "b", "c", "d"};
    for (std::int32_t n = 0; n < std::ssize(salts); ++n) {
      cache.salts[n] = salts[static_cast<std::size_t>(n)];
      EXPECT_EQ(cache.peek(prompt, cache.salts[n]), 0);
      EXPECT_EQ(cache.store(n, prompt).tokens(), 9) << cache.salts[n] << ", " << bits << " bits";
    }
    for (std::int32_t n = 0; n < std::ssize(salts); ++n) {
      cache.salts[100 + n] = cache.salts[n];
      EXPECT_EQ(cache.store(100 + n, prompt).tokens(), 1) << cache.salts[n] << ", " << bits << " bits";
      EXPECT_EQ(cache.table(100 + n)[0], cache.table(n)[0]);
    }
  }
}

TEST(Salt, StartsTheChainOfHashesAsThatOfAManagerDoes) {
  CacheInPlay of_manager(8, 4, {.salt = "tenant-a"}), of_sequence(8, 4);
  of_sequence.salts[0] = "tenant-a";
  for (CacheInPlay* cache : {&of_manager, &of_sequence}) {
    cache->store(0, {1, 2, 3, 4, 5, 6, 7, 8, 9});
    EXPECT_EQ(cache->manager.hash(cache->table(0)[0]), 0x1612da8bc2ec43daU) << "as in block_hash_test.cpp";
    EXPECT_EQ(cache->manager.state().contents[0].parent, 0U) << "a first block follows no block";
  }
}

TEST(Salt, OfTheManagerIsThatOfSequencesWithoutOne) {
  CacheInPlay cache(16, 4, {.salt = "house"});
  const Tokens prompt = unlike_ids(1, 9);
  cache.store(0, prompt);
  EXPECT_EQ(cache.peek(prompt), 8);
  EXPECT_EQ(cache.peek(prompt, "house"), 8) << "it is the same salt, whoever says it";
  EXPECT_EQ(cache.peek(prompt, "alice"), 0);
}

TEST(Salt, GoesWithAForkAndComesBackWithAPreemptedSequence) {
  CacheInPlay cache(6, 4);
  const Tokens prompt = unlike_ids(1, 6);
  cache.salts[0] = "alice";
  cache.store(0, prompt);
  cache.fork(0, 1);
  for (std::int32_t id = 0; id < 3; ++id) cache.append(1, 100 + id);
  const Tokens of_fork = cache.sequences().at(1);
  cache.free(0);
  cache.free(1);
  EXPECT_EQ(cache.peek(of_fork, "alice"), 8) << "what the fork has filled is alice's too";
  EXPECT_EQ(cache.peek(of_fork), 0);
  EXPECT_EQ(cache.store(1, of_fork).tokens(), 1);
}

TEST(Salt, KeepsTheHostTierApartToo) {
  CacheInPlay cache(4, 4, {.host_blocks = 8, .hash_bits = 1});
  const Tokens prompt = unlike_ids(1, 16);
  cache.salts[0] = "alice";
  cache.store(0, prompt);
  cache.free(0);
  warm(cache, unlike_ids(2, 16));
  EXPECT_EQ(cache.manager.host_blocks_stored(), 4);
  EXPECT_EQ(cache.peek(prompt, "mallory"), 0);
  EXPECT_EQ(cache.peek(prompt), 0);
  EXPECT_EQ(cache.peek(prompt, "alice"), 12);
  cache.salts[1] = "mallory";
  EXPECT_TRUE(cache.store(1, prompt).swaps_in.empty());
  cache.free(1);
  EXPECT_FALSE(cache.store(0, prompt).swaps_in.empty());
}

TEST(Salt, APinnedPrefixIsSharedByItsOwnSaltAlone) {
  for (const bool prefix_cache : {true, false}) {
    CacheInPlay cache(20, 4, {.prefix_cache = prefix_cache, .salt = "house"});
    const Tokens prefix = unlike_ids(1, 10), prompt = joined(prefix, {7, 8});
    cache.store(0, prefix);
    cache.pin(0);
    cache.salts = {{1, "alice"}, {3, "house"}};
    EXPECT_EQ(cache.store(1, prompt).tokens(), 12);
    EXPECT_EQ(cache.store(2, prompt).tokens(), 2);
    EXPECT_EQ(cache.store(3, prompt).tokens(), 2);
    const PrefixCachingManager& manager = cache.manager;
    EXPECT_EQ(manager.capacity_for(prompt, ""), (20 - 3 + 2) * 4);
    EXPECT_EQ(manager.capacity_for(prompt, "house"), manager.capacity_for(prompt, ""));
    EXPECT_EQ(manager.capacity_for(prompt, "alice"), (20 - 3) * 4);
  }
}

TEST(Salt, IsForgottenWhenNoBlockIsFoundUnderItAnyMore) {
  // A client may bring a new salt with every request.
  CacheInPlay cache(6, 4, {.host_blocks = 2});
  cache.salts[0] = "alice";
  const Tokens prompt = unlike_ids(1, 9);
  cache.store(0, prompt);
  for (std::int32_t n = 1; n < 1000; ++n) {
    cache.salts[n] = "mallory " + std::to_string(n);
    cache.store(n, prompt);
    cache.free(n);
    ASSERT_EQ(cache.peek(prompt, cache.salts[n]), 8);
    ASSERT_LE(cache.manager.salts_known(), 2 * (6 + 2));
  }
  EXPECT_EQ(cache.peek(prompt, "alice"), 8) << "her sequence is still there";
  EXPECT_EQ(cache.peek(prompt, "mallory 1"), 0);
}

TEST(Salt, IsKeptAsLongAsTheHostTierHoldsABlockOfIt) {
  CacheInPlay cache(4, 4, {.host_blocks = 40});
  const Tokens prompt = unlike_ids(1, 9);
  cache.salts[0] = "alice";
  for (std::int32_t n = 1; n < 400; ++n) {
    cache.salts[n] = "mallory " + std::to_string(n);
    if (n % 8 == 1) {
      ASSERT_EQ(cache.store(0, prompt).tokens(), n == 1 ? 9 : 1);
      cache.free(0);
    }
    cache.store(n, prompt);  // what alice has left moves to the host tier
    cache.free(n);
  }
}

TEST(Salt, IsNotRememberedOfWhatHasNoBlockToFind) {
  CacheInPlay cache(6, 4), off(6, 4, {.prefix_cache = false});
  cache.salts[0] = off.salts[0] = "alice";
  cache.store(0, unlike_ids(1, 3));
  const Tokens prompt = unlike_ids(1, 9);
  off.store(0, prompt);
  off.free(0);
  cache.free(0);
  const std::vector<Work> work = cache.work_of({{0, prompt}});
  cache.manager.abort(cache.manager.plan(work).value());
  EXPECT_EQ(cache.manager.salts_known(), 0);
  EXPECT_EQ(off.manager.salts_known(), 0);
}

// ---- Pinned prefix ----

TEST(SharingMistake, ResettingASharedPrefixDropsItsOldBlocksWithoutFreeingThem) {
  CacheInPlay cache(12, 4);
  cache.store(0, unlike_ids(1, 10));
  cache.pin(0);
  EXPECT_EQ(cache.manager.blocks().in_use, 3);
  cache.store(1, unlike_ids(2, 6));
  cache.pin(1);
  EXPECT_EQ(cache.manager.blocks().in_use, 2);
  EXPECT_TRUE(cache.table(0).empty());
  for (std::int32_t n = 2; n < 50; ++n) {
    cache.store(n, unlike_ids(n + 1, 6));
    cache.pin(n);
  }
  EXPECT_EQ(cache.manager.blocks().in_use, 2);
  cache.free(49);
  EXPECT_EQ(cache.manager.blocks().in_use, 0);
  cache.store(0, unlike_ids(50, 9));  // and the freed prefix is not looked at any more
}

TEST(PinnedPrefix, ItsFullBlocksAreSharedAndItsTailIsCopied) {
  for (const bool prefix_cache : {true, false}) {
    CacheInPlay cache(16, 4, {.prefix_cache = prefix_cache});
    const Tokens prefix = unlike_ids(1, 10);
    cache.store(0, prefix);
    cache.pin(0);
    const Table pinned = cache.table(0);
    for (std::int32_t n = 1; n <= 3; ++n) {
      const PassPlan plan = cache.store(n, joined(prefix, unlike_ids(10 + n, 2)));
      EXPECT_EQ(plan.positions.front(), 10) << "only what follows the prefix is computed";
      ASSERT_EQ(plan.copies.size(), 1U);
      EXPECT_EQ(plan.copies[0].from, pinned[2]);
      EXPECT_EQ(cache.table(n)[0], pinned[0]);
      EXPECT_EQ(cache.table(n)[1], pinned[1]);
      for (std::int32_t id = 0; id < 5; ++id) cache.append(n, 300 + id);
      EXPECT_EQ(cache.table(0), pinned) << "the prefix stays as it was";
    }
    for (std::int32_t n = 1; n <= 3; ++n) cache.free(n);
    EXPECT_EQ(cache.manager.blocks().in_use, 3);
  }
}

TEST(PinnedPrefix, APromptThatIsThePrefixItselfKeepsOneTokenToCompute) {
  for (const std::int64_t length : {1, 2, 4, 5, 8}) {
    CacheInPlay cache(8, 4);
    const Tokens prefix = unlike_ids(1, length);
    cache.store(0, prefix);
    cache.pin(0);
    EXPECT_EQ(cache.store(1, prefix).tokens(), 1) << length;
    cache.append(1, 5);
  }
}

TEST(PinnedPrefix, TheCopyOfItsTailIsCountedIntoAdmission) {
  for (const std::int64_t spare : {0, 1}) {
    CacheInPlay cache(2 + spare, 4);
    const Tokens prefix = unlike_ids(1, 6);
    cache.store(0, prefix);
    cache.pin(0);
    EXPECT_EQ(cache.pass({{1, joined(prefix, {5})}}).has_value(), spare == 1);
  }
}

TEST(PinnedPrefix, APromptThatOnlyBeginsToFollowItSharesFullBlocksAlone) {
  CacheInPlay cache(16, 4);
  const Tokens prefix = unlike_ids(1, 10);
  cache.store(0, prefix);
  cache.pin(0);
  EXPECT_EQ(cache.peek(first_of(prefix, 9)), 8);
  EXPECT_EQ(cache.peek(joined(first_of(prefix, 9), {7, 7})), 8);
  EXPECT_EQ(cache.peek(unlike_ids(2, 10)), 0);
}

TEST(PinnedPrefix, ItIsNeverEvicted) {
  CacheInPlay cache(8, 4, {.host_blocks = 2});
  const Tokens prefix = unlike_ids(1, 8);
  cache.store(0, prefix);
  cache.pin(0);
  for (std::int32_t n = 1; n < 20; ++n) warm(cache, unlike_ids(n + 1, 24));
  EXPECT_EQ(resident(cache, prefix), 8);
  EXPECT_TRUE(cache.refuses(1, unlike_ids(50, 25)));
}

TEST(PinnedPrefix, PinningTheSameAgainKeepsItAndAnUnknownOneIsRefused) {
  CacheInPlay cache(8, 4);
  cache.store(0, unlike_ids(1, 6));
  cache.pin(0);
  cache.pin(0);
  EXPECT_EQ(cache.manager.blocks().in_use, 2);
  EXPECT_EQ(cache.peek(joined(unlike_ids(1, 6), {1})), 6);
  EXPECT_THROW(cache.manager.pin(5), std::logic_error);
  EXPECT_EQ(cache.manager.blocks().in_use, 2);
}

TEST(PinnedPrefix, ItsOwnBlocksAreSharedWhereACopyOfThemIsFoundUpToTheLastFullOne) {
  const Tokens prefix = unlike_ids(1, 8);
  for (const std::int32_t pinned : {0, 1}) {
    for (const bool other_runs : {true, false}) {
      CacheInPlay twins(8, 4);
      twins.pass({{0, prefix}, {1, prefix}});
      twins.pin(pinned);
      const Table own = twins.table(pinned);
      if (!other_runs) twins.free(1 - pinned);
      twins.store(2, joined(prefix, {5}));
      Table shared = twins.table(2);
      shared.resize(2);
      EXPECT_EQ(shared, own);
    }
  }
}

TEST(PinnedPrefix, LeavesItsOtherBlocksToOneSequenceAndSharesItsFullOnes) {
  CacheInPlay cache(4, 4), off(4, 4, {.prefix_cache = false});
  const Tokens prefix = unlike_ids(1, 8), other = unlike_ids(2, 20);
  for (CacheInPlay* each : {&cache, &off}) {
    EXPECT_EQ(each->manager.capacity_for(prefix, ""), 16);
    each->store(0, prefix);
    each->pin(0);
    EXPECT_EQ(each->manager.capacity_for(other, ""), 8);
    EXPECT_EQ(each->manager.capacity_for(prefix, ""), 12)
        << "its last token is computed, in a block of its own";
    EXPECT_EQ(each->manager.capacity_for(joined(prefix, {5}), ""), 16);
  }
  const Tokens half = joined(first_of(prefix, 4), {5});
  EXPECT_EQ(cache.manager.capacity_for(half, ""), 12);
  EXPECT_EQ(off.manager.capacity_for(half, ""), 8) << "without the prefix cache all of it is shared, or none";
  for (CacheInPlay* each : {&cache, &off}) {
    each->free(0);
    EXPECT_EQ(each->manager.capacity_for(other, ""), 16);
    EXPECT_EQ(each->manager.capacity_for(half, ""), 16);
  }
}

// ---- Host tier ----

TEST(SharingMistake, SwapIndexesTheHostPoolByTheBlockIdOfThePool) {
  CacheInPlay cache(8, 4, {.host_blocks = 2});
  const Tokens p = unlike_ids(1, 8);
  cache.store(0, unlike_ids(9, 24));  // blocks 0 to 5
  cache.store(1, p);                  // blocks 6 and 7, which are no blocks of the host tier
  cache.free(1);
  const PassPlan out = cache.store(2, unlike_ids(2, 8));
  ASSERT_EQ(out.swaps_out.size(), 2U);
  for (const BlockCopy& move : out.swaps_out) EXPECT_LT(move.to, 2);
  EXPECT_EQ(cache.manager.host_blocks_stored(), 2);
  // The contents come back to other blocks than before.
  cache.free(0);
  const PassPlan in = cache.store(3, joined(p, {1}));
  EXPECT_EQ(in.swaps_in.size(), 2U);
  EXPECT_EQ(in.positions.front(), 8);
  EXPECT_NE(cache.table(3)[0], 6);
  EXPECT_EQ(cache.manager.host_blocks_stored(), 0) << "they are in one place";
  EXPECT_EQ(cache.manager.counters().swaps_out, 2);
  EXPECT_EQ(cache.manager.counters().swaps_in, 2);
}

TEST(SharingMistake, ABlockIsReusedBeforeItsCopyIsDone) {
  // One pass moves p out of its blocks and q into them; the order of the moves keeps both contents.
  CacheInPlay cache(2, 4, {.host_blocks = 8});
  const Tokens p = unlike_ids(1, 8), q = unlike_ids(2, 8);
  warm(cache, p);
  warm(cache, q);
  for (int round = 0; round < 5; ++round) {
    const PassPlan plan = cache.store(0, round % 2 == 0 ? p : q);
    EXPECT_EQ(plan.swaps_in.size(), 1U);
    EXPECT_EQ(plan.positions.front(), 4);
    cache.free(0);
  }
}

TEST(HostTierOfAManager, WhatThePoolGivesUpComesBackInsteadOfBeingComputed) {
  CacheInPlay cache(4, 4, {.host_blocks = 4});
  const Tokens p = unlike_ids(1, 16);
  warm(cache, p);
  warm(cache, unlike_ids(2, 16));
  EXPECT_EQ(resident(cache, p), 16);
  const PassPlan plan = cache.store(0, p);
  EXPECT_EQ(plan.tokens(), 4) << "the last block is computed: its last token has to be";
  EXPECT_EQ(plan.swaps_in.size(), 3U);
  EXPECT_EQ(cache.manager.counters().prefix_hits, 3);
}

TEST(HostTierOfAManager, ABeginningInThePoolAndAnEndInTheHostTierAreOneHit) {
  CacheInPlay cache(5, 4, {.host_blocks = 4});
  const Tokens p = unlike_ids(1, 16);
  warm(cache, p);
  warm(cache, unlike_ids(2, 12));  // evicts the last two blocks of p
  const PassPlan plan = cache.store(0, joined(p, {1}));
  EXPECT_EQ(plan.swaps_in.size(), 2U);
  EXPECT_EQ(plan.positions.front(), 16);
}

TEST(HostTierOfAManager, AFullHostTierFallsBackToComputing) {
  CacheInPlay cache(5, 4, {.host_blocks = 2});
  const Tokens p = unlike_ids(1, 20);
  warm(cache, p);
  const PassPlan filler = cache.store(1, unlike_ids(2, 20));
  EXPECT_EQ(filler.swaps_out.size(), 2U);
  EXPECT_EQ(cache.manager.counters().evictions, 5);
  cache.free(1);
  // The beginning of p was used last, so the two host blocks keep it.
  const PassPlan plan = cache.store(0, p);
  EXPECT_EQ(plan.positions.front(), 8);
}

TEST(HostTierOfAManager, ABlockThatIsThereAlreadyBecomesTheMostRecentlyUsed) {
  CacheInPlay cache(4, 4, {.host_blocks = 2});
  const Tokens p = unlike_ids(1, 4), y = unlike_ids(2, 4), z = unlike_ids(3, 4);
  cache.pass({{0, p}, {1, p}});  // two blocks that hold the same
  cache.store(2, y);
  cache.store(3, z);
  cache.free(0);
  cache.free(2);
  cache.free(1);
  cache.free(3);
  cache.store(4, unlike_ids(4, 4));
  cache.store(5, unlike_ids(5, 4));
  EXPECT_EQ(cache.manager.host_blocks_stored(), 2) << "p and y";
  cache.store(6, unlike_ids(6, 4));  // evicts the other p
  cache.store(7, unlike_ids(7, 4));  // evicts z
  EXPECT_EQ(resident(cache, p), 4);
  EXPECT_EQ(resident(cache, z), 4);
  EXPECT_EQ(resident(cache, y), 0);
}

TEST(HostTierOfAManager, EqualBlocksThatLeaveInOnePassTakeOneHostBlock) {
  CacheInPlay cache(3, 4, {.host_blocks = 2});
  const Tokens p = unlike_ids(1, 4), y = unlike_ids(2, 4);
  cache.store(2, y);
  cache.pass({{0, p}, {1, p}});
  for (const std::int32_t sequence : {2, 0, 1}) cache.free(sequence);
  EXPECT_EQ(cache.store(3, unlike_ids(3, 12)).swaps_out.size(), 2U);
  EXPECT_EQ(resident(cache, p), 4);
  EXPECT_EQ(resident(cache, y), 4);
}

TEST(HostTierOfAManager, TheLongAndTheNextBothGoThroughAndTheTierEmpties) {
  CacheInPlay cache(6, 4, {.host_blocks = 6});
  const Tokens large = unlike_ids(1, 24), normal = unlike_ids(2, 12);
  cache.store(0, large);
  cache.free(0);  // preempted
  cache.store(1, normal);
  EXPECT_GT(cache.manager.host_blocks_stored(), 0);
  cache.free(1);
  EXPECT_EQ(cache.store(0, large).positions.front(), 20) << "all of it came back but what must be computed";
  cache.free(0);
  EXPECT_EQ(cache.store(1, normal).positions.front(), 8);
  cache.free(1);
  EXPECT_EQ(cache.manager.blocks().in_use, 0);
}

TEST(HostTierOfAManager, ARestoredSequenceOwnsItsNewBlocks) {
  CacheInPlay cache(6, 4, {.host_blocks = 8});
  const Tokens prompt = unlike_ids(1, 12);
  cache.store(0, prompt);
  cache.free(0);
  warm(cache, unlike_ids(2, 24));
  cache.store(0, joined(prompt, {1}));
  for (const std::int32_t block : cache.table(0)) EXPECT_EQ(cache.manager.reference_count(block), 1);
  cache.append(0, 2);
  cache.free(0);
  EXPECT_EQ(cache.store(3, prompt).positions.front(), 8);
  cache.free(3);
  warm(cache, unlike_ids(4, 24));
  EXPECT_EQ(cache.manager.blocks().in_use, 0);
  EXPECT_EQ(cache.store(5, prompt).positions.front(), 8);
}

TEST(HostTierOfAManager, ASequenceThatCannotBeAdmittedSwapsNothing) {
  CacheInPlay cache(6, 4, {.host_blocks = 6});
  const Tokens p = unlike_ids(1, 16);
  warm(cache, p);
  warm(cache, unlike_ids(2, 24));
  const CountersReport before = cache.manager.counters();
  for (int attempt = 0; attempt < 100; ++attempt) EXPECT_TRUE(cache.refuses(0, joined(p, unlike_ids(3, 12))));
  EXPECT_EQ(cache.manager.counters().swaps_out, before.swaps_out);
  EXPECT_EQ(cache.manager.counters().swaps_in, before.swaps_in);
  cache.store(1, unlike_ids(4, 4));
}

// ---- Abort ----

TEST(Abort, IsTheExactInverseOfPlan) {
  struct Situation {
    const char* what;
    SharingSettings settings;
    std::function<void(CacheInPlay&)> prepare;
    std::map<std::int32_t, Tokens> wanted;
    std::function<bool(const PassPlan&)> happens;  // what the plan must contain to be this situation
  };
  const Tokens p = unlike_ids(1, 16), q = unlike_ids(2, 16), r = unlike_ids(3, 24);
  const auto always = [](const PassPlan&) { return true; };
  const std::vector<Situation> situations = {
      {"a new sequence", {}, [](CacheInPlay&) {}, {{0, p}}, always},
      {"hits in use",
       {},
       [&](CacheInPlay& cache) { cache.store(9, p); },
       {{0, joined(p, {1})}},
       [](const PassPlan& plan) { return plan.tokens() == 1; }},
      {"hits that are revived from the middle of the queue",
       {},
       [&](CacheInPlay& cache) {
         warm(cache, p);
         warm(cache, q);
       },
       {{0, joined(first_of(q, 12), {1})}, {1, joined(first_of(p, 12), {2})}},
       [](const PassPlan& plan) { return plan.tokens() == 2; }},
      {"growth in place and into a new block",
       {},
       [&](CacheInPlay& cache) {
         cache.store(0, first_of(p, 6));
         cache.store(1, first_of(q, 8));
       },
       {{0, first_of(p, 7)}, {1, first_of(q, 9)}},
       always},
      {"evictions",
       {},
       [&](CacheInPlay& cache) {
         warm(cache, p);
         warm(cache, q);
       },
       {{0, r}},
       always},
      {"copies",
       {},
       [&](CacheInPlay& cache) {
         cache.store(0, first_of(p, 6));
         cache.fork(0, 1);
         cache.fork(0, 2);
       },
       {{0, first_of(p, 7)}, {1, joined(first_of(p, 6), {5, 6, 7})}, {2, joined(first_of(p, 6), {8})}},
       [](const PassPlan& plan) { return plan.copies.size() == 2; }},
      {"the tail of a pinned prefix",
       {},
       [&](CacheInPlay& cache) {
         cache.store(9, first_of(p, 6));
         cache.pin(9);
       },
       {{0, first_of(p, 8)}, {1, first_of(p, 6)}},
       [](const PassPlan& plan) { return plan.copies.size() == 2; }},
      {"swaps out and in",
       {.host_blocks = 5},
       [&](CacheInPlay& cache) {
         warm(cache, p);
         warm(cache, q);
         warm(cache, r);
         warm(cache, unlike_ids(4, 16));
       },
       {{0, joined(q, {1})}, {1, unlike_ids(5, 8)}},
       [](const PassPlan& plan) { return !plan.swaps_out.empty() && !plan.swaps_in.empty(); }},
      {"a host tier too small for what is evicted",
       {.host_blocks = 1},
       [&](CacheInPlay& cache) {
         warm(cache, p);
         warm(cache, q);
       },
       {{0, r}},
       [](const PassPlan& plan) { return plan.swaps_out.size() == 1; }},
  };
  for (const Situation& situation : situations) {
    SCOPED_TRACE(situation.what);
    CacheInPlay cache(8, 4, situation.settings);
    situation.prepare(cache);
    const std::string before = cache.observed();
    const std::vector<Work> work = cache.work_of(situation.wanted);
    std::string first;
    for (int attempt = 0; attempt < 3; ++attempt) {
      const PassPlan plan = cache.manager.plan(work).value();
      EXPECT_TRUE(situation.happens(plan));
      if (attempt == 0) first = as_text(plan);
      EXPECT_EQ(as_text(plan), first) << "after an abort the same plan is made again";
      cache.manager.abort(plan);
      EXPECT_EQ(cache.observed(), before);
      cache.check();
    }
    EXPECT_TRUE(cache.pass(situation.wanted));
  }
}

// ---- Sharing switched off ----

TEST(PrefixCacheOff, FreedBlocksAreTakenAgainInTheSameOrder) {
  CacheInPlay cache(8, 4, {.prefix_cache = false});
  cache.store(0, unlike_ids(1, 16));
  const Table first = cache.table(0);
  EXPECT_EQ(first, (Table{0, 1, 2, 3}));
  cache.free(0);
  cache.store(0, unlike_ids(2, 16));
  EXPECT_EQ(cache.table(0), first);
}

TEST(PrefixCacheOff, EveryPlanIsThatOfStepThree) {
  constexpr std::uint32_t seed = 3;
  std::mt19937 random(seed);
  const PagedShape shape{12, 4, 8};
  PagedManager paged(shape);
  PrefixCachingManager sharing(shape, {.prefix_cache = false, .host_blocks = 4});
  std::map<std::int32_t, Tokens> tokens;
  for (int step = 0; step < 3000; ++step) {
    SCOPED_TRACE(fmt::format("seed {}, step {}", seed, step));
    const auto sequence = static_cast<std::int32_t>(random() % 4);
    if (random() % 3 == 0) {
      paged.free(sequence);
      sharing.free(sequence);
      tokens.erase(sequence);
    } else {
      Tokens wanted = tokens[sequence];
      for (std::size_t n = 0; n <= random() % 7; ++n)
        wanted.push_back(static_cast<std::int32_t>(random() % 2));
      if (wanted.size() > tokens[sequence].size() + 7) continue;
      const Work work{sequence, wanted};
      const std::optional<PassPlan> expected = paged.plan({&work, 1}), plan = sharing.plan({&work, 1});
      ASSERT_EQ(plan.has_value(), expected.has_value());
      if (!plan) {
        if (tokens[sequence].empty()) tokens.erase(sequence);
        continue;
      }
      ASSERT_EQ(as_text(*plan), as_text(*expected));
      if (random() % 4 == 0) {
        paged.abort(*expected);
        sharing.abort(*plan);
        if (tokens[sequence].empty()) tokens.erase(sequence);
      } else {
        paged.commit(*expected);
        sharing.commit(*plan);
        tokens[sequence] = wanted;
      }
    }
    ASSERT_EQ(sharing.blocks().in_use, paged.blocks().in_use);
    ASSERT_EQ(sharing.blocks().cached, 0);
    ASSERT_EQ(sharing.memory().used_bytes, paged.memory().used_bytes);
    ASSERT_EQ(sharing.memory().reserved_bytes, paged.memory().reserved_bytes);
  }
}

// ---- Memory ----

TEST(Memory, SharedPositionsCountOnce) {
  CacheInPlay cache(16, 4);
  const Tokens prompt = unlike_ids(1, 9);
  cache.store(0, prompt);
  cache.store(1, joined(first_of(prompt, 8), {5, 6}));
  cache.fork(1, 2);
  const KvMemoryReport memory = cache.manager.memory();
  EXPECT_EQ(memory.used_bytes, 8 + 1 + 2);
  EXPECT_EQ(memory.reserved_bytes, 4 * 4);
  EXPECT_EQ(memory.pool_bytes, 16 * 4);
}

}  // namespace
}  // namespace kvcache
