// Attention on the GPU against attention on the CPU, and its promises: the same bits wherever K and V lie and
// whatever other sequences are in the pass, and no effect of memory beyond a sequence's context.
#include "common/cuda/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "common/base/error.h"
#include "common/cpu/attention.h"
#include "tests/support/gpu.h"
#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

using cuda::AttentionKernels;
using Bytes = std::vector<std::byte>;

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// One sequence of a pass: its last `rows` of `context` tokens are in it.
struct Sequence {
  std::int32_t rows, context;
};

/// Numbers for a pass.
struct Problem {
  AttentionShape shape;
  DType dtype;
  std::vector<Sequence> sequences;
  std::vector<float> q;               // [rows, heads, head_dim], rounded to dtype
  std::vector<std::vector<float>> k;  // [sequences][context, kv_heads, head_dim]
  std::vector<std::vector<float>> v;  // as k
  std::uint32_t seed = std::random_device()();

  Problem(AttentionShape attention_shape, DType type, std::vector<Sequence> all)
      : shape(attention_shape), dtype(type), sequences(std::move(all)) {
    std::uint32_t next = seed;
    std::int64_t rows = 0;
    for (const Sequence& sequence : sequences) {
      rows += sequence.rows;
      k.push_back(random_numbers(at(sequence.context * kv_width()), ++next * 7919));
      v.push_back(random_numbers(at(sequence.context * kv_width()), next * 7919 + 1));
    }
    q = random_numbers(at(rows * q_width()), next * 7919 + 2);
    for (float& number : q) number = rounded(4 * number);
  }

  std::int64_t q_width() const { return shape.heads * shape.head_dim; }
  std::int64_t kv_width() const { return shape.kv_heads * shape.head_dim; }
  std::int64_t rows() const { return std::ssize(q) / q_width(); }
  float rounded(float number) const {
    std::byte bytes[4];
    write_number(dtype, number, bytes);
    return read_number(dtype, bytes);
  }
  /// Sequence `s` and its rows of q alone.
  Problem alone(std::size_t s) const {
    Problem one = *this;
    std::int64_t first = 0;
    for (std::size_t before = 0; before < s; ++before) first += sequences[before].rows;
    one.sequences = {sequences[s]};
    one.k = {k[s]};
    one.v = {v[s]};
    one.q.assign(q.begin() + first * q_width(), q.begin() + (first + sequences[s].rows) * q_width());
    return one;
  }
};

/// Where K and V lie, and what the slots and table entries of no sequence hold.
struct Layout {
  std::int32_t block_size = 0;  ///< 0: contiguous
  std::int32_t more_width = 1;  ///< entries of the block table that no sequence needs
  std::int32_t unused_entry = std::numeric_limits<std::int32_t>::max();
  int fill_k = 0xFF, fill_v = 0xFF;     ///< bytes of unwritten slots; 0xFF: NaN in all three types
  std::int64_t q_gap = 0, out_gap = 0;  ///< numbers between rows
  std::uint32_t shuffle = 1;            ///< seed for the order of the blocks
};

/// Attention of the whole pass on the CPU: [rows, heads, head_dim] in float32.
std::vector<float> on_cpu(const Problem& p) {
  Bytes k, v;  // [tokens of all sequences, kv_heads, head_dim]
  std::vector<cpu::AttentionSequence> sequences;
  std::int64_t row = 0, slot = 0;
  for (std::size_t s = 0; s < p.sequences.size(); ++s) {
    const auto [rows, context] = p.sequences[s];
    const Bytes own_k = stored(p.k[s], p.dtype), own_v = stored(p.v[s], p.dtype);
    k.insert(k.end(), own_k.begin(), own_k.end());
    v.insert(v.end(), own_v.begin(), own_v.end());
    sequences.push_back({row, row + rows, context, {.first = slot}});
    row += rows;
    slot += context;
  }
  ThreadPool pool(2);
  std::vector<float> out(p.q.size());
  cpu::attention(p.shape, {p.dtype, k.data(), v.data()}, sequences, p.q.data(), out.data(), p.q_width(),
                 DType::f32, pool);
  return out;
}

class CudaAttention : public OnGpu {
 protected:
  /// Whether `kernels` are what runs, and not the stage before.
  bool can_run(AttentionKernels kernels, DType dtype, std::int64_t head_dim) const {
    if (!has(dtype)) return false;
    return kernels != AttentionKernels::tensor_cores ||
           (device().compute_capability() >= 80 && dtype != DType::f32 &&
            (head_dim == 64 || head_dim == 128));
  }

