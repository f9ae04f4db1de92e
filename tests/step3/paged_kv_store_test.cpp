// Step 3's storage: rows that were scattered to slots come back byte for byte. Attention through a block
// table has the bits of attention over keys and values that lie one after the other. It reads only the
// sequence's own slots.
#include "step3_paged/paged_kv_store.h"
#include "step3_paged/paged_manager.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "common/base/stored_number.h"
#include "step2_flat_cache/flat_cache.h"
#include "step3_paged/gather.h"
#include "tests/support/made_up_layers.h"

namespace kvcache {
namespace {

using Length = MadeUpLayers::Length;

constexpr std::int64_t kBlockSizes[] = {1, 2, 3, 7, 16, 17, 64};
constexpr AttentionPath kPaths[] = {AttentionPath::gather, AttentionPath::paged};
const float kNan = std::numeric_limits<float>::quiet_NaN();

/// A store whose memory a test can read and overwrite.
class OpenStore : public PagedKvStore {
 public:
  OpenStore(MadeUpLayers& layers, const PagedShape& shape, DType dtype, Settings settings = {})
      : PagedKvStore(layers.config(), shape, dtype, settings, layers.threads()),
        shape_(shape),
        dtype_(dtype) {}

  using PagedKvStore::k_block;
  using PagedKvStore::v_block;

  enum class What : std::uint8_t { keys, values, both };
  /// Fills the whole pool.
  void spoil(What what, float value) {
    for (std::int64_t layer = 0; layer < layers(); ++layer) {
      for (std::int64_t at = 0; at < shape_.blocks * block_bytes(); at += size_of(dtype_)) {
        if (what != What::values) write_number(dtype_, value, k_block(layer, 0) + at);
        if (what != What::keys) write_number(dtype_, value, v_block(layer, 0) + at);
      }
    }
  }
  /// K, then V of a block in every layer.
  std::vector<std::byte> bytes_of(std::int32_t block) {
    std::vector<std::byte> bytes;
    for (std::int64_t layer = 0; layer < layers(); ++layer) {
      bytes.insert(bytes.end(), k_block(layer, block), k_block(layer, block) + block_bytes());
      bytes.insert(bytes.end(), v_block(layer, block), v_block(layer, block) + block_bytes());
    }
    return bytes;
  }

 private:
  PagedShape shape_;
  DType dtype_;
};

/// A paged cache and the layers that use it.
struct PagedCache {
  PagedCache(MadeUpLayers& model, std::int64_t blocks, std::int64_t block_size,
             PagedKvStore::Settings settings = {}, DType dtype = DType::f32)
      : layers(model),
        shape{blocks, block_size, model.bytes_per_token()},
        manager(shape),
        store(model, shape, dtype, settings) {}

  void pass(const std::vector<Length>& lengths) {
    layers.pass(manager, store, lengths);
    manager.check_invariants();
  }
  std::optional<PassPlan> plan(const std::vector<Length>& lengths) { return layers.plan(manager, lengths); }

  MadeUpLayers& layers;
  PagedShape shape;
  PagedManager manager;
  OpenStore store;
};

TEST(PagedKvStore, WhatIsScatteredIsGatheredAgainByteForByte) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    MadeUpLayers layers(2, {6, 3, 6}, dtype);
    const std::int64_t lengths[] = {1, 16, 35};
    for (std::int32_t sequence = 0; sequence < 3; ++sequence)
      layers.add(sequence, 40, 9U + static_cast<std::uint32_t>(sequence));
    for (const std::int64_t block_size : kBlockSizes) {
      PagedCache cache(layers, 60, block_size, {}, dtype);
      // In two passes, so that the tables interleave.
      cache.pass({{0, 1}, {1, 5}, {2, 20}});
      cache.pass({{2, 35}, {1, 16}});
      const std::int64_t row_bytes = layers.kv_width() * size_of(dtype);
      for (std::int32_t sequence = 0; sequence < 3; ++sequence) {
        const std::vector<std::int32_t> table = cache.manager.block_table(sequence);
        const cpu::SlotMap slots{.blocks = table.data(), .block_size = block_size};
        const std::int64_t length = lengths[sequence];
        for (std::int64_t layer = 0; layer < 2; ++layer) {
          std::vector<std::byte> k(static_cast<std::size_t>(length * row_bytes)), v = k;
          cpu::gather_rows(cache.store.k_block(layer, 0), slots, length, row_bytes, k.data());
          cpu::gather_rows(cache.store.v_block(layer, 0), slots, length, row_bytes, v.data());
          EXPECT_EQ(std::memcmp(k.data(), layers.stored_k(sequence, layer).data(), k.size()), 0);
          EXPECT_EQ(std::memcmp(v.data(), layers.stored_v(sequence, layer).data(), v.size()), 0)
              << name_of(dtype) << ", block size " << block_size << ", sequence " << sequence;
        }
      }
    }
  }
}

