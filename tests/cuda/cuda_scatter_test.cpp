// Scatter, gather and slot mapping on the GPU: each rung moves the same bytes to the same places as the CPU's
// functions, and touches nothing else.
#include "common/cuda/scatter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "common/cpu/scatter.h"
#include "step3_paged/cuda_gather.h"
#include "step3_paged/decode_slots.h"
#include "step3_paged/gather.h"
#include "tests/support/gpu.h"
#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

using cuda::RowKernels;
using Bytes = std::vector<std::byte>;

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr RowKernels kRungs[] = {RowKernels::plain, RowKernels::packs};
constexpr std::int64_t kGuard = 2;  // rows before and after a pool, which nothing may touch

const char* name_of(RowKernels rung) {
  return rung == RowKernels::plain ? "plain" : "packs";
}

class CudaKvRows : public OnGpu {
 protected:
  std::int64_t below(std::int64_t limit) { return static_cast<std::int64_t>(random_()) % limit; }
  std::vector<float> numbers(std::int64_t count) {
    return random_numbers(static_cast<std::size_t>(count), static_cast<std::uint32_t>(random_()));
  }
  Bytes random_bytes(std::int64_t count) {
    Bytes bytes(static_cast<std::size_t>(count));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }
  static Bytes poison(std::int64_t count) { return Bytes(static_cast<std::size_t>(count), std::byte{0xA5}); }
  /// [count] different numbers below `limit`, in any order.
  template <typename T>
  std::vector<T> some_of(std::int64_t count, std::int64_t limit) {
    std::vector<T> all(static_cast<std::size_t>(limit));
    std::iota(all.begin(), all.end(), T{0});
    std::shuffle(all.begin(), all.end(), random_);
    all.resize(static_cast<std::size_t>(count));
    return all;
  }

  /// New rows on the host as floats, and how they lie.
  struct Rows {
    std::vector<float> numbers;  // [tokens, width + gap]
    std::int64_t tokens, width, gap;

    Matrix matrix() {
      Matrix result;
      result.data = numbers.data();
      result.rows = tokens;
      result.cols = width;
      result.stride = width + gap;
      return result;
    }
  };
  Rows new_rows(std::int64_t tokens, std::int64_t width, std::int64_t gap) {
    return {numbers(tokens * (width + gap)), tokens, width, gap};
  }
  static void make_nan(Rows& rows, std::int64_t row) {
    std::fill_n(rows.matrix().row(row), rows.width, std::numeric_limits<float>::quiet_NaN());
  }

  /// A number of the rows.
  struct Place {
    std::int64_t row, col;
  };
  /// Scatters on the CPU and with every rung; everything is `shift` numbers away from aligned memory.
  /// @param damaged  numbers of V that are not finite on the GPU: V becomes 0 there, and K NaN
  void expect_scatter(DType dtype, Rows& k, Rows& v, const std::vector<std::int64_t>& slots,
                      std::int64_t pool_slots, std::int64_t shift = 0,
                      const std::vector<Place>& damaged = {}) {
    const std::int64_t row_bytes = k.width * size_of(dtype), shift_bytes = shift * size_of(dtype);
    const std::int64_t pool_at = kGuard * row_bytes + shift_bytes;
    const Bytes untouched = poison((pool_slots + 2 * kGuard) * row_bytes + shift_bytes);
    Bytes right_k = untouched, right_v = untouched;
    ThreadPool one_thread(1);
    cpu::scatter_rows(k.matrix(), slots, dtype, right_k.data() + pool_at, one_thread);
    cpu::scatter_rows(v.matrix(), slots, dtype, right_v.data() + pool_at, one_thread);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float not_finite[] = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
    for (std::size_t n = 0; n < damaged.size(); ++n) {
      const auto [row, col] = damaged[n];
      v.matrix().row(row)[col] = not_finite[n % 3];
      const std::int64_t at =
          pool_at + slots[static_cast<std::size_t>(row)] * row_bytes + col * size_of(dtype);
      std::fill_n(right_k.begin() + at, size_of(dtype), std::byte{0xFF});  // a NaN of every type
      std::fill_n(right_v.begin() + at, size_of(dtype), std::byte{0});
    }

    const auto k_rows = on_gpu(shifted(stored(k.numbers, dtype), shift_bytes));
    const auto v_rows = on_gpu(shifted(stored(v.numbers, dtype), shift_bytes));
    const auto gpu_slots = on_gpu(slots);
    for (const RowKernels rung : kRungs) {
      const auto k_pool = on_gpu(untouched), v_pool = on_gpu(untouched);
      const cuda::NewKv rows{k_rows.data() + shift_bytes, k.width + k.gap, v_rows.data() + shift_bytes,
                             v.width + v.gap, k.tokens};
      cuda::scatter_kv(dtype, rows, k.width, gpu_slots.data(), k_pool.data() + pool_at,
                       v_pool.data() + pool_at, stream(), rung);
      EXPECT_TRUE(from_gpu(k_pool.data(), k_pool.size()) == right_k) << "K, " << name_of(rung);
      EXPECT_TRUE(from_gpu(v_pool.data(), v_pool.size()) == right_v) << "V, " << name_of(rung);
    }
  }

