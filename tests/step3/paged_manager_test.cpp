// Step 3's bookkeeping: block tables grow exactly when they must, a refusal changes nothing, and no block is
// lost. Mistakes that are easily made here have tests named after them.
#include "step3_paged/paged_manager.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/random_operations.h"

namespace kvcache {
namespace {

using Blocks = std::vector<std::int32_t>;

std::vector<std::int32_t> some_ids(std::int64_t length) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

/// A manager, and one-line calls of it. A sequence is given by its length after the pass.
class Books {
 public:
  struct Length {
    std::int32_t sequence;
    std::int64_t tokens;
  };

  Books(std::int64_t blocks, std::int64_t block_size) : manager({blocks, block_size, kBytesPerToken}) {}

  std::optional<PassPlan> plan(const std::vector<Length>& lengths) {
    std::vector<std::vector<std::int32_t>> ids;
    std::vector<Work> work;
    for (const Length& wanted : lengths) ids.push_back(some_ids(wanted.tokens));
    for (std::size_t n = 0; n < lengths.size(); ++n) work.push_back({lengths[n].sequence, ids[n]});
    return manager.plan(work);
  }

  /// Plans and commits a pass. False if it does not fit.
  bool store(const std::vector<Length>& lengths) {
    const std::optional<PassPlan> pass = plan(lengths);
    if (pass) manager.commit(*pass);
    manager.check_invariants();
    return pass.has_value();
  }

  /// The slot that the next token of a sequence would get; the plan is aborted.
  std::int64_t next_slot(std::int32_t sequence) {
    const std::optional<PassPlan> pass = plan({{sequence, manager.length(sequence) + 1}});
    manager.abort(pass.value());
    return pass->slots.back();
  }

  std::int64_t free_blocks() const { return manager.blocks().free; }
  Blocks table(std::int32_t sequence) const { return manager.block_table(sequence); }

