// The two rungs of attention: the plain one against results worked out by hand, the fast one against the
// plain one. The fast one promises more: a row's bits depend on its query and on the keys and values it sees.
// They do not depend on where these lie, on other sequences of the pass, or on the number of threads.
#include "common/cpu/attention.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/cpu/attention_plain.h"
#include "common/cpu/lines.h"
#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

/// One sequence with `context` tokens, with the queries of all of them.
struct Problem {
  AttentionShape shape;
  std::int64_t context;
  std::vector<float> q, k, v;  // [context, heads or kv_heads, head_dim]

  /// @param activations  the type of q's numbers
  Problem(AttentionShape heads, std::int64_t tokens, DType activations = DType::f32)
      : shape(heads), context(tokens) {
    const auto size = [&](std::int64_t n) { return static_cast<std::size_t>(tokens * n * shape.head_dim); };
    q = random_numbers(size(shape.heads), 21);
    k = random_numbers(size(shape.kv_heads), 22);
    v = random_numbers(size(shape.kv_heads), 23);
    for (float& number : q) number = round_to(activations, number * 4);
  }
  std::int64_t q_width() const { return shape.heads * shape.head_dim; }
  std::int64_t kv_width() const { return shape.kv_heads * shape.head_dim; }
};

/// The last `rows` rows of the problem with contiguous K and V of type `dtype`.
std::vector<float> attend(const Problem& p, std::int64_t rows, DType dtype = DType::f32, int threads = 1,
                          DType store_as = DType::f32) {
  const std::vector<std::byte> k = stored(p.k, dtype), v = stored(p.v, dtype);
  const cpu::AttentionSequence sequence{0, rows, p.context, {}};
  ThreadPool pool(threads);
  std::vector<float> out(static_cast<std::size_t>(rows * p.q_width()), -1.0F);
  cpu::attention(p.shape, {dtype, k.data(), v.data()}, {&sequence, 1},
                 &p.q[static_cast<std::size_t>((p.context - rows) * p.q_width())], out.data(), p.q_width(),
                 store_as, pool);
  return out;
}

/// The same rows, computed by the plain rung.
std::vector<float> attend_plainly(const Problem& p, std::int64_t rows, DType dtype = DType::f32) {
  const std::vector<std::byte> k = stored(p.k, dtype), v = stored(p.v, dtype);
  std::vector<float> out(static_cast<std::size_t>(rows * p.q_width()), -1.0F);
  cpu::attention_plain(p.shape, {dtype, k.data(), v.data()}, {0, rows, p.context, {}},
                       &p.q[static_cast<std::size_t>((p.context - rows) * p.q_width())], out.data(),
                       p.q_width());
  return out;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST(Attention, ThePlainRungSolvesTheExampleOfTheBook) {  // docs/transformer.md, "An example by hand"
  Problem p({1, 1, 2}, 3);
  p.q = {1, 0, 0, 1, 2, 0};
  p.k = {1, 0, 0, 1, 1, 1};
  p.v = {10, 0, 0, 10, 5, 5};
  const std::vector<float> out = attend_plainly(p, 3);
  const float first = 1 / (1 + std::exp(1 / std::sqrt(2.0F)));  // token 1: scores 0 and 1 / sqrt(2)
  const float right[] = {10, 0, 10 * first, 10 * (1 - first), 6.69F, 3.31F};
  for (std::size_t n = 0; n < 6; ++n) EXPECT_NEAR(out[n], right[n], n < 4 ? 1e-5 : 0.005) << "number " << n;
}

/// The plain rung computes in double, the fast one rounds to float32. The largest scores here are about 5;
/// their rounding error is 2.4e-7, and that of the sums a few times as much. An error of a score changes its
/// weight by the same share. No value is beyond 1, so the result changes by no more; errors of many positions
/// partly cancel.
constexpr float kFloatBound = 1e-6F;

TEST(Attention, AgreesWithThePlainRungForEveryGroupAndHeadSize) {
  for (const AttentionShape shape :
       {AttentionShape{4, 4, 8}, {8, 2, 16}, {6, 2, 32}, {7, 1, 24}, {12, 4, 64}, {4, 2, 128}, {2, 1, 100}}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const Problem p(shape, 150);
      const std::vector<float> out = attend(p, p.context, dtype), right = attend_plainly(p, p.context, dtype);
      float worst = 0;
      for (std::size_t n = 0; n < out.size(); ++n) worst = std::max(worst, std::abs(out[n] - right[n]));
      EXPECT_LT(worst, kFloatBound) << shape.heads << "/" << shape.kv_heads << " x " << shape.head_dim << " "
                                    << name_of(dtype);
    }
  }
}