  /// Gathers sequences of these lengths on the CPU and with every rung. Table entries that a sequence does
  /// not need are `unused`, and each row of the table has `spare` of them at least.
  void expect_gather(DType dtype, std::int64_t width, std::int64_t block_size,
                     const std::vector<std::int64_t>& contexts, std::int32_t unused, std::int64_t spare = 1) {
    const std::int64_t row_bytes = width * size_of(dtype);
    std::int64_t table_width = 0, blocks = 0;
    for (const std::int64_t context : contexts) {
      const std::int64_t needed = (context + block_size - 1) / block_size;
      table_width = std::max(table_width, needed + spare);
      blocks += needed;
    }
    // A few blocks of the pool belong to no sequence.
    const std::vector<std::int32_t> ids = some_of<std::int32_t>(blocks, blocks + 3);
    std::vector<std::int32_t> table(contexts.size() * static_cast<std::size_t>(table_width), unused);
    std::vector<std::int64_t> first_slots{0};
    auto next = ids.begin();
    for (std::size_t s = 0; s < contexts.size(); ++s) {
      const std::int64_t needed = (contexts[s] + block_size - 1) / block_size;
      std::copy_n(next, needed, table.begin() + static_cast<std::ptrdiff_t>(s) * table_width);
      next += needed;
      first_slots.push_back(first_slots.back() + contexts[s]);
    }
    const std::int64_t rows = first_slots.back();
    const Bytes pool_k = random_bytes((blocks + 3) * block_size * row_bytes);
    const Bytes pool_v = random_bytes((blocks + 3) * block_size * row_bytes);
    const Bytes untouched = poison((rows + kGuard) * row_bytes);
    Bytes right_k = untouched, right_v = untouched;
    for (std::size_t s = 0; s < contexts.size(); ++s) {
      const cpu::SlotMap slots{.blocks = &table[s * static_cast<std::size_t>(table_width)],
                               .block_size = block_size};
      cpu::gather_rows(pool_k.data(), slots, contexts[s], row_bytes,
                       right_k.data() + first_slots[s] * row_bytes);
      cpu::gather_rows(pool_v.data(), slots, contexts[s], row_bytes,
                       right_v.data() + first_slots[s] * row_bytes);
    }

    const auto gpu_k = on_gpu(pool_k), gpu_v = on_gpu(pool_v);
    const auto gpu_table = on_gpu(table);
    const auto gpu_first = on_gpu(first_slots);
    const cuda::SlotMap slots{.block_table = gpu_table.data(),
                              .table_width = static_cast<std::int32_t>(table_width),
                              .block_size = static_cast<std::int32_t>(block_size)};
    for (const RowKernels rung : kRungs) {
      const auto to_k = on_gpu(untouched), to_v = on_gpu(untouched);
      // Room for more rows than there are: they stay as they were.
      const cuda::GatheredKv to{to_k.data(), to_v.data(), gpu_first.data(), std::ssize(contexts),
                                rows + kGuard};
      cuda::gather_kv(dtype, {gpu_k.data(), gpu_v.data()}, slots, width, to, stream(), rung);
      EXPECT_TRUE(from_gpu(to_k.data(), to_k.size()) == right_k) << "K, " << name_of(rung);
      EXPECT_TRUE(from_gpu(to_v.data(), to_v.size()) == right_v) << "V, " << name_of(rung);
    }
  }