TEST(PagedKvStore, AttendsWithTheSameBitsForEveryBlockSizePathAndType) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    MadeUpLayers layers(2, {4, 2, 24}, dtype);
    for (std::int32_t sequence = 0; sequence < 3; ++sequence)
      layers.add(sequence, 150, 50U + static_cast<std::uint32_t>(sequence));
    for (const std::int64_t block_size : kBlockSizes) {
      for (const AttentionPath path : kPaths) {
        PagedCache cache(layers, 460, block_size, {.attention = path}, dtype);
        cache.pass({{0, 1}, {1, 63}});
        cache.pass({{2, 150}, {0, 2}, {1, 64}});
        cache.pass({{0, 20}, {1, 65}});
        cache.pass({{1, 150}, {0, 21}});
      }
    }
  }
}

TEST(PagedKvStore, EveryPrefillLengthHasTheBitsOfTheFlatCacheForEveryNumberOfKvHeads) {
  for (const std::int64_t kv_heads : {1, 2, 3, 8}) {
    MadeUpLayers layers(1, {8 / kv_heads * kv_heads, kv_heads, 8});
    layers.add(0, 130, static_cast<std::uint32_t>(kv_heads));
    FlatCacheManager flat_manager({1, 130, layers.bytes_per_token()});
    FlatCacheStore flat_store(layers.config(), {1, 130, layers.bytes_per_token()}, DType::f32,
                              layers.threads());
    PagedCache paged(layers, 9, 16);
    PagedCache gathered(layers, 19, 7, {.attention = AttentionPath::gather});
    for (std::int64_t length = 1; length <= 130; ++length) {
      layers.pass(flat_manager, flat_store, {{0, length}});
      paged.pass({{0, length}});
      gathered.pass({{0, length}});
      flat_manager.free(0);
      paged.manager.free(0);
      gathered.manager.free(0);
    }
  }
}

TEST(PagedKvStore, AContextComputedInChunksHasTheBitsOfOneComputedAtOnce) {
  MadeUpLayers layers(2, {4, 2, 8});
  layers.add(0, 100, 3);
  for (const std::int64_t block_size : {4, 16}) {
    for (const std::int64_t chunk :
         {std::int64_t{1}, block_size - 1, block_size, block_size + 1, std::int64_t{100}}) {
      for (const AttentionPath path : kPaths) {
        PagedCache cache(layers, 25, block_size, {.attention = path});
        cache.store.spoil(OpenStore::What::both, kNan);
        for (std::int64_t length = 0; length < 100;) {
          length = std::min<std::int64_t>(100, length + chunk);
          cache.pass({{0, length}});
        }
      }
    }
  }
}

// Pitfall 16: a masked score of 0 times a NaN value is NaN, and a huge key takes the whole softmax.
TEST(PagedKvStore, TheUnusedSlotsOfTheLastBlockTakeNoPart) {
  for (const std::int64_t block_size : {1, 4, 7, 17}) {
    MadeUpLayers layers = small_layers(2, 3 * block_size + 1);
    for (const float value : {kNan, std::numeric_limits<float>::infinity(), 6e4F}) {
      for (const OpenStore::What what :
           {OpenStore::What::keys, OpenStore::What::values, OpenStore::What::both}) {
        for (const AttentionPath path : kPaths) {
          PagedCache cache(layers, 8, block_size, {.attention = path});
          cache.store.spoil(what, value);
          for (std::int64_t length = 1; length <= 3 * block_size; ++length) {
            cache.pass({{0, length}, {1, 3 * block_size + 1 - length}});
            cache.pass({{1, 3 * block_size + 2 - length}, {0, length + 1}});
            cache.manager.free(0);
            cache.manager.free(1);
            cache.store.spoil(what, value);
          }
        }
      }
      if (HasFailure()) return;
    }
  }
}