// With bf16 on both sides, the scores may come from other instructions. So only the result's rounding to bf16
// is allowed beside the bound; and where V is multiplied in bf16, the rounding of the weights: each moves its
// value, of 1 at most, by one part in 512 of its share. Errors of many positions partly cancel, so the root
// of their mean square has a closer bound.
TEST(Attention, AgreesWithThePlainRungWhenAllNumbersAreBf16) {
#if defined(KVCACHE_BF16_DOT)
  constexpr float kWeights = 1.0F / 512;
#else
  constexpr float kWeights = 0;
#endif
  for (const AttentionShape shape :
       {AttentionShape{8, 2, 16}, {4, 2, 128}, {2, 1, 100}, {6, 2, 64}, {3, 1, 40}}) {
    const Problem p(shape, 151, DType::bf16);
    const std::vector<float> right = attend_plainly(p, p.context, DType::bf16);
    for (const std::int64_t rows : {p.context, std::int64_t{1}}) {
      const std::vector<float> out = attend(p, rows, DType::bf16, 1, DType::bf16);
      double squares = 0;
      for (std::size_t n = 0; n < out.size(); ++n) {
        const float expected = right[right.size() - out.size() + n];
        ASSERT_NEAR(out[n], expected, kFloatBound + kWeights + std::abs(expected) / 256)
            << shape.head_dim << " " << n;
        squares += std::pow(out[n] - expected, 2);
      }
      EXPECT_LT(std::sqrt(squares / static_cast<double>(out.size())), 1.0 / 2048) << shape.head_dim;
    }
  }
}

TEST(Attention, ARowHasTheSameBitsWhateverRowsAreComputedWithIt) {
  struct Types {
    DType stored, activations;
  };
  for (const Types types : {Types{DType::f32, DType::f32},
                            {DType::f16, DType::f32},
                            {DType::bf16, DType::f32},
                            {DType::bf16, DType::bf16}}) {
    for (const AttentionShape shape : {AttentionShape{6, 2, 40}, {2, 1, 112}}) {
      const Problem p(shape, 199, types.activations);
      const std::vector<float> whole = attend(p, p.context, types.stored, 1, types.activations);
      for (const std::int64_t rows : {1, 2, 3, 5, 17, 64, 65, 130}) {
        for (const int threads : {1, 2, 3, 16}) {
          const std::vector<float> part = attend(p, rows, types.stored, threads, types.activations);
          EXPECT_TRUE(same_bits(part, std::span(whole).last(part.size())))
              << name_of(types.stored) << " for " << name_of(types.activations) << ", " << rows
              << " rows, head size " << shape.head_dim;
        }
      }
    }
  }
}

/// FNV-1a of the bits of the numbers.
std::uint64_t checksum(std::span<const float> numbers) {
  std::uint64_t hash = 14695981039346656037U;
  for (const float number : numbers) {
    hash ^= std::bit_cast<std::uint32_t>(number);
    hash *= 1099511628211U;
  }
  return hash;
}

// With more threads than tasks, tasks are cut and their chunks merged afterwards. The sums stand for the bits
// that one thread gave before there were cuts: a change of the order of any sum changes them.
TEST(Attention, TheBitsStayWhatTheyWereHoweverManyThreadsShareATask) {
  struct Case {
    DType dtype;
    std::int64_t rows;
    std::uint64_t sum;
  };
  const Problem p({6, 2, 40}, 1300);
  for (const Case& one : {Case{DType::f32, 1, 8078467948690063845U},
                          {DType::f32, 5, 13712920497277043500U},
                          {DType::f32, 70, 8416224996136422161U},
                          {DType::f32, 1300, 16686434714268730933U},
                          {DType::f16, 5, 2470496713675614633U},
                          {DType::bf16, 1, 10778299806709007781U},
                          {DType::bf16, 70, 13110533112648320988U}}) {
    for (const int threads : {1, 2, 5, 16}) {
      EXPECT_EQ(checksum(attend(p, one.rows, one.dtype, threads)), one.sum)
          << name_of(one.dtype) << ", " << one.rows << " rows, " << threads << " threads";
    }
  }
}

TEST(Attention, RoundsItsResultToTheTypeOfTheActivations) {
  const Problem p({4, 2, 40}, 90);
  const std::vector<float> exact = attend(p, p.context);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const std::vector<float> out = attend(p, p.context, DType::f32, 1, dtype);
    for (std::size_t n = 0; n < out.size(); ++n)
      ASSERT_EQ(out[n], round_to(dtype, exact[n])) << name_of(dtype);
    EXPECT_FALSE(same_bits(out, exact)) << "some number needs rounding";
  }
}