  static std::string described(DType dtype, std::int64_t width, const char* what, std::int64_t value) {
    return std::string(name_of(dtype)) + ", width " + std::to_string(width) + ", " + what + " " +
           std::to_string(value);
  }

 private:
  static Bytes shifted(Bytes bytes, std::int64_t by) {
    bytes.insert(bytes.begin(), static_cast<std::size_t>(by), std::byte{0});
    return bytes;
  }

  std::uint32_t seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
};

constexpr std::int64_t kWidths[] = {8, 9, 24, 33, 40, 130, 1000, 1024, 2048};

// KN13: packs are taken only where they fit.
TEST_F(CudaKvRows, ScatterWritesTheBytesOfTheCpuForEveryWidthDistanceAndType) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t width : kWidths) {
      // Of K and of V; packs fit only if they fit both.
      for (const auto& [k_gap, v_gap] : {std::pair{0, 0}, {8, 16}, {3, 8}, {8, 3}}) {
        SCOPED_TRACE(described(dtype, width, "gap", k_gap));
        Rows k = new_rows(21, width, k_gap), v = new_rows(21, width, v_gap);
        std::vector<std::int64_t> slots = some_of<std::int64_t>(21, 30);
        for (const std::int64_t skipped : {below(21), below(21), std::int64_t{20}}) {
          slots[static_cast<std::size_t>(skipped)] = -1;
          make_nan(k, skipped);
          make_nan(v, skipped);
        }
        expect_scatter(dtype, k, v, slots, 30);
      }
    }
  }
}

TEST_F(CudaKvRows, AValueThatIsNotFiniteReachesNobodyThatItsKeyDoesNot) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t width : kWidths) {
      SCOPED_TRACE(described(dtype, width, "width", width));
      Rows k = new_rows(5, width, 0), v = new_rows(5, width, 0);
      expect_scatter(dtype, k, v, some_of<std::int64_t>(5, 9), 9, 0,
                     {{0, 0}, {1, width - 1}, {2, width / 2}, {4, 0}, {4, 1}, {4, width - 1}});
    }
  }
}

TEST_F(CudaKvRows, RowsThatDoNotBeginOnSixteenBytesAreScatteredToo) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t shift : {1, 2, 4}) {
      SCOPED_TRACE(described(dtype, 64, "shift", shift));
      Rows k = new_rows(9, 64, 0), v = new_rows(9, 64, 0);
      expect_scatter(dtype, k, v, some_of<std::int64_t>(9, 12), 12, shift);
    }
  }
}

// KN2: a slot of -1 must neither wrap to the end of the pool nor be taken for slot 0.
TEST_F(CudaKvRows, PaddingRowsAreWrittenNowhere) {
  for (const DType dtype : kTypes) {
    for (const std::size_t batch : {4U, 8U}) {
      Rows k = new_rows(static_cast<std::int64_t>(batch), 64, 0);
      Rows v = new_rows(static_cast<std::int64_t>(batch), 64, 0);
      std::vector<std::int64_t> slots(batch, -1);
      const std::vector<std::int64_t> real = some_of<std::int64_t>(3, 24);
      for (std::size_t row = 0; row < 3; ++row)
        slots[row] = real[row] + 4;  // neither the first nor the last block
      for (std::size_t row = 3; row < batch; ++row) {
        make_nan(k, static_cast<std::int64_t>(row));
        make_nan(v, static_cast<std::int64_t>(row));
      }
      expect_scatter(dtype, k, v, slots, 32);
    }
  }
}

// KN8: the distance of new rows is not the distance of stored ones.
TEST_F(CudaKvRows, EveryPrefillLengthIsScatteredForEveryNumberOfKvHeads) {
  for (const std::int64_t kv_heads : {1, 2, 3, 8}) {
    const std::int64_t width = kv_heads * 8;
    for (const std::int64_t length : {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130}) {
      SCOPED_TRACE(described(DType::bf16, width, "length", length));
      // As one product leaves them: q, k and v of a token side by side.
      Rows k = new_rows(length, width, 3 * width), v = new_rows(length, width, 3 * width);
      expect_scatter(DType::bf16, k, v, some_of<std::int64_t>(length, length + 9), length + 9);
    }
  }
}