  /// The cases for a promise about bits: each rung with every size of number that it can compute with.
  struct Way {
    AttentionKernels kernels;
    DType dtype;
  };
  std::vector<Way> ways(std::int64_t head_dim) const {
    std::vector<Way> all;
    for (const Way& way : {Way{AttentionKernels::plain, DType::f32},
                           {AttentionKernels::tiles, DType::f32},
                           {AttentionKernels::tiles, DType::f16},
                           {AttentionKernels::tensor_cores, DType::f16},
                           {AttentionKernels::tensor_cores, DType::bf16}}) {
      if (can_run(way.kernels, way.dtype, head_dim)) all.push_back(way);
    }
    return all;
  }

  /// The pass on the GPU: [rows, heads, head_dim] as stored. Checks that nothing else was written.
  Bytes attend(const Problem& p, AttentionKernels kernels, const Layout& layout = {}) const {
    cuda::Attention attention(device(), p.shape, p.dtype, kernels);
    return attend(p, attention, layout);
  }
  Bytes attend(const Problem& p, cuda::Attention& attention, const Layout& layout = {}) const;

  std::vector<float> numbers(const Problem& p, const Bytes& bytes) const {
    std::vector<float> result;
    for (std::size_t n = 0; n < bytes.size(); n += at(size_of(p.dtype)))
      result.push_back(read_number(p.dtype, &bytes[n]));
    return result;
  }

  /// The last rows of a prompt, as a chunk after the others, have the bits that they have in the whole
  /// prompt.
  /// @param chunks  numbers of rows
  void expect_equal_bits_in_chunks(std::int32_t tokens, const std::vector<std::int32_t>& chunks,
                                   std::int64_t head_dim) const {
    for (const auto& [kernels, dtype] : ways(head_dim)) {
      const Problem whole({6, 2, head_dim}, dtype, {{tokens, tokens}});
      const Bytes all = attend(whole, kernels);
      for (const std::int32_t rows : chunks) {
        Problem last = whole;
        last.sequences[0].rows = rows;
        last.q.erase(last.q.begin(), last.q.end() - rows * last.q_width());
        const Bytes part = attend(last, kernels);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), all.end() - std::ssize(part)))
            << describe(last, kernels);
      }
    }
  }

  /// Float32 sums are taken in another order; in 16 bits the result is rounded, on tensor cores the weights
  /// too.
  static float usual_bound(DType dtype) {
    return dtype == DType::f32 ? 5e-5F : dtype == DType::f16 ? 2e-3F : 1.5e-2F;
  }
  /// Expects every row to be right on the GPU. @param bound  of the error, relative to the row's largest
  /// number
  void expect_right(const Problem& p, AttentionKernels kernels, const Layout& layout, float bound) const {
    if (!can_run(kernels, p.dtype, p.shape.head_dim)) return;
    const std::vector<float> right = on_cpu(p), result = numbers(p, attend(p, kernels, layout));
    float worst = 0;
    for (std::int64_t row = 0; row < p.rows(); ++row) {
      float largest = 0, error = 0;
      for (std::int64_t n = row * p.q_width(); n < (row + 1) * p.q_width(); ++n) {
        largest = std::max(largest, std::abs(right[at(n)]));
        const float off = std::abs(right[at(n)] - result[at(n)]);
        error = std::isnan(off) ? std::numeric_limits<float>::infinity() : std::max(error, off);
      }
      worst = std::max(worst, error / largest);
    }
    EXPECT_LE(worst, bound) << describe(p, kernels);
  }
  void expect_right(const Problem& p, AttentionKernels kernels, const Layout& layout = {}) const {
    expect_right(p, kernels, layout, usual_bound(p.dtype));
  }

  static std::string describe(const Problem& p, AttentionKernels kernels) {
    std::string text = std::string(name_of(p.dtype)) + ", kernels " +
                       std::to_string(static_cast<int>(kernels)) + ", " + std::to_string(p.shape.heads) +
                       "/" + std::to_string(p.shape.kv_heads) + " heads of " +
                       std::to_string(p.shape.head_dim) + ", rows/context";
    for (const Sequence& s : p.sequences)
      text += " " + std::to_string(s.rows) + "/" + std::to_string(s.context);
    return text + ", seed " + std::to_string(p.seed);
  }
};