TEST(Attention, ReadsThroughABlockTableWithTheSameBitsAndNothingBeyondTheContext) {
  ThreadPool pool(2);
  for (const DType type : {DType::f32, DType::bf16}) {
    const Problem p({4, 2, 32}, 151, type);
    for (const std::int64_t block_size : {1, 2, 3, 7, 16, 17, 64, 100}) {
      const std::int64_t blocks = (p.context + block_size - 1) / block_size;
      std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
      for (std::int64_t b = 0; b < blocks; ++b)
        table[static_cast<std::size_t>(b)] = static_cast<std::int32_t>(2 * (blocks - b));
      const cpu::SlotMap slots{0, table.data(), block_size};
      // Every slot of no sequence holds NaN: a read of it, or a weight of 0 for it, would show.
      const auto pool_numbers = static_cast<std::size_t>((2 * blocks + 1) * block_size * p.kv_width());
      std::vector<float> k(pool_numbers, std::numeric_limits<float>::quiet_NaN()), v = k;
      for (std::int64_t position = 0; position < p.context; ++position) {
        std::copy_n(&p.k[static_cast<std::size_t>(position * p.kv_width())], p.kv_width(),
                    &k[static_cast<std::size_t>(slots.slot(position) * p.kv_width())]);
        std::copy_n(&p.v[static_cast<std::size_t>(position * p.kv_width())], p.kv_width(),
                    &v[static_cast<std::size_t>(slots.slot(position) * p.kv_width())]);
      }
      const std::vector<std::byte> k_stored = stored(k, type), v_stored = stored(v, type);
      const cpu::KvRows rows{type, k_stored.data(), v_stored.data()};
      for (const std::int64_t count : {1, 9}) {
        const cpu::AttentionSequence sequence{0, count, p.context, slots};
        const float* q = &p.q[static_cast<std::size_t>((p.context - count) * p.q_width())];
        std::vector<float> out(static_cast<std::size_t>(count * p.q_width()));
        cpu::attention(p.shape, rows, {&sequence, 1}, q, out.data(), p.q_width(), type, pool);
        EXPECT_TRUE(same_bits(out, attend(p, count, type, 1, type)))
            << name_of(type) << ", " << count << " rows, block size " << block_size;
        cpu::attention_plain(p.shape, rows, sequence, q, out.data(), p.q_width());
        EXPECT_TRUE(same_bits(out, attend_plainly(p, count, type)))
            << "plain, " << name_of(type) << ", block size " << block_size;
      }
    }
  }
}

TEST(Attention, SlotsAreListedAsTheyAreLookedUp) {
  const std::vector<std::int32_t> table{4, 0, 7, 2, 9, 5};
  for (const cpu::SlotMap& slots :
       {cpu::SlotMap{0, table.data(), 3}, {0, table.data(), 16}, {5}, {5, nullptr, 0}}) {
    for (const std::int64_t first : {0, 2, 3, 7}) {
      std::vector<std::int64_t> listed, looked_up;
      slots.each_slot(first, 10, [&](std::int64_t n, std::int64_t slot) {
        listed.push_back(n);
        listed.push_back(slot);
      });
      for (std::int64_t n = 0; n < 10; ++n) {
        looked_up.push_back(n);
        looked_up.push_back(slots.slot(first + n));
      }
      EXPECT_EQ(listed, looked_up) << "blocks of " << slots.block_size << " from position " << first;
    }
  }
}