TEST_F(CudaKvRows, GatherCollectsTheBytesOfTheCpuForEveryBlockSizeWidthAndType) {
  for (const std::int64_t block_size : {1, 2, 3, 7, 8, 16, 17}) {
    for (const DType dtype : kTypes) {
      const std::int64_t width = kWidths[below(std::size(kWidths))];
      SCOPED_TRACE(described(dtype, width, "block size", block_size));
      expect_gather(dtype, width, block_size,
                    {1, block_size, 0, 3 * block_size + 1, 1 + below(50), 2 * block_size - 1, 0}, -1);
    }
  }
  for (const DType dtype : kTypes) {
    for (const std::int64_t width : kWidths) {
      SCOPED_TRACE(described(dtype, width, "block size", 4));
      expect_gather(dtype, width, 4, {5, 1 + below(40), 8}, -1);
    }
  }
}

// KN5: entries that a longer sequence left in a row of the table are never followed.
TEST_F(CudaKvRows, TableEntriesBeyondTheContextAreNeverFollowed) {
  for (const std::int32_t unused :
       {-1, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
    for (const std::int64_t block_size : {1, 4, 16}) {
      SCOPED_TRACE(described(DType::f32, 64, "unused", unused));
      expect_gather(DType::f32, 64, block_size, {41, 4, 1, 7, block_size}, unused, 3);
    }
  }
}

// KN13, of the table.
TEST_F(CudaKvRows, TablesOfEveryWidthAreRead) {
  for (std::int64_t table_width = 1; table_width <= 9; ++table_width) {
    SCOPED_TRACE(described(DType::bf16, 32, "table width", table_width));
    expect_gather(DType::bf16, 32, 4, {table_width * 4, 1, table_width * 4 - 3}, -1, 0);
  }
}

TEST_F(CudaKvRows, TheSlotsOfADecodeStepAreThoseOfTheLastTokensAndPaddingHasNone) {
  for (const std::int64_t block_size : {1, 2, 3, 7, 8, 16, 17}) {
    for (const std::int64_t sequences : {1, 3, 130, 65'600}) {
      SCOPED_TRACE(described(DType::f32, sequences, "block size", block_size));
      const std::int64_t table_width = 1 + below(9), padding = 5;
      std::vector<std::int32_t> table(static_cast<std::size_t>(sequences * table_width), -1), context_len;
      std::vector<std::int64_t> right;
      for (std::int64_t s = 0; s < sequences; ++s) {
        const std::int64_t context = 1 + below(table_width * block_size);
        std::int32_t* blocks = &table[static_cast<std::size_t>(s * table_width)];
        // Ids up to the largest: the slot is counted in 64 bits.
        for (std::int64_t n = 0; n < (context + block_size - 1) / block_size; ++n)
          blocks[n] = static_cast<std::int32_t>(below(std::numeric_limits<std::int32_t>::max()));
        context_len.push_back(static_cast<std::int32_t>(context));
        right.push_back(cpu::SlotMap{.blocks = blocks, .block_size = block_size}.slot(context - 1));
      }
      right.insert(right.end(), padding, -1);
      right.push_back(77);  // not a row: stays as it is

      const auto gpu_table = on_gpu(table);
      const auto gpu_context = on_gpu(context_len);
      const auto slots = on_gpu(std::vector<std::int64_t>(right.size(), 77));
      const cuda::SlotMap map{.block_table = gpu_table.data(),
                              .table_width = static_cast<std::int32_t>(table_width),
                              .block_size = static_cast<std::int32_t>(block_size)};
      cuda::decode_slots(map, gpu_context.data(), sequences, sequences + padding, slots.data(), stream());
      EXPECT_EQ(from_gpu(slots.data(), std::ssize(right)), right);
    }
  }
}

// KN4 and KN7: more than 2^31 numbers, block ids around 2^16 and the highest ones.
TEST_F(CudaKvRows, TheHighestBlocksOfAHugePoolHoldTheirOwnRows) {
  constexpr std::int64_t kBlocks = 65'600, kBlockSize = 16, kWidth = 2048, kTokens = 2 * kBlockSize + 5;
  static_assert(kBlocks * kBlockSize * kWidth > (std::int64_t{1} << 31));
  constexpr std::int64_t kPoolBytes = kBlocks * kBlockSize * kWidth * 2, kRowBytes = kWidth * 2;
  if (device().free_memory() < 2 * kPoolBytes + (1 << 30)) GTEST_SKIP() << "needs 9.6 GB of the GPU's memory";
  const cuda::DeviceBuffer<std::byte> k_pool(kPoolBytes, "a test"), v_pool(kPoolBytes, "a test");
  const auto first_slot = on_gpu(std::vector<std::int64_t>{0, kTokens});
  for (const RowKernels rung : kRungs) {
    struct Sequence {
      cuda::DeviceBuffer<std::int32_t> table;
      Bytes k, v;
    };
    std::vector<Sequence> sequences;
    for (const std::int32_t first : {0, 65'535, static_cast<std::int32_t>(kBlocks - 3)}) {
      const std::vector<std::int32_t> blocks{first + 2, first, first + 1};
      std::vector<std::int64_t> slots;
      for (std::int64_t position = 0; position < kTokens; ++position)
        slots.push_back(cpu::SlotMap{.blocks = blocks.data(), .block_size = kBlockSize}.slot(position));
      Sequence& made =
          sequences.emplace_back(Sequence{on_gpu(blocks), stored(numbers(kTokens * kWidth), DType::bf16),
                                          stored(numbers(kTokens * kWidth), DType::bf16)});
      const auto k = on_gpu(made.k), v = on_gpu(made.v);
      const auto gpu_slots = on_gpu(slots);
      cuda::scatter_kv(DType::bf16, {k.data(), kWidth, v.data(), kWidth, kTokens}, kWidth, gpu_slots.data(),
                       k_pool.data(), v_pool.data(), stream(), rung);
      device().synchronize();
    }
    for (const Sequence& sequence : sequences) {
      const auto k = on_gpu(poison(kTokens * kRowBytes)), v = on_gpu(poison(kTokens * kRowBytes));
      const cuda::SlotMap slots{
          .block_table = sequence.table.data(), .table_width = 3, .block_size = kBlockSize};
      cuda::gather_kv(DType::bf16, {k_pool.data(), v_pool.data()}, slots, kWidth,
                      {k.data(), v.data(), first_slot.data(), 1, kTokens}, stream(), rung);
      EXPECT_TRUE(from_gpu(k.data(), k.size()) == sequence.k) << name_of(rung);
      EXPECT_TRUE(from_gpu(v.data(), v.size()) == sequence.v) << name_of(rung);
    }
  }
}

// A grid counts at most 65,535 thread blocks in y and z; rows and sequences must not be laid out there.
TEST_F(CudaKvRows, LargePassesMayHaveMoreThan65535RowsAndSequences) {
  constexpr std::int64_t kRows = 65'600;
  for (const std::int64_t width : {8, 9}) {  // packs, and what packs do not fit
    Rows k = new_rows(kRows, width, 0), v = new_rows(kRows, width, 0);
    expect_scatter(DType::bf16, k, v, some_of<std::int64_t>(kRows, kRows + 9), kRows + 9);
    expect_gather(DType::bf16, width, 1, std::vector<std::int64_t>(kRows, 1), -1);
    expect_gather(DType::bf16, width, 16, {3, kRows}, -1);
  }
}

TEST_F(CudaKvRows, NothingToMoveIsNotAnError) {
  cuda::scatter_kv(DType::f32, {}, 64, nullptr, nullptr, nullptr, stream());
  const auto first_slot = on_gpu(std::vector<std::int64_t>{0});
  cuda::gather_kv(DType::f32, {}, {}, 64, {nullptr, nullptr, first_slot.data(), 0, 0}, stream());
  device().synchronize();
}

}  // namespace
}  // namespace kvcache