constexpr AttentionKernels kRungs[] = {AttentionKernels::plain, AttentionKernels::tiles,
                                       AttentionKernels::tensor_cores};
constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

/// `rows` [count, width] with `gap` numbers of NaN after each.
Bytes with_gaps(const std::vector<float>& rows, std::int64_t width, std::int64_t gap, DType dtype) {
  std::vector<float> wide(rows.size() / at(width) * at(width + gap), std::numeric_limits<float>::quiet_NaN());
  for (std::size_t row = 0; row < rows.size() / at(width); ++row)
    std::copy_n(&rows[row * at(width)], width, &wide[row * at(width + gap)]);
  return stored(wide, dtype);
}

/// The slots of every sequence, one after the other, and how a kernel finds them.
struct Slots {
  std::vector<std::int64_t> slots;        // [all tokens]
  std::vector<std::int64_t> first_slot;   // [sequences], contiguous
  std::vector<std::int32_t> block_table;  // [sequences, table_width], paged
  std::int32_t table_width = 0;
  std::int64_t pool = 0;  // slots in all

  Slots(const Problem& p, const Layout& layout) {
    if (layout.block_size == 0) {
      for (const Sequence& s : p.sequences) {
        first_slot.push_back(pool + 3);
        for (std::int32_t n = 0; n < s.context; ++n) slots.push_back(first_slot.back() + n);
        pool = first_slot.back() + s.context + 3;
      }
      return;
    }
    const auto blocks_of = [&](const Sequence& s) { return (s.context - 1) / layout.block_size + 1; };
    std::int32_t blocks = 0;
    for (const Sequence& s : p.sequences) {
      blocks += blocks_of(s);
      table_width = std::max(table_width, blocks_of(s) + layout.more_width);
    }
    std::vector<std::int32_t> ids(at(2 * blocks));  // half of the pool, block 0 among the rest, is nobody's
    std::iota(ids.begin(), ids.end(), 1);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(layout.shuffle));
    pool = (2 * blocks + 1) * static_cast<std::int64_t>(layout.block_size);
    block_table.assign(p.sequences.size() * at(table_width), layout.unused_entry);
    for (std::size_t s = 0; s < p.sequences.size(); ++s) {
      std::int32_t* entries = &block_table[s * at(table_width)];
      for (std::int32_t block = 0; block < blocks_of(p.sequences[s]); ++block) {
        entries[block] = ids.back();
        ids.pop_back();
      }
      for (std::int32_t n = 0; n < p.sequences[s].context; ++n) {
        slots.push_back(entries[n / layout.block_size] * static_cast<std::int64_t>(layout.block_size) +
                        n % layout.block_size);
      }
    }
  }
};

/// A pool [slots, kv_width] in which every token of all sequences lies in its slot.
Bytes pool_with(const Problem& p, const std::vector<std::vector<float>>& rows, const Slots& where, int fill) {
  const std::int64_t row_bytes = p.kv_width() * size_of(p.dtype);
  Bytes pool(at(where.pool * row_bytes), static_cast<std::byte>(fill));
  std::size_t token = 0;
  for (const std::vector<float>& sequence : rows) {
    const Bytes bytes = stored(sequence, p.dtype);
    for (std::int64_t offset = 0; offset < std::ssize(bytes); offset += row_bytes)
      std::copy_n(&bytes[at(offset)], row_bytes, &pool[at(where.slots[token++] * row_bytes)]);
  }
  return pool;
}

