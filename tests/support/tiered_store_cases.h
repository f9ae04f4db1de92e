/// @file
/// The tests of a store with a host tier, for every device: blocks go to the host tier and come back byte for
/// byte, and copy-on-write copies K and V of every layer.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/dtype.h"
#include "common/kv/paged_store_settings.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "tests/support/cache_in_play.h"

namespace kvcache {

/// The sizes of a tiered cache.
struct TieredSizes {
  std::int64_t blocks, block_size, host_blocks;
};

/// The tests, for a fixture with `has(dtype)` and `cache(sizes, dtype, fill)`. A cache is a manager and a
/// store with made-up numbers for K and V. V is clearly unlike K, so that a mix-up shows. It has:
///
/// - `plan(sequence, tokens)`, then `begin(plan)`, then `finish(plan)`, which writes and commits; `pass` does
///   all three.
/// - `checksums(blocks)` and `checksum_of_host_block(host_block)`.
template <typename Fixture>
class TieredStore : public Fixture {};
TYPED_TEST_SUITE_P(TieredStore);

TYPED_TEST_P(TieredStore, BlocksGoToTheHostTierAndComeBackByteForByte) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (!this->has(dtype)) continue;
    for (const DebugFill fill : {DebugFill::none, DebugFill::nan}) {
      auto cache = this->cache({6, 4, 3}, dtype, fill);
      const Tokens first = unlike_ids(0, 12), second = unlike_ids(1, 24);
      cache.pass(0, first);
      const std::vector<std::uint64_t> before = cache.checksums(cache.manager.block_table(0));
      EXPECT_NE(before[0], before[1]);
      cache.manager.free(0);

      const PassPlan out = cache.pass(1, second);
      ASSERT_EQ(out.swaps_out.size(), 3U);
      for (const BlockCopy& move : out.swaps_out) {
        EXPECT_EQ(cache.checksum_of_host_block(move.to), before[static_cast<std::size_t>(move.from)]);
        EXPECT_NE(cache.checksums({move.from})[0], before[static_cast<std::size_t>(move.from)])
            << "its place in the pool is used for something else";
      }
      cache.manager.free(1);

      const PassPlan in = cache.plan(2, joined(first, {7}));
      ASSERT_EQ(in.swaps_in.size(), 3U);
      EXPECT_EQ(in.tokens(), 1);
      cache.begin(in);
      std::vector<std::int32_t> table = cache.manager.block_table(2);
      table.resize(3);
      EXPECT_EQ(cache.checksums(table), before);
      cache.finish(in);
      EXPECT_EQ(cache.checksums(table), before) << "the pass writes elsewhere";
    }
  }
}

TYPED_TEST_P(TieredStore, ABlockMovesOutBeforeAnotherMovesIntoItsPlace) {
  auto cache = this->cache({2, 4, 4}, DType::f32, DebugFill::nan);
  const Tokens p = unlike_ids(0, 5), q = unlike_ids(1, 8);
  cache.pass(0, p);
  const std::uint64_t of_p = cache.checksums({cache.manager.block_table(0)[0]})[0];
  cache.manager.free(0);
  cache.pass(1, q);
  const std::vector<std::uint64_t> before = cache.checksums({0, 1});
  cache.manager.free(1);
  const PassPlan exchange = cache.plan(2, p);  // both blocks of q go, the block of p comes
  ASSERT_EQ(exchange.swaps_out.size(), 2U);
  ASSERT_EQ(exchange.swaps_in.size(), 1U);
  cache.begin(exchange);
  EXPECT_EQ(cache.checksums({exchange.swaps_in[0].to})[0], of_p);
  for (const BlockCopy& move : exchange.swaps_out)
    EXPECT_EQ(cache.checksum_of_host_block(move.to), before[static_cast<std::size_t>(move.from)]);
  cache.finish(exchange);
}

TYPED_TEST_P(TieredStore, CopyOnWriteCopiesKAndVOfAllLayersAndLeavesTheOriginal) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (!this->has(dtype)) continue;
    auto cache = this->cache({6, 4, 0}, dtype, DebugFill::nan);
    const Tokens tokens = unlike_ids(0, 7);
    cache.pass(0, tokens);
    cache.manager.fork(0, 1);
    const std::int32_t tail = cache.manager.block_table(0)[1];
    const std::uint64_t before = cache.checksums({tail})[0];
    const PassPlan plan = cache.plan(1, joined(tokens, {9}));
    ASSERT_EQ(plan.copies.size(), 1U);
    cache.begin(plan);
    EXPECT_EQ(cache.checksums({plan.copies[0].to})[0], before);
    cache.finish(plan);
    EXPECT_NE(cache.checksums({plan.copies[0].to})[0], before) << "the fork has written its token";
    EXPECT_EQ(cache.checksums({tail})[0], before) << "and not where the other reads";
  }
}

REGISTER_TYPED_TEST_SUITE_P(TieredStore, BlocksGoToTheHostTierAndComeBackByteForByte,
                            ABlockMovesOutBeforeAnotherMovesIntoItsPlace,
                            CopyOnWriteCopiesKAndVOfAllLayersAndLeavesTheOriginal);

}  // namespace kvcache