TEST(PagedKvStore, WithZeroQueriesTheOutputIsTheMeanOfExactlyTheTokensStored) {
  const ModelConfig config = [] {
    ModelConfig sizes;
    sizes.layers = sizes.heads = sizes.kv_heads = 1;
    sizes.head_dim = 16;
    return sizes;
  }();
  ThreadPool threads(1);
  for (const AttentionPath path : kPaths) {
    for (const std::int64_t length : {1, 3, 4, 5, 7, 8, 9, 63, 64, 65}) {
      const PagedShape shape{40, 4, config.kv_bytes_per_token(4)};
      PagedManager manager(shape);
      PagedKvStore store(config, shape, DType::f32, {path, DebugFill::huge}, threads);
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
      const Work work{0, ids};
      PassPlan plan = manager.plan({&work, 1}).value();
      // One block more than the length needs, as a table may have.
      plan.block_table.push_back(39);
      ++plan.table_width;
      Matrix q = MadeUpLayers::matrix_of(length, 16), k = MadeUpLayers::matrix_of(length, 16);
      Matrix v = MadeUpLayers::matrix_of(length, 16), out = MadeUpLayers::matrix_of(length, 16);
      for (std::int64_t row = 0; row < length; ++row) {
        std::fill_n(q.row(row), 16, 0.0F);
        std::fill_n(k.row(row), 16, 1.0F);
        std::fill_n(v.row(row), 16, static_cast<float>(row));
      }
      store.begin(plan);
      store.store_and_attend(0, {}, {q, k, v}, out);
      for (std::int64_t row = 0; row < length; ++row)
        EXPECT_NEAR(out.row(row)[5], static_cast<float>(row) / 2, 1e-5F) << length;
    }
  }
}

TEST(PagedKvStore, FreshBlocksAreFilledWhenAskedForAndNoOutputChanges) {
  MadeUpLayers layers = small_layers(2, 40);
  for (const DebugFill fill : {DebugFill::none, DebugFill::nan, DebugFill::huge}) {
    for (const AttentionPath path : kPaths) {
      PagedCache cache(layers, 12, 4, {path, fill});
      cache.pass({{0, 5}, {1, 4}});
      const std::int32_t last = cache.manager.block_table(0)[1];  // one token of four
      for (std::int64_t layer = 0; layer < 2; ++layer) {
        for (std::byte* block : {cache.store.k_block(layer, last), cache.store.v_block(layer, last)}) {
          const float unused = read_number(DType::f32, block + 2 * layers.kv_width() * 4);
          EXPECT_EQ(std::isnan(unused), fill == DebugFill::nan);
          EXPECT_EQ(unused > 1e4F, fill == DebugFill::huge);
        }
      }
      cache.pass({{0, 6}, {1, 5}});
      cache.pass({{1, 13}, {0, 7}});
      cache.manager.free(1);
      cache.pass({{0, 40}});
    }
  }
}

TEST(PagedKvStore, AReusedBlockShowsNothingOfWhoHadItBefore) {
  MadeUpLayers layers = small_layers(3, 40);
  for (const AttentionPath path : kPaths) {
    PagedCache cache(layers, 10, 4, {.attention = path});
    cache.pass({{0, 40}});
    cache.manager.free(0);
    cache.pass({{1, 3}, {2, 9}});
    cache.pass({{2, 10}, {1, 18}});
  }
}

TEST(PagedKvStore, PaddingRowsAreWrittenNowhere) {
  MadeUpLayers layers = small_layers(4, 20);
  for (const std::int64_t padding : {1, 4, 5}) {
    for (const AttentionPath path : kPaths) {
      PagedCache cache(layers, 12, 4, {.attention = path});
      // Two bystanders own block 0 and, in the end, the last block of the pool.
      cache.pass({{0, 4}});
      cache.pass({{1, 10}, {2, 8}, {3, 20}});
      cache.manager.free(2);
      cache.pass({{0, 5}});
      ASSERT_EQ(cache.manager.block_table(0)[0], 0);
      ASSERT_EQ(cache.manager.block_table(3).back(), 10);
      ASSERT_EQ(cache.manager.blocks().free, 2);
      cache.pass({{0, 13}});
      ASSERT_EQ(cache.manager.blocks().free, 0) << "every block has an owner";

      PassPlan plan = cache.plan({{1, 12}, {0, 14}}).value();
      const std::vector<std::int64_t> written = plan.slots;
      add_padding(plan, padding);
      std::vector<std::vector<std::byte>> before;
      for (std::int32_t block = 0; block < 12; ++block) before.push_back(cache.store.bytes_of(block));
      layers.send(cache.store, plan);
      for (std::int32_t block = 0; block < 12; ++block) {
        const bool ours =
            std::any_of(written.begin(), written.end(), [&](std::int64_t slot) { return slot / 4 == block; });
        EXPECT_EQ(cache.store.bytes_of(block) == before[static_cast<std::size_t>(block)], !ours)
            << "block " << block;
      }
    }
  }
}