Bytes CudaAttention::attend(const Problem& p, cuda::Attention& attention, const Layout& layout) const {
  const Slots where(p, layout);
  const auto k = on_gpu(pool_with(p, p.k, where, layout.fill_k));
  const auto v = on_gpu(pool_with(p, p.v, where, layout.fill_v));
  const auto first_slot = on_gpu(where.first_slot);
  const auto block_table = on_gpu(where.block_table);
  const auto q = on_gpu(with_gaps(p.q, p.q_width(), layout.q_gap, p.dtype));
  const std::int64_t out_stride = p.q_width() + layout.out_gap, number_bytes = size_of(p.dtype);
  const auto out = on_gpu(Bytes(at(p.rows() * out_stride * number_bytes), std::byte{0xFF}));

  std::vector<std::int32_t> row_begin = {0}, context_len;
  for (const Sequence& sequence : p.sequences) {
    row_begin.push_back(row_begin.back() + sequence.rows);
    context_len.push_back(sequence.context);
  }
  const cuda::SlotMap slots = layout.block_size == 0 ? cuda::SlotMap{.first_slot = first_slot.data()}
                                                     : cuda::SlotMap{nullptr, block_table.data(),
                                                                     where.table_width, layout.block_size};
  attention.begin(row_begin, context_len);
  attention.run({k.data(), v.data()}, slots, q.data(), p.q_width() + layout.q_gap, out.data(), out_stride);

  const Bytes wide = from_gpu(out.data(), out.size());
  Bytes result;
  for (std::int64_t row = 0; row < p.rows(); ++row) {
    const auto begin = wide.begin() + row * out_stride * number_bytes,
               end = begin + p.q_width() * number_bytes;
    result.insert(result.end(), begin, end);
    EXPECT_TRUE(std::all_of(end, end + layout.out_gap * number_bytes, [](std::byte byte) {
      return byte == std::byte{0xFF};
    })) << "between rows";
  }
  return result;
}

TEST_F(CudaAttention, AgreesWithTheCpuForEveryGroupAndHeadSize) {
  for (const AttentionShape shape : {AttentionShape{4, 4, 8},
                                     {8, 2, 16},
                                     {6, 2, 24},
                                     {7, 1, 32},
                                     {8, 1, 64},
                                     {6, 2, 64},
                                     {3, 1, 80},
                                     {16, 1, 128},
                                     {7, 1, 128},
                                     {4, 4, 128},
                                     {20, 1, 64},
                                     {2, 1, 256}}) {
    for (const DType dtype : kTypes) {
      const Problem p(shape, dtype, {{1, 90}, {5, 5}, {23, 70}});
      for (const AttentionKernels kernels : kRungs) expect_right(p, kernels);
    }
  }
}

TEST_F(CudaAttention, DecodesRightlyAroundTheBoundariesOfTilesAndParts) {
  std::vector<Sequence> decode;
  for (const std::int32_t context :
       {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 256, 257, 511, 512, 513, 600, 1025})
    decode.push_back({1, context});
  for (const DType dtype : kTypes) {
    const Problem p({4, 2, 64}, dtype, decode);
    for (const AttentionKernels kernels : kRungs) expect_right(p, kernels, {.block_size = 16});
  }
}

TEST_F(CudaAttention, SplitsLargeGroupsAndLargeHeadsRightly) {
  for (const AttentionShape shape : {AttentionShape{20, 1, 64}, {20, 1, 80}, {2, 1, 128}, {2, 1, 256}}) {
    for (const DType dtype : kTypes) {
      const Problem p(shape, dtype, {{1, 600}, {1, 40}, {1, 257}});
      for (const AttentionKernels kernels : kRungs) expect_right(p, kernels, {.block_size = 16});
    }
  }
}

TEST_F(CudaAttention, PrefillsRightlyWithAndWithoutEarlierContext) {
  const std::vector<Sequence> prefill = {{2, 2},   {15, 15},  {16, 16},   {17, 17}, {33, 33}, {63, 63},
                                         {64, 64}, {65, 65},  {2, 64},    {2, 65},  {3, 66},  {16, 128},
                                         {31, 97}, {65, 130}, {129, 129}, {40, 300}};
  for (const DType dtype : kTypes) {
    for (const AttentionShape shape : {AttentionShape{2, 2, 64}, {6, 2, 128}}) {
      const Problem p(shape, dtype, prefill);
      for (const AttentionKernels kernels : kRungs) expect_right(p, kernels, {.block_size = 16});
    }
  }
}

TEST_F(CudaAttention, LongContextsWorkLikeShortOnes) {  // KN9
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Problem p({2, 1, 64}, dtype,
                    {{1, 4096},
                     {3, 4097},
                     {1, 8192},
                     {1, 16383},
                     {1, 16384},
                     {1, 16385},
                     {1, 32767},
                     {1, 32768},
                     {1, 32769}});
    for (const AttentionKernels kernels : kRungs) expect_right(p, kernels, {.block_size = 16});
  }
}

// A part of such a row has several spans, and its merge has room for as many queries as a tile.
TEST_F(CudaAttention, LongRowsOfLargeGroupsAreRight) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const AttentionShape shape : {AttentionShape{9, 1, 64}, {20, 1, 128}}) {
      const Problem p(shape, dtype, {{1, 16'385}, {1, 40}, {1, 33'000}});
      expect_right(p, AttentionKernels::automatic, {.block_size = 16});
    }
  }
}