  static constexpr std::int64_t kBytesPerToken = 24;
  PagedManager manager;
};

// ---- the pitfalls, by number ----

// 6: "offset 0 and not the first" misses the block when a later append starts the new block.
TEST(PagedManager, AnAppendThatStartsOnAFullBlockTakesANewOne) {
  Books books(8, 4);
  ASSERT_TRUE(books.store({{7, 4}}));
  EXPECT_EQ(books.table(7), (Blocks{0}));
  const std::optional<PassPlan> plan = books.plan({{7, 5}});
  EXPECT_EQ(plan.value().slots, (std::vector<std::int64_t>{4}));
  EXPECT_EQ(plan->fresh_blocks, (Blocks{1}));
  books.manager.commit(*plan);
  EXPECT_EQ(books.table(7), (Blocks{0, 1}));
}

// 7: two formulas, one to ask and one to take, that disagree at some length.
TEST(PagedManager, ASequenceGrowsExactlyAsFarAsThePoolGoesAtEveryLength) {
  for (const std::int64_t block_size : {1, 2, 3, 4, 5}) {
    for (std::int64_t blocks = 1; blocks <= 3; ++blocks) {
      for (std::int64_t start = 1; start <= 3 * block_size; ++start) {
        Books books(blocks, block_size);
        for (std::int64_t length = start; length <= 3 * block_size + 1; ++length) {
          const bool fits = length <= blocks * block_size;
          ASSERT_EQ(books.store({{0, length}}), fits)
              << length << " tokens, " << blocks << " x " << block_size;
          if (!fits) continue;
          ASSERT_EQ(static_cast<std::int64_t>(books.table(0).size()), (length + block_size - 1) / block_size);
        }
      }
    }
  }
}

// 8: length % block_size is 0 for a full last block, which is not an empty one.
TEST(PagedManager, AFullLastBlockIsFullAndNotEmpty) {
  for (const std::int64_t block_size : {1, 2, 3, 4, 16}) {
    for (std::int64_t length = 1; length <= 3 * block_size; ++length) {
      Books books(4, block_size);
      ASSERT_TRUE(books.store({{0, length}}));
      const std::int64_t blocks = (length + block_size - 1) / block_size;
      EXPECT_EQ(static_cast<std::int64_t>(books.table(0).size()), blocks);
      EXPECT_EQ(books.manager.memory().used_bytes, length * Books::kBytesPerToken);
      EXPECT_EQ(books.manager.memory().reserved_bytes, blocks * block_size * Books::kBytesPerToken);
      // Blocks 0, 1, 2 ... of a fresh pool: the slots simply go on.
      EXPECT_EQ(books.next_slot(0), length) << "block size " << block_size;
      EXPECT_EQ(static_cast<std::int64_t>(books.table(0).size()), blocks);
    }
  }
}

// 9: taking blocks until none is left, and then failing.
TEST(PagedManager, AnAppendThatDoesNotFitLeavesTheTableAsItWas) {
  Books books(4, 4);
  ASSERT_TRUE(books.store({{0, 4}}));
  ASSERT_TRUE(books.store({{1, 8}}));
  EXPECT_FALSE(books.plan({{0, 9}})) << "needs two blocks, and one is free";
  EXPECT_EQ(books.table(0), (Blocks{0}));
  EXPECT_EQ(books.manager.length(0), 4);
  EXPECT_EQ(books.free_blocks(), 1);
  ASSERT_TRUE(books.store({{0, 8}})) << "a retry with less must find the block that was left";
  EXPECT_EQ(books.table(0), (Blocks{0, 3}));
}

// 10: registering first and allocating after.
TEST(PagedManager, ASequenceThatDoesNotFitIsNotRegistered) {
  Books books(2, 4);
  ASSERT_TRUE(books.store({{0, 8}}));
  EXPECT_FALSE(books.plan({{1, 1}}));
  books.manager.check_invariants();  // throws for an empty registered sequence
  EXPECT_TRUE(books.table(1).empty());
  books.manager.free(0);
  EXPECT_FALSE(books.plan({{1, 4}, {2, 5}})) << "the first would fit, the second does not";
  books.manager.check_invariants();
  const std::optional<PassPlan> plan = books.plan({{1, 4}});
  books.manager.abort(plan.value());
  books.manager.check_invariants();
  EXPECT_EQ(books.free_blocks(), 2);
}

// 11: one "current mapping", overwritten by the last sequence of a batch.
TEST(PagedManager, EverySequenceOfABatchGetsSlotsInItsOwnBlocks) {
  Books books(8, 4);
  ASSERT_TRUE(books.store({{0, 3}, {1, 6}}));
  const std::optional<PassPlan> plan = books.plan({{0, 6}, {1, 7}, {2, 2}});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->table_width, 2);
  EXPECT_EQ(plan->block_table, (Blocks{0, 3, 1, 2, 4, -1}));
  EXPECT_EQ(plan->row_begin, (std::vector<std::int32_t>{0, 3, 4, 6}));
  EXPECT_EQ(plan->positions, (std::vector<std::int32_t>{3, 4, 5, 6, 0, 1}));
  EXPECT_EQ(plan->slots, (std::vector<std::int64_t>{3, 12, 13, 10, 16, 17}));
  EXPECT_EQ(plan->fresh_blocks, (Blocks{3, 4}));
  EXPECT_EQ(plan->logits_rows, (std::vector<std::int32_t>{2, 3, 5}));
}

// 12: the blocks of an ended sequence are not given back, and the pool drains.
TEST(PagedManager, TenThousandSequencesLaterEveryBlockIsFree) {
  std::mt19937 random(12);
  Books books(9, 4);
  for (std::int32_t sequence = 0; sequence < 10'000; ++sequence) {
    const auto length = static_cast<std::int64_t>(1 + random() % 20);
    const std::optional<PassPlan> plan = books.plan({{sequence, length}});
    ASSERT_TRUE(plan) << "sequence " << sequence << " of " << length << " tokens finds the pool drained";
    if (random() % 20 == 0) {
      books.manager.abort(*plan);
      continue;
    }
    books.manager.commit(*plan);
    ASSERT_TRUE(books.store({{sequence, length + 1 + static_cast<std::int64_t>(random() % 15)}}));
    books.manager.free(sequence);
    ASSERT_EQ(books.free_blocks(), 9);
  }
}

// 13: a prompt that is larger than the pool can only be refused; asking for ever changes nothing.
TEST(PagedManager, APromptLargerThanThePoolIsRefusedHoweverOftenItIsTried) {
  Books books(8, 16);
  EXPECT_EQ(books.manager.capacity(), 128);
  for (int attempt = 0; attempt < 5; ++attempt) {
    EXPECT_FALSE(books.store({{0, 129}}));
    EXPECT_EQ(books.free_blocks(), 8);
  }
  EXPECT_TRUE(books.store({{0, 128}}));
  EXPECT_FALSE(books.store({{0, 129}})) << "it has outgrown the pool alone";
  EXPECT_EQ(books.manager.length(0), 128);
}

// 14: the blocks that a failed allocation of several had already taken are gone.
TEST(PagedManager, AnAllocationOfSeveralBlocksThatFailsLosesNone) {
  Books books(5, 2);
  ASSERT_TRUE(books.store({{0, 3}}));
  for (int attempt = 0; attempt < 10; ++attempt) {
    EXPECT_FALSE(books.store({{1, 7}}));
    EXPECT_FALSE(books.store({{1, 4}, {2, 3}, {0, 4}}));
    ASSERT_EQ(books.free_blocks(), 3);
  }
  ASSERT_TRUE(books.store({{1, 6}}));
  EXPECT_EQ(books.table(1), (Blocks{2, 3, 4}));
}

// 15: see also BlockPool.RefusesASecondFreeOfTheSameBlock.
TEST(PagedManager, FreeingASequenceTwiceGivesItsBlocksBackOnce) {
  Books books(4, 4);
  ASSERT_TRUE(books.store({{0, 8}, {1, 4}}));
  books.manager.free(0);
  books.manager.free(0);
  books.manager.free(99);
  books.manager.check_invariants();
  EXPECT_EQ(books.free_blocks(), 3);
  EXPECT_EQ(books.table(1), (Blocks{2}));
}

// 16 is a matter of the store: see PagedKvStore.TheUnusedSlotsOfTheLastBlockTakeNoPart.

// 17: block_id * block_size in 32 bits.
TEST(PagedManager, TheSlotsOfALargePoolAreCountedInSixtyFourBits) {
  Books books(3, 2'000'000'000);
  ASSERT_TRUE(books.store({{0, 1}, {1, 1}}));
  const std::optional<PassPlan> plan = books.plan({{2, 3}});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->slots, (std::vector<std::int64_t>{4'000'000'000, 4'000'000'001, 4'000'000'002}));
  books.manager.commit(*plan);
  EXPECT_EQ(books.manager.memory().reserved_bytes, 6'000'000'000 * Books::kBytesPerToken);
  EXPECT_EQ(books.manager.capacity(), 6'000'000'000);
}

// ---- admission ----

TEST(PagedManager, APoolOfExactlyTheBlocksNeededIsEnoughAndOneFewerIsNot) {
  for (std::int64_t tokens = 1; tokens <= 18; ++tokens) {
    const std::int64_t needed = (tokens + 3) / 4;
    EXPECT_TRUE(Books(needed, 4).store({{0, tokens}})) << tokens;
    EXPECT_FALSE(Books(needed - 1, 4).store({{0, tokens}})) << tokens;
  }
}

TEST(PagedManager, ANewSequenceLeavesTheWatermarkFreeForThoseThatRun) {
  Books books(200, 1);  // a watermark of two blocks
  ASSERT_TRUE(books.store({{0, 100}}));
  EXPECT_FALSE(books.store({{1, 99}}));
  EXPECT_TRUE(books.store({{1, 98}}));
  EXPECT_FALSE(books.store({{2, 1}}));
  EXPECT_TRUE(books.store({{0, 101}, {1, 99}})) << "those that run may have the last blocks";
  EXPECT_EQ(books.free_blocks(), 0);
}

TEST(PagedManager, TheWatermarkDoesNotBindAloneInThePool) {
  Books books(200, 1);
  EXPECT_TRUE(books.store({{0, 200}})) << "nobody else runs: nothing to keep blocks for";
  books.manager.free(0);
  EXPECT_FALSE(books.store({{1, 150}, {2, 50}})) << "each is beside the other";
  EXPECT_TRUE(books.store({{1, 150}, {2, 48}}));
}

TEST(PagedManager, SmallPoolsHaveNoWatermark) {
  Books books(99, 1);
  EXPECT_TRUE(books.store({{0, 50}}));
  EXPECT_TRUE(books.store({{1, 49}}));
}

TEST(PagedManager, ARefusalChangesNothing) {
  Books books(6, 4);
  ASSERT_TRUE(books.store({{0, 5}, {1, 7}}));
  const Blocks first = books.table(0), second = books.table(1);
  EXPECT_FALSE(books.store({{0, 9}, {1, 9}, {2, 1}}));
  EXPECT_EQ(books.table(0), first);
  EXPECT_EQ(books.table(1), second);
  EXPECT_EQ(books.manager.length(0), 5);
  EXPECT_EQ(books.manager.length(1), 7);
  EXPECT_EQ(books.manager.length(2), 0);
  EXPECT_EQ(books.free_blocks(), 2);
  EXPECT_EQ(books.plan({{0, 9}, {1, 9}}).value().fresh_blocks, (Blocks{4, 5}));
}

TEST(PagedManager, AnAbortIsTheExactInverseOfItsPlan) {
  Books books(8, 2);
  ASSERT_TRUE(books.store({{0, 3}, {1, 2}}));
  const std::vector<Books::Length> lengths{{0, 5}, {2, 4}, {1, 3}};
  const std::optional<PassPlan> plan = books.plan(lengths);
  books.manager.abort(plan.value());
  books.manager.check_invariants();
  EXPECT_EQ(books.manager.length(0), 3);
  EXPECT_EQ(books.free_blocks(), 5);
  EXPECT_TRUE(same_plan(*plan, books.plan(lengths).value()));
}

TEST(PagedManager, LengthsAdvanceAtCommitAndNotBefore) {
  Books books(8, 4);
  const std::optional<PassPlan> plan = books.plan({{0, 6}});
  EXPECT_EQ(books.manager.length(0), 0);
  EXPECT_EQ(books.manager.memory().used_bytes, 0);
  books.manager.commit(plan.value());
  EXPECT_EQ(books.manager.length(0), 6);
  EXPECT_EQ(books.manager.memory().used_bytes, 6 * Books::kBytesPerToken);
}

TEST(PagedManager, WithNothingNewTheLastTokenIsComputedOnceMoreInItsOldSlot) {
  Books books(2, 4);
  ASSERT_TRUE(books.store({{0, 8}}));
  const std::optional<PassPlan> plan = books.plan({{0, 8}});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->positions, (std::vector<std::int32_t>{7}));
  EXPECT_EQ(plan->slots, (std::vector<std::int64_t>{7}));
  EXPECT_EQ(plan->logits_rows, (std::vector<std::int32_t>{0}));
  EXPECT_TRUE(plan->fresh_blocks.empty());
  books.manager.commit(*plan);
  books.manager.check_invariants();
  EXPECT_EQ(books.manager.length(0), 8);
}

TEST(PagedManager, ASequenceThatComesBackGetsTheBlocksThatWereFreedLast) {
  Books books(8, 4);
  ASSERT_TRUE(books.store({{0, 9}, {1, 4}}));
  books.manager.free(0);
  ASSERT_TRUE(books.store({{2, 12}}));
  EXPECT_EQ(books.table(2), (Blocks{0, 1, 2}));
}

TEST(PagedManager, MemoryCountsBlocksAndTokensOfAllSequences) {
  Books books(10, 4);
  ASSERT_TRUE(books.store({{0, 5}, {1, 4}, {2, 1}}));
  const KvMemoryReport memory = books.manager.memory();
  EXPECT_EQ(memory.bytes_per_token, Books::kBytesPerToken);
  EXPECT_EQ(memory.reserved_bytes, 4 * 4 * Books::kBytesPerToken);
  EXPECT_EQ(memory.used_bytes, 10 * Books::kBytesPerToken);
  EXPECT_EQ(memory.pool_bytes, 40 * Books::kBytesPerToken);
  const BlocksReport blocks = books.manager.blocks();
  EXPECT_EQ(blocks.block_size, 4);
  EXPECT_EQ(blocks.total, 10);
  EXPECT_EQ(blocks.free, 6);
  EXPECT_EQ(blocks.cached, 0);
  EXPECT_EQ(blocks.in_use, 4);
}

// ---- all of it at random ----

/// A pool and how many operations it is driven with; the seed follows from its place in the list.
struct Drive {
  std::int64_t blocks, block_size;
  int operations;
};

TEST(PagedManager, AgreesWithAPlainModelThroughAHundredThousandOperations) {
  int operations = 0, committed = 0, aborted = 0, refused = 0, freed = 0;
  std::uint32_t seed = 3000;
  for (const Drive drive : {Drive{1, 1, 5'000},
                            {1, 5, 5'000},
                            {3, 4, 20'000},
                            {8, 1, 20'000},
                            {12, 3, 20'000},
                            {7, 16, 20'000},
                            {30, 2, 15'000},
                            {120, 1, 5'000},
                            {250, 1, 2'000}}) {
    const PagedShape shape{drive.blocks, drive.block_size, 8};
    PagedManager manager(shape);
    const auto fits = [&](const PlainModel& model, std::span<const Work> work) {
      std::int64_t in_use = 0, needed = 0;
      for (const auto& [sequence, stored] : model.sequences)
        in_use += shape.blocks_for(model.length(sequence));
      bool admits = false;
      for (const Work& wanted : work) {
        const auto length = static_cast<std::int64_t>(wanted.token_ids.size());
        needed += shape.blocks_for(length) - shape.blocks_for(model.length(wanted.sequence));
        admits = admits || model.length(wanted.sequence) == 0;
      }
      const std::int64_t kept = admits && in_use > 0 ? drive.blocks / 100 : 0;
      return in_use + needed + kept <= drive.blocks;
    };
    const auto check = [&](const PlainModel& model) {
      manager.check_invariants();
      std::int64_t in_use = 0;
      for (const auto& [sequence, stored] : model.sequences) {
        const std::int64_t length = model.length(sequence);
        ASSERT_EQ(manager.length(sequence), length);
        const Blocks table = manager.block_table(sequence);
        ASSERT_EQ(static_cast<std::int64_t>(table.size()), shape.blocks_for(length));
        in_use += shape.blocks_for(length);
        for (std::int64_t position = 0; position < length; ++position) {
          const std::int64_t block = table[static_cast<std::size_t>(position / drive.block_size)];
          ASSERT_EQ(stored.slots[static_cast<std::size_t>(position)],
                    block * drive.block_size + position % drive.block_size);
        }
      }
      ASSERT_EQ(manager.blocks().in_use, in_use);
      ASSERT_EQ(manager.blocks().free, drive.blocks - in_use);
      ASSERT_EQ(manager.memory().reserved_bytes, in_use * drive.block_size * 8);
      ASSERT_EQ(manager.memory().used_bytes, model.tokens() * 8);
    };
    RandomOperations random(manager, ++seed, 1 + 2 * drive.block_size, fits, check);
    random.run(drive.operations);
    operations += drive.operations;
    committed += random.committed;
    aborted += random.aborted;
    refused += random.refused;
    freed += random.freed;
    if (HasFailure()) return;
  }
  EXPECT_GE(operations, 100'000);
  for (const int kind : {committed, aborted, refused, freed}) EXPECT_GT(kind, 5'000);
}

}  // namespace
}  // namespace kvcache