TEST(PagedKvStore, TableEntriesBeyondTheContextAreNeverFollowed) {
  MadeUpLayers layers = small_layers(3, 60);
  for (const std::int32_t garbage :
       {-1, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min(), 29}) {
    for (const AttentionPath path : kPaths) {
      PagedCache cache(layers, 30, 4, {.attention = path});
      cache.store.spoil(OpenStore::What::both, kNan);  // block 29 among them
      cache.pass({{0, 41}, {1, 4}, {2, 7}});
      PassPlan plan = cache.plan({{0, 42}, {1, 5}, {2, 8}}).value();
      ASSERT_EQ(plan.table_width, 16);
      set_unused_entries(plan, 4, garbage);
      layers.send(cache.store, plan);
    }
  }
}

// Pitfall 17 again, at the other end: more than 2^31 elements and more than 2^31 slots.
TEST(PagedKvStore, TheHighestBlocksOfAHugePoolHaveTheBitsOfTheLowestOnes) {
  constexpr std::int32_t kBlocks = 34'000'000, kBlockSize = 64;
  static_assert(std::int64_t{kBlocks} * kBlockSize > (std::int64_t{1} << 31));
  MadeUpLayers layers(2, {2, 1, 2});
  const std::vector<std::int32_t> ids(2 * kBlockSize + 5);
  layers.add(0, 2 * kBlockSize + 5, 77);
  for (const AttentionPath path : kPaths) {
    // Address space alone; memory appears only under the blocks below.
    OpenStore store(layers, {kBlocks, kBlockSize, layers.bytes_per_token()}, DType::f32, {.attention = path});
    for (const std::int32_t first : {0, kBlocks - 3, 65'535, (1 << 24) - 1, kBlocks / 2}) {
      SCOPED_TRACE("blocks from " + std::to_string(first));
      const std::vector<std::int32_t> table{first + 2, first, first + 1};
      PassPlan plan;
      plan.add(0, ids, 0);
      plan.add_slots(table, kBlockSize);
      const std::vector<std::int32_t>* rows[] = {&table};
      plan.set_block_table(rows);
      layers.send(store, plan);
      for (std::int32_t block = 0; block < 3; ++block)
        EXPECT_TRUE(store.bytes_of(first + block) == store.bytes_of(block)) << "block " << block;
    }
  }
}

TEST(PagedKvStore, ABlockIsCopiedInEveryLayerBeforeThePassWrites) {
  MadeUpLayers layers = small_layers(1, 20);
  PagedCache cache(layers, 6, 4);
  cache.pass({{0, 6}});
  ASSERT_EQ(cache.manager.block_table(0), (std::vector<std::int32_t>{0, 1}));
  const std::vector<std::byte> original = cache.store.bytes_of(1);
  // The partial last block moves to block 5, and the next token goes there.
  PassPlan plan = cache.plan({{0, 7}}).value();
  plan.copies.push_back({1, 5});
  plan.block_table = {0, 5};
  plan.slots = {5 * 4 + 2};
  layers.send(cache.store, plan);
  EXPECT_EQ(cache.store.bytes_of(1), original) << "the original must stay as it was";
}

TEST(PagedKvStore, ManySequencesThatComeGrowAndGoAlwaysHaveTheBitsOfContiguousMemory) {
  MadeUpLayers layers = small_layers(6, 48);
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    for (const AttentionPath path : kPaths) {
      PagedCache cache(layers, 40, 3, {path, DebugFill::nan});
      come_grow_and_go(layers, cache.manager, cache.store, random, 400);
    }
  }
}

}  // namespace
}  // namespace kvcache
