// Step 2: one reservation per sequence, each sequence with its own length. Mistakes that are easily made here
// have tests named after them.
#include "step2_flat_cache/flat_cache.h"

#include <gtest/gtest.h>

#include "tests/support/made_up_layers.h"
#include "tests/support/random_operations.h"

namespace kvcache {
namespace {

using Length = MadeUpLayers::Length;

/// A flat cache and the layers that use it.
struct FlatCache {
  FlatCache(MadeUpLayers& model, std::int64_t sequences, std::int64_t max_seq_len, DType dtype = DType::f32)
      : layers(model),
        shape{sequences, max_seq_len, model.bytes_per_token()},
        manager(shape),
        store(model.config(), shape, dtype, model.threads()) {}

  void pass(const std::vector<Length>& lengths) {
    layers.pass(manager, store, lengths);
    manager.check_invariants();
  }
  std::optional<PassPlan> plan(const std::vector<Length>& lengths) { return layers.plan(manager, lengths); }

  MadeUpLayers& layers;
  FlatCacheShape shape;
  FlatCacheManager manager;
  FlatCacheStore store;
};

// ---- the pitfalls, by number ----

// 1: the length advances in every layer. With 2 layers and 3 tokens, layer 1 starts at row 3 and reads three
// rows of zeros first.
TEST(FlatCache, TheLengthAdvancesOncePerPassAndNotOncePerLayer) {
  MadeUpLayers layers(3, {4, 2, 8});
  layers.add(0, 8, 1);
  FlatCache cache(layers, 1, 8);
  cache.pass({{0, 3}});
  EXPECT_EQ(cache.manager.length(0), 3);
  cache.pass({{0, 4}});
  EXPECT_EQ(cache.manager.length(0), 4);
  EXPECT_EQ(cache.plan({{0, 5}}).value().slots, (std::vector<std::int64_t>{4}));
}

// 2: the pass that crosses max_seq_len writes into the next sequence's reservation, or drops tokens.
TEST(FlatCache, APassThatCrossesTheReservationIsRefusedBeforeAnythingIsWritten) {
  MadeUpLayers layers = small_layers();
  FlatCache cache(layers, 3, 6);
  cache.pass({{0, 4}, {1, 5}});
  EXPECT_FALSE(cache.plan({{0, 7}}));
  EXPECT_FALSE(cache.plan({{1, 6}, {0, 7}})) << "refused for the whole batch, or not at all";
  EXPECT_FALSE(cache.plan({{2, 3}, {0, 7}})) << "the new sequence must not stay registered";
  EXPECT_FALSE(cache.plan({{2, 7}}));
  cache.manager.check_invariants();
  EXPECT_EQ(cache.manager.length(0), 4);
  EXPECT_EQ(cache.manager.length(1), 5);
  EXPECT_EQ(cache.manager.length(2), 0);
  cache.pass({{0, 6}, {1, 6}, {2, 6}});
  EXPECT_EQ(cache.manager.capacity(), 6);
  EXPECT_EQ(FlatCacheManager({.sequences = 0, .max_seq_len = 6, .bytes_per_token = 1}).capacity(), 0);
}

// 3: "causal" decided by comparing shapes leaves several tokens after a context unmasked.
TEST(FlatCache, SeveralTokensAppendedToAContextDoNotSeeEachOthersFuture) {
  MadeUpLayers layers = small_layers(1);
  for (const std::int64_t context : {1, 5, 63, 64, 70}) {
    for (const std::int64_t appended : {2, 3, 16}) {
      FlatCache cache(layers, 1, 90);
      cache.pass({{0, context}});
      cache.pass({{0, context + appended}});
    }
  }
}

// 4: one position counter for a whole batch.
TEST(FlatCache, SequencesOfDifferentLengthsKeepTheirOwnPositions) {
  MadeUpLayers layers = small_layers();
  FlatCache cache(layers, 3, 90);
  cache.pass({{0, 7}});
  cache.pass({{1, 2}, {2, 66}});
  const std::optional<PassPlan> plan = cache.plan({{0, 8}, {1, 4}, {2, 67}});
  EXPECT_EQ(plan.value().positions, (std::vector<std::int32_t>{7, 2, 3, 66}));
  EXPECT_EQ(plan->slots, (std::vector<std::int64_t>{7, 90 + 2, 90 + 3, 180 + 66}));
  EXPECT_EQ(plan->context_len, (std::vector<std::int32_t>{8, 4, 67}));
  EXPECT_EQ(plan->row_begin, (std::vector<std::int32_t>{0, 1, 3, 4}));
  cache.manager.abort(*plan);
  cache.pass({{2, 67}, {0, 8}, {1, 4}});
}

// 5: bytes of one layer, of K alone, or of one sequence.
TEST(FlatCache, BytesAreCountedForKeysAndValuesOfAllLayersAndAllSequences) {
  MadeUpLayers layers(3, {8, 2, 16}, DType::bf16);
  EXPECT_EQ(layers.bytes_per_token(), 3 * 2 * 2 * 16 * 2);
  for (std::int32_t sequence : {0, 1}) layers.add(sequence, 10, 5);
  FlatCache cache(layers, 4, 10, DType::bf16);
  EXPECT_EQ(cache.manager.memory().used_bytes, 0);
  cache.pass({{0, 3}, {1, 10}});
  const KvMemoryReport memory = cache.manager.memory();
  EXPECT_EQ(memory.bytes_per_token, 384);
  EXPECT_EQ(memory.reserved_bytes, 4 * 10 * 384);
  EXPECT_EQ(memory.pool_bytes, 4 * 10 * 384);
  EXPECT_EQ(memory.used_bytes, 13 * 384);
}

// ---- clearing, reuse and sharing nothing ----

TEST(FlatCache, AReusedReservationShowsNothingOfWhoHadItBefore) {
  MadeUpLayers layers = small_layers();
  FlatCache cache(layers, 1, 90);
  cache.pass({{0, 90}});
  EXPECT_FALSE(cache.plan({{1, 1}})) << "there is one reservation, and it is taken";
  cache.manager.free(0);
  EXPECT_EQ(cache.manager.length(0), 0);
  EXPECT_EQ(cache.manager.memory().used_bytes, 0);
  cache.pass({{1, 3}});
  cache.pass({{1, 5}});
  cache.manager.free(1);
  cache.pass({{2, 64}});
}

TEST(FlatCache, AFreedSequenceStartsFromNothingWhenItComesBack) {
  MadeUpLayers layers = small_layers();
  FlatCache cache(layers, 2, 90);
  cache.pass({{0, 20}, {1, 9}});
  cache.manager.free(0);
  EXPECT_EQ(cache.plan({{0, 4}}).value().positions, (std::vector<std::int32_t>{0, 1, 2, 3}));
}

TEST(FlatCache, FreeingTwiceOrFreeingAStrangerChangesNothing) {
  MadeUpLayers layers = small_layers();
  FlatCache cache(layers, 2, 90);
  cache.pass({{0, 3}, {1, 4}});
  cache.manager.free(0);
  cache.manager.free(0);
  cache.manager.free(77);
  cache.manager.check_invariants();
  EXPECT_EQ(cache.manager.length(1), 4);
  cache.pass({{1, 5}, {2, 2}});
}

TEST(FlatCache, ThreeContinuationsOfOnePrefixDoNotDisturbEachOther) {
  MadeUpLayers layers(2, {4, 2, 8});
  for (std::int32_t sequence : {0, 1, 2}) layers.add(sequence, 40, 9);  // the same numbers
  FlatCache cache(layers, 3, 40);
  for (std::int32_t sequence : {0, 1, 2}) cache.pass({{sequence, 17}});
  cache.pass({{0, 40}});
  EXPECT_EQ(cache.manager.length(1), 17);
  cache.pass({{2, 18}, {1, 30}});
  EXPECT_EQ(cache.manager.length(2), 18);
}

TEST(FlatCache, AnAbortIsTheExactInverseOfItsPlan) {
  MadeUpLayers layers = small_layers();
  FlatCache cache(layers, 3, 10);
  cache.pass({{0, 3}, {1, 2}});
  const std::vector<Length> lengths{{1, 4}, {2, 5}, {0, 4}};
  const std::optional<PassPlan> plan = cache.plan(lengths);
  cache.manager.abort(plan.value());
  cache.manager.check_invariants();
  EXPECT_EQ(cache.manager.length(1), 2);
  EXPECT_TRUE(same_plan(*plan, cache.plan(lengths).value()));
}

TEST(FlatCache, WithNothingNewTheLastTokenIsComputedOnceMoreInItsOldSlot) {
  MadeUpLayers layers = small_layers();
  FlatCache cache(layers, 2, 10);
  cache.pass({{0, 10}, {1, 4}});
  const std::optional<PassPlan> plan = cache.plan({{0, 10}, {1, 5}});
  EXPECT_EQ(plan.value().positions, (std::vector<std::int32_t>{9, 4}));
  EXPECT_EQ(plan->slots, (std::vector<std::int64_t>{9, 14}));
  cache.manager.abort(*plan);
  cache.pass({{0, 10}, {1, 5}});
  EXPECT_EQ(cache.manager.length(0), 10);
}

TEST(FlatCache, SlotsAndBytesAreCountedInSixtyFourBits) {
  FlatCacheManager manager({3, 2'000'000'000, 100});
  const std::vector<std::int32_t> ids{1};
  for (std::int32_t sequence = 0; sequence < 3; ++sequence) {
    const Work work{sequence, ids};
    const std::optional<PassPlan> plan = manager.plan({&work, 1});
    EXPECT_EQ(plan.value().slots[0], sequence * 2'000'000'000LL);
    manager.commit(*plan);
  }
  EXPECT_EQ(manager.memory().reserved_bytes, 600'000'000'000);
}

// ---- the store, in every type and chunk ----

TEST(FlatCache, AContextComputedInChunksHasTheBitsOfOneComputedAtOnce) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    MadeUpLayers layers(2, {6, 3, 20}, dtype);
    layers.add(0, 130, 4);
    for (const std::int64_t chunk : {1, 15, 16, 17, 130}) {
      FlatCache cache(layers, 1, 130, dtype);
      for (std::int64_t length = 0; length < 130;) {
        length = std::min<std::int64_t>(130, length + chunk);
        cache.pass({{0, length}});
      }
    }
  }
}

// ---- all of it at random ----

TEST(FlatCache, AgreesWithAPlainModelThroughAHundredThousandOperations) {
  int operations = 0, committed = 0, aborted = 0, refused = 0, freed = 0;
  std::uint32_t seed = 2000;
  for (const FlatCacheShape shape :
       {FlatCacheShape{1, 1, 8}, {1, 7, 8}, {2, 12, 8}, {5, 20, 8}, {9, 33, 8}}) {
    FlatCacheManager manager(shape);
    const auto fits = [&](const PlainModel& model, std::span<const Work> work) {
      auto reservations = static_cast<std::int64_t>(model.sequences.size());
      for (const Work& wanted : work) {
        if (static_cast<std::int64_t>(wanted.token_ids.size()) > shape.max_seq_len) return false;
        if (model.length(wanted.sequence) == 0) ++reservations;
      }
      return reservations <= shape.sequences;
    };
    const auto check = [&](const PlainModel& model) {
      manager.check_invariants();
      for (const auto& [sequence, stored] : model.sequences) {
        ASSERT_EQ(manager.length(sequence), model.length(sequence));
        ASSERT_EQ(stored.slots[0] % shape.max_seq_len, 0);
        ASSERT_LT(stored.slots[0], shape.sequences * shape.max_seq_len);
        for (std::size_t position = 1; position < stored.slots.size(); ++position)
          ASSERT_EQ(stored.slots[position], stored.slots[position - 1] + 1);
      }
      ASSERT_EQ(manager.memory().used_bytes, model.tokens() * 8);
    };
    RandomOperations random(manager, ++seed, 4, fits, check);
    random.run(20'000);
    operations += 20'000;
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