// A grid counts at most 65,535 thread blocks in y and z; the work must not be laid out there.
TEST_F(CudaAttention, LargePassesMayHaveMoreThan65535RowsAndSequencesOfEachKind) {
  std::vector<Sequence> pairs;
  for (std::int32_t n = 0; n < 65'600; ++n) pairs.insert(pairs.end(), {{1, 1}, {2, 2}});
  const Problem small({1, 1, 8}, DType::f32, pairs);
  for (const AttentionKernels kernels : {AttentionKernels::plain, AttentionKernels::tiles})
    expect_right(small, kernels);
  const Problem p({1, 1, 64}, device().default_dtype(), pairs);
  expect_right(p, AttentionKernels::tensor_cores, {.block_size = 2});
}

TEST_F(CudaAttention, SixteenBitSumsOfLargeValuesAreTakenInFloat32) {  // KN14
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t head_dim : {64, 80, 128}) {
      Problem p({2, 1, head_dim}, dtype, {{1, 4096}, {2, 1000}});
      for (std::vector<float>& v : p.v) {
        for (float& number : v) number = 20000 + 20000 * number;
      }
      for (const AttentionKernels kernels : kRungs) expect_right(p, kernels);
    }
  }
}

TEST_F(CudaAttention, ScoresFarFromZeroDoNotOverflow) {
  for (const DType dtype : kTypes) {
    Problem p({2, 1, 64}, dtype, {{1, 300}, {70, 70}});
    for (float& number : p.q) number = p.rounded(number * 100);
    // Scores of a thousand have an absolute error of 1e-4, and the weights a relative one.
    for (const AttentionKernels kernels : kRungs)
      expect_right(p, kernels, {}, std::max(2e-3F, usual_bound(dtype)));
  }
}

// No finite number stands for "no key" or "no score yet": all scores of a row lie beyond 5e4, on one side.
TEST_F(CudaAttention, RowsWhoseScoresAllLieBeyondFiftyThousandOnOneSideAreRight) {
  struct Case {
    std::int64_t head_dim;
    float key;
  };
  for (const DType dtype : kTypes) {
    for (const auto& [head_dim, key] : {Case{64, 32}, {80, 32}, {128, 24}}) {
      for (const float side : {-1.0F, 1.0F}) {
        Problem p({2, 1, head_dim}, dtype, {{1, 1}, {1, 17}, {1, 300}, {1, 600}, {70, 70}, {5, 90}});
        // Exact numbers whose products, and all sums of these, are exact too. The first number of a head
        // makes the scores of a row differ, by up to 3.
        const auto is_first = [head = at(head_dim)](std::size_t n) { return n % head == 0; };
        for (std::size_t n = 0; n < p.q.size(); ++n) p.q[n] = is_first(n) ? 1 : side * 256;
        for (std::vector<float>& k : p.k) {
          for (std::size_t n = 0; n < k.size(); ++n)
            k[n] = is_first(n) ? static_cast<float>(n / at(head_dim) % 4 * 8) : key;
        }
        const double large = static_cast<double>(head_dim - 1) * 256 * static_cast<double>(key);
        ASSERT_GT(large / std::sqrt(static_cast<double>(head_dim)), 5e4);
        // Such a score is a float with steps of 1/128, so a weight is known to 1%, on either device.
        for (const AttentionKernels kernels : kRungs) {
          expect_right(p, kernels, {}, 2e-2F);
          expect_right(p, kernels, {.block_size = 16}, 2e-2F);
        }
      }
    }
  }
}

/// Decode and prefill together, over several parts, with a group that fills no tile.
std::vector<Sequence> mixed() {
  return {{1, 1}, {7, 40}, {1, 300}, {1, 65}, {30, 30}, {1, 530}, {2, 257}};
}

TEST_F(CudaAttention, HasTheSameBitsContiguousAndForEveryBlockSizeAndOrderOfBlocks) {
  for (const AttentionShape shape : {AttentionShape{6, 2, 64}, {2, 1, 128}}) {
    for (const auto& [kernels, dtype] : ways(shape.head_dim)) {
      const Problem p(shape, dtype, mixed());
      const Bytes contiguous = attend(p, kernels);
      for (const std::int32_t block_size : {1, 2, 3, 7, 8, 16, 17, 64, 256}) {
        for (const std::uint32_t shuffle : {1U, 2U}) {
          const Layout paged{.block_size = block_size, .shuffle = shuffle};
          EXPECT_EQ(attend(p, kernels, paged), contiguous)
              << "block size " << block_size << ", " << describe(p, kernels);
        }
      }
    }
  }
}