TEST(Attention, SlotsAreCountedInSixtyFourBits) {
  const std::int32_t block = 2'000'000'000;
  EXPECT_EQ((cpu::SlotMap{0, &block, 256}.slot(255)), 512'000'000'255);
}

TEST(Attention, ZeroingOneKvHeadsValuesSilencesExactlyItsGroupOfQueryHeads) {
  for (const AttentionShape shape :
       {AttentionShape{4, 4, 16}, {8, 2, 16}, {6, 2, 16}, {7, 1, 16}, {12, 4, 16}}) {
    for (std::int64_t silent = 0; silent < shape.kv_heads; ++silent) {
      Problem p(shape, 20);
      for (std::int64_t row = 0; row < p.context; ++row) {
        std::fill_n(&p.v[static_cast<std::size_t>(row * p.kv_width() + silent * shape.head_dim)],
                    shape.head_dim, 0.0F);
      }
      for (const std::vector<float>& out : {attend(p, 1), attend_plainly(p, 1)}) {
        for (std::int64_t head = 0; head < shape.heads; ++head) {
          const float* numbers = &out[static_cast<std::size_t>(head * shape.head_dim)];
          const bool zero = std::all_of(numbers, numbers + shape.head_dim, [](float x) { return x == 0.0F; });
          EXPECT_EQ(zero, head / (shape.heads / shape.kv_heads) == silent) << "head " << head;
        }
      }
    }
  }
}

TEST(Attention, WithZeroQueriesTheOutputIsTheMeanOfTheValuesSeen) {
  for (const std::int64_t context : {1, 15, 16, 17, 63, 64, 65, 128, 129}) {
    Problem p({2, 1, 16}, context);
    std::fill(p.q.begin(), p.q.end(), 0.0F);
    const std::vector<float> out = attend(p, 1), plain = attend_plainly(p, 1);
    for (std::size_t n = 0; n < 16; ++n) {
      double mean = 0;
      for (std::int64_t row = 0; row < context; ++row)
        mean += static_cast<double>(p.v[static_cast<std::size_t>(row) * 16 + n]);
      mean /= static_cast<double>(context);
      EXPECT_NEAR(static_cast<double>(out[n]), mean, 1e-6) << context;
      EXPECT_NEAR(static_cast<double>(plain[n]), mean, 1e-7) << context;
    }
  }
}

TEST(Attention, ATokenThatSeesItselfAloneHasItsOwnValueHoweverSmallItsScoreIs) {
  Problem p({2, 2, 16}, 40);
  // A score of about -10^6, with better ones behind the mask.
  for (std::size_t n = 0; n < 32; ++n) p.k[n] = -1e6F * p.q[n];
  for (const std::vector<float>& out : {attend(p, p.context), attend_plainly(p, p.context)})
    EXPECT_TRUE(same_bits(std::span(out).first(32), std::span(p.v).first(32)));
}

// A NaN must not be lost among larger scores: what comes of it is found out later.
TEST(Attention, ANaNInAKeyReachesEveryRowAndHeadThatSeesIt) {
  const std::int64_t at = 70, rows = 3;
  for (const std::int64_t context : {71, 72, 100, 1300}) {
    Problem p({4, 2, 32}, context);
    p.k[static_cast<std::size_t>(at * p.kv_width() + 5)] = std::numeric_limits<float>::quiet_NaN();  // head 0
    for (const int threads : {1, 16}) {
      for (const std::int64_t count : {std::int64_t{1}, rows}) {
        const std::vector<float> out = attend(p, count, DType::f32, threads);
        for (std::size_t n = 0; n < out.size(); ++n) {
          const auto row = static_cast<std::int64_t>(n) / p.q_width() + context - count;
          const bool sees = row >= at && static_cast<std::int64_t>(n) % p.q_width() < 2 * p.shape.head_dim;
          ASSERT_EQ(std::isnan(out[n]), sees)
              << context << " tokens, " << threads << " threads, number " << n;
        }
      }
    }
  }
}

// With bf16, a value may be multiplied together with the next one, which its row does not see.
TEST(Attention, ANaNInAValueReachesItsNumberOfExactlyTheRowsThatSeeIt) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const std::int64_t at : {70, 71}) {
      for (const std::int64_t context : {at + 1, at + 2, at + 60}) {
        Problem p({4, 2, 40}, context, type);
        p.v[static_cast<std::size_t>(at * p.kv_width() + 5)] = std::numeric_limits<float>::quiet_NaN();
        for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{3}, context}) {
          const std::vector<float> out = attend(p, rows, type, 1, type);
          for (std::int64_t n = 0; n < std::ssize(out); ++n) {
            const std::int64_t row = n / p.q_width() + context - rows, number = n % p.q_width();
            ASSERT_EQ(std::isnan(out[static_cast<std::size_t>(n)]),
                      row >= at && (number == 5 || number == p.shape.head_dim + 5))
                << name_of(type) << ", position " << at << " of " << context << ", number " << n;
          }
        }
      }
    }
  }
}

TEST(Attention, SequencesOfOneBatchDoNotTouchEachOther) {
  const Problem a({4, 2, 16}, 70), b({4, 2, 16}, 33);
  std::vector<float> k = a.k, v = a.v;
  k.insert(k.end(), b.k.begin(), b.k.end());
  v.insert(v.end(), b.v.begin(), b.v.end());
  std::vector<float> q(a.q.end() - 3 * a.q_width(), a.q.end());
  q.insert(q.end(), b.q.end() - 5 * b.q_width(), b.q.end());
  const cpu::AttentionSequence sequences[] = {{0, 3, 70, cpu::SlotMap{.first = 0}},
                                              {3, 8, 33, cpu::SlotMap{.first = 70}}};
  ThreadPool pool(2);
  std::vector<float> out(static_cast<std::size_t>(8 * a.q_width()));
  cpu::attention(a.shape,
                 {DType::f32, reinterpret_cast<const std::byte*>(k.data()),
                  reinterpret_cast<const std::byte*>(v.data())},
                 sequences, q.data(), out.data(), a.q_width(), DType::f32, pool);
  std::vector<float> expected = attend(a, 3);
  const std::vector<float> second = attend(b, 5);
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_TRUE(same_bits(out, expected));
}

}  // namespace
}  // namespace kvcache