TEST_F(CudaAttention, NothingBeyondAContextIsUsed) {  // KN1
  for (const AttentionKernels kernels : kRungs) {
    for (const DType dtype : kTypes) {
      if (!can_run(kernels, dtype, 64)) continue;
      std::vector<Sequence> every_length;
      for (std::int32_t context = 1; context <= 48; ++context) every_length.push_back({1, context});
      for (std::int32_t context = 2; context <= 48; context += 3) every_length.push_back({2, context});
      const Problem p({2, 1, 64}, dtype, every_length);
      const Bytes over_zeros = attend(p, kernels, {.block_size = 16, .fill_k = 0, .fill_v = 0});
      EXPECT_EQ(attend(p, kernels, {.block_size = 16, .fill_k = 0xFF, .fill_v = 0}), over_zeros);
      EXPECT_EQ(attend(p, kernels, {.block_size = 16, .fill_k = 0, .fill_v = 0xFF}), over_zeros);
      EXPECT_EQ(attend(p, kernels, {.block_size = 16, .fill_k = 0xFF, .fill_v = 0xFF}), over_zeros);
      for (const float number : numbers(p, over_zeros)) ASSERT_TRUE(std::isfinite(number));
    }
  }
}

TEST_F(CudaAttention, WithZeroQueriesTheOutputIsTheMeanOfExactlyTheValuesSeen) {  // KN3
  for (const DType dtype : {DType::f32, device().default_dtype()}) {
    Problem p({2, 1, 64}, dtype,
              {{1, 15}, {1, 16}, {1, 17}, {1, 31}, {1, 32}, {1, 33}, {1, 255}, {1, 257}, {33, 33}});
    std::fill(p.q.begin(), p.q.end(), 0.0F);
    std::vector<float> means;
    for (std::size_t s = 0; s < p.sequences.size(); ++s) {
      const auto [rows, context] = p.sequences[s];
      for (std::int32_t visible = context - rows + 1; visible <= context; ++visible) {
        for (std::int64_t head = 0; head < 2; ++head) {
          for (std::int64_t dim = 0; dim < 64; ++dim) {
            double sum = 0;
            for (std::int64_t n = 0; n < visible; ++n)
              sum += static_cast<double>(p.rounded(p.v[s][at(n * 64 + dim)]));
            means.push_back(static_cast<float>(sum / visible));
          }
        }
      }
    }
    // Half a unit in the last place of the result, and float32 sums.
    const float relative = dtype == DType::f32 ? 0.0F : dtype == DType::f16 ? 0x1p-11F : 0x1p-8F;
    for (const AttentionKernels kernels : kRungs) {
      if (!can_run(kernels, dtype, 64)) continue;
      const std::vector<float> result = numbers(p, attend(p, kernels, {.block_size = 16}));
      for (std::size_t n = 0; n < means.size(); ++n)
        ASSERT_NEAR(result[n], means[n], relative * std::abs(means[n]) + 1e-6F) << describe(p, kernels);
    }
  }
}

TEST_F(CudaAttention, UnusedEntriesOfTheBlockTableAreNotFollowedWhateverItsWidth) {  // KN5, KN13
  for (const auto& [kernels, dtype] : ways(64)) {
    for (std::int32_t width = 1; width <= 9; ++width) {
      const Problem p({2, 1, 64}, dtype, {{1, 9}, {3, 16}, {1, 1}});
      const Bytes contiguous = attend(p, kernels);
      for (const std::int32_t unused : {-1, std::numeric_limits<std::int32_t>::max()}) {
        const Layout paged{.block_size = 16, .more_width = width - 1, .unused_entry = unused};
        EXPECT_EQ(attend(p, kernels, paged), contiguous) << "width " << width << ", unused " << unused;
      }
    }
  }
}

TEST_F(CudaAttention, ASequenceHasTheSameBitsAloneAndInABatch) {
  for (const auto& [kernels, dtype] : ways(64)) {
    const Problem p({6, 2, 64}, dtype, mixed());
    Bytes one_by_one;
    for (std::size_t s = 0; s < p.sequences.size(); ++s) {
      const Bytes alone = attend(p.alone(s), kernels, {.block_size = 7});
      one_by_one.insert(one_by_one.end(), alone.begin(), alone.end());
    }
    EXPECT_EQ(attend(p, kernels, {.block_size = 16}), one_by_one) << describe(p, kernels);
  }
}

/// A pass of few thread blocks gives each more shared memory than one that fills the GPU.
TEST_F(CudaAttention, ADecodedRowHasTheSameBitsInAPassThatFillsTheGpu) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const auto& [kernels, dtype] : ways(head_dim)) {
      std::vector<Sequence> sequences;
      for (std::int32_t n = 0; n < 80; ++n) sequences.push_back({1, 1 + n * 9});
      const Problem p({8, 4, head_dim}, dtype, sequences);  // 320 thread blocks and more
      const Bytes together = attend(p, kernels);
      const std::size_t row = together.size() / sequences.size();
      for (const std::size_t s : {0U, 13U, 14U, 28U, 29U, 57U, 79U}) {
        const Bytes alone = attend(p.alone(s), kernels);
        EXPECT_TRUE(
            std::equal(alone.begin(), alone.end(), together.begin() + static_cast<std::ptrdiff_t>(s * row)))
            << describe(p, kernels) << ", sequence " << s;
      }
    }
  }
}

/// Rows that share a prefix, of lengths whose parts have one span, two or three. Only keys of the second span
/// have a weight that is not zero, so the result is that span's. Its bits do not depend on the row's length.
TEST_F(CudaAttention, RowsThatShareAPrefixHaveEqualSpansInsideIt) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      if (!can_run(AttentionKernels::tensor_cores, dtype, head_dim)) continue;
      Problem longest({2, 1, head_dim}, dtype, {{1, 40'000}});
      for (std::size_t n = 0; n < longest.q.size(); ++n) longest.q[n] = n % at(head_dim) == 0 ? 8 : 0;
      for (std::size_t n = 0; n < longest.k[0].size(); n += at(head_dim)) {
        const std::size_t span = n / at(head_dim) / at(cuda::kSpan);
        if (span != 1) longest.k[0][n] = -10'000;
      }
      Bytes first;
      for (const std::int32_t context : {512, 600, 16'384, 16'385, 40'000}) {
        Problem p = longest;
        p.sequences[0].context = context;
        p.k[0].resize(at(context * p.kv_width()));
        p.v[0].resize(at(context * p.kv_width()));
        const Bytes out = attend(p, AttentionKernels::tensor_cores, {.block_size = 16});
        if (first.empty()) first = out;
        EXPECT_EQ(out, first) << context << ", " << describe(p, AttentionKernels::tensor_cores);
      }
    }
  }
}

TEST_F(CudaAttention, ALongRowAndItsNeighbourHaveTheSameBitsAloneAndInABatch) {
  for (const auto& [kernels, dtype] : ways(64)) {
    const Problem p({6, 2, 64}, dtype, {{1, 16'700}, {1, 300}, {1, 20}});
    Bytes one_by_one;
    for (std::size_t s = 0; s < p.sequences.size(); ++s) {
      const Bytes alone = attend(p.alone(s), kernels, {.block_size = 7});
      one_by_one.insert(one_by_one.end(), alone.begin(), alone.end());
    }
    EXPECT_EQ(attend(p, kernels, {.block_size = 16}), one_by_one) << describe(p, kernels);
  }
}

TEST_F(CudaAttention, APrefilledRowHasTheSameBitsWhateverPrefilledRowsComeWithIt) {
  for (const std::int64_t head_dim : {64, 128})
    expect_equal_bits_in_chunks(150, {2, 3, 5, 21, 64, 65, 149}, head_dim);
}

// A whole prompt of this length fills the GPU. Of its last rows there are so few that clusters share them,
// and beyond 4,096 positions each thread block of a cluster has several spans.
TEST_F(CudaAttention, LargePromptsGiveTheSameBitsWholeAndInChunks) {
  for (const std::int64_t head_dim : {64, 128}) {
    expect_equal_bits_in_chunks(700, {2, 40, 300, 699}, head_dim);
    expect_equal_bits_in_chunks(4'700, {2, 64, 1'200}, head_dim);
  }
}

TEST_F(CudaAttention, GivesTheSameBitsAgainFromOnePassAndLayerToTheNext) {
  for (const auto& [kernels, dtype] : ways(64)) {
    const Problem p({2, 1, 64}, dtype, {{1, 3000}, {1, 2000}, {1, 700}, {9, 100}});
    const Problem longer({2, 1, 64}, dtype, {{1, 9000}});
    cuda::Attention attention(device(), p.shape, dtype, kernels);
    const Bytes first = attend(p, attention);
    for (int again = 0; again < 3; ++again) EXPECT_EQ(attend(p, attention), first);
    attend(longer, attention);
    EXPECT_EQ(attend(p, attention), first);
  }
}

TEST_F(CudaAttention, RowsOfQAndOutMayLieApart) {
  for (const auto& [kernels, dtype] : ways(64)) {
    const Problem p({6, 2, 64}, dtype, mixed());
    EXPECT_EQ(attend(p, kernels, {.q_gap = 64, .out_gap = 8}), attend(p, kernels));
  }
}

TEST_F(CudaAttention, RowsThatAreNotAlignedAreAttendedByThePlainKernels) {
  for (const DType dtype : {DType::f32, device().default_dtype()}) {
    const Problem p({6, 2, 64}, dtype, mixed());
    EXPECT_EQ(attend(p, AttentionKernels::automatic, {.q_gap = 1, .out_gap = 3}),
              attend(p, AttentionKernels::plain));
  }
}

TEST_F(CudaAttention, ZeroingOneKvHeadsValuesSilencesExactlyItsGroupOfQueryHeads) {
  for (const auto& [kernels, dtype] : ways(64)) {
    for (std::int64_t silent = 0; silent < 3; ++silent) {
      Problem p({6, 3, 64}, dtype, {{1, 20}, {4, 20}});
      for (std::vector<float>& v : p.v) {
        for (std::int64_t token = 0; token < 20; ++token)
          std::fill_n(&v[at(token * p.kv_width() + silent * 64)], 64, 0.0F);
      }
      const std::vector<float> out = numbers(p, attend(p, kernels));
      for (std::int64_t head = 0; head < p.rows() * 6; ++head) {
        const bool zero =
            std::all_of(&out[at(head * 64)], &out[at(head * 64)] + 64, [](float x) { return x == 0; });
        EXPECT_EQ(zero, head % 6 / 2 == silent) << "head " << head;
      }
    }
  }
}

TEST_F(CudaAttention, RefusesAHeadSizeThatItHasNoKernelForInOneLine) {
  for (const std::int64_t head_dim : {0, 4, 12, 100, 264}) {
    try {
      const cuda::Attention refused(device(), {2, 1, head_dim}, DType::f32);
      FAIL() << head_dim;
    } catch (const InputError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(std::to_string(head_dim)), std::string::npos) << message;
      EXPECT_NE(message.find("--device cpu"), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

// The bytes that the size of a pool is computed from (step3_paged/sizing.cpp).
TEST(CudaAttentionParts, NeedNoMoreMemoryThanIsReckonedWithInAdvance) {
  using cuda::PartRoom;
  // 4,096 / 256 + 1 parts, and room for twice as many; each has, per KV head, two queries with a sum of 128
  // numbers and a softmax of two, and a counter.
  EXPECT_EQ(PartRoom::at_most({16, 8, 128}, 4096, 1).bytes(), 2 * 17 * 8 * (2 * (128 + 2) * 4 + 4));
  // 20 query heads of one KV head are two tiles, which have room for 16 each.
  EXPECT_EQ(PartRoom::at_most({20, 1, 64}, 256, 2).bytes(), 2 * 2 * 3 * (16 * (64 + 2) * 4 + 4));
  for (std::int32_t context = 1; context <= 40'000; ++context) {
    const std::int32_t parts = (context - 1) / cuda::split_length(context) + 1;
    ASSERT_LE(parts, context / cuda::kSpan + 1) << context;
    ASSERT_EQ(cuda::split_length(context) % cuda::kSpan, 0) << context;
  }
}

TEST_F(CudaAttention, APassWithoutRowsDoesNothing) {
  cuda::Attention attention(device(), {2, 1, 64}, DType::f32);
  const std::int32_t row_begin[] = {0};
  attention.begin(row_begin, {});
  attention.run({}, {}, nullptr, 128, nullptr, 128);
  device().synchronize();
}

}  // namespace
}  // namespace kvcache
