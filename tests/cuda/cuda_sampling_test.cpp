/// @file
/// Picking token ids on the GPU: the same ids, draws and errors as the CPU's sampler.

#include "common/cuda/sampling.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/stored_number.h"
#include "common/model/sampler.h"
#include "fmt/format.h"
#include "tests/support/gpu.h"
#include "tests/support/random_numbers.h"

namespace kvcache {
namespace {

using cuda::PickIds;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr int kinds = 9;  ///< of rows that row_of_kind() makes

/// A row [vocab] whose logits are spread like a model's, or are one of the special cases.
std::vector<float> row_of_kind(int kind, std::int64_t vocab, std::uint32_t seed) {
  std::vector<float> logits = random_numbers(static_cast<std::size_t>(vocab), seed);
  for (std::size_t id = 0; id < logits.size(); ++id) {
    float& logit = logits[id];
    const float uniform = logit;
    switch (kind) {
      case 0:  // a hump with a thin upper tail
        logit = 12 * uniform * uniform * uniform;
        break;
      case 1:  // five values: a border among many ties
        logit = static_cast<float>(static_cast<int>(2.5F * (uniform + 1)));
        break;
      case 2:  // all equal
        logit = -3.25F;
        break;
      case 3:  // half of them -infinity
        logit = uniform < 0 ? -infinity : 8 * uniform;
        break;
      case 4:  // zeros of both signs, at the top
        logit = uniform < -0.5F ? uniform : uniform < 0 ? -0.0F : 0.0F;
        break;
      case 5:  // few above -infinity
        logit = id % 97 == 5 ? 4 * uniform : -infinity;
        break;
      case 6:  // all negative
        logit = -20 + 19 * uniform;
        break;
      case 7:  // a peak, and the largest numbers that float16 holds
        logit = id == logits.size() / 2 ? 60000.0F : id % 3 == 0 ? -60000.0F : 30 * uniform;
        break;
      case 8:  // so small that float16 has but a few bits for them
        logit = 1e-6F * uniform;
        break;
    }
  }
  return logits;
}

/// Every temperature with every top-k and top-p, each with a seed of its own.
std::vector<SamplingParams> parameter_grid(std::int64_t vocab, std::uint64_t seed) {
  std::vector<SamplingParams> grid;
  for (const double temperature : {0.0, 1e-6, 1e-3, 0.7, 1.0, 50.0}) {
    for (const std::int64_t top_k : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{40},
                                     vocab - 1, vocab, vocab + 1, std::int64_t{1'000'000'000}}) {
      for (const double top_p : {0.0, 1e-9, 0.5, 0.9, 1.0}) {
        grid.push_back({.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed++});
      }
    }
  }
  return grid;
}

/// Logits [rows, vocab] of one type, on the host and on the GPU, where rows are `stride` numbers apart. The
/// numbers between the rows are so large that a kernel that read them would pick them.
struct Logits {
  DType dtype = DType::f32;
  std::int64_t vocab = 0, stride = 0;
  std::vector<std::vector<float>> rows = {};  // as they read back from the type
  cuda::DeviceBuffer<std::byte> on_gpu = {};
};

/// A pick from a row with a sampler of its own.
struct Wish {
  std::int64_t row = 0;
  SamplingParams params = {};
};

class CudaSampling : public OnGpu {
 protected:
  Logits logits(DType dtype, std::vector<std::vector<float>> rows, std::int64_t padding) const {
    Logits made{.dtype = dtype, .vocab = std::ssize(rows[0]), .stride = std::ssize(rows[0]) + padding};
    std::vector<float> numbers;
    for (std::vector<float>& row : rows) {
      for (float& logit : row) logit = round_to(dtype, logit);
      numbers.insert(numbers.end(), row.begin(), row.end());
      numbers.insert(numbers.end(), static_cast<std::size_t>(padding), infinity);
    }
    made.rows = std::move(rows);
    made.on_gpu = on_gpu(stored(numbers, dtype));
    return made;
  }

  std::vector<Picked> picked_on_gpu(PickIds& pick_ids, const Logits& from,
                                    std::span<const Pick> picks) const {
    return pick_ids(from.dtype, from.on_gpu.data(), from.stride, from.vocab, picks, stream());
  }
  std::vector<std::int32_t> ids_on_gpu(PickIds& pick_ids, const Logits& from,
                                       std::span<const Pick> picks) const {
    std::vector<std::int32_t> ids;
    for (const Picked& picked : picked_on_gpu(pick_ids, from, picks)) {
      EXPECT_TRUE(picked.ok());
      ids.push_back(picked.id);
    }
    return ids;
  }

  /// Makes `rounds` picks for each wish on the host and on the GPU; the samplers go on from round to round.
  void expect_equal_ids(PickIds& pick_ids, const Logits& from, const std::vector<Wish>& wishes,
                        int rounds) const {
    std::vector<Sampler> here, there;
    for (const Wish& wish : wishes) {
      here.emplace_back(wish.params);
      there.emplace_back(wish.params);
    }
    std::vector<Pick> picks;
    for (std::size_t n = 0; n < wishes.size(); ++n) picks.push_back({wishes[n].row, &there[n]});
    for (int round = 0; round < rounds; ++round) {
      const std::vector<std::int32_t> ids = ids_on_gpu(pick_ids, from, picks);
      ASSERT_EQ(ids.size(), wishes.size());
      for (std::size_t n = 0; n < wishes.size(); ++n) {
        const SamplingParams& params = wishes[n].params;
        ASSERT_EQ(ids[n], here[n].pick(from.rows[static_cast<std::size_t>(wishes[n].row)]).id)
            << name_of(from.dtype) << ", vocabulary " << from.vocab << ", row " << wishes[n].row << ", round "
            << round << ", temperature " << params.temperature << ", top-k " << params.top_k << ", top-p "
            << params.top_p << ", seed " << params.seed;
      }
    }
  }
};

TEST_F(CudaSampling, PicksTheIdsOfTheCpuWithAllParametersFromAllKindsOfRows) {  // SP1, SP2
  PickIds pick_ids;
  std::uint32_t seed = 1;
  for (const DType dtype : dtypes) {
    if (!has(dtype)) continue;
    for (const std::int64_t vocab : {1, 2, 31, 256, 257, 1000}) {
      std::vector<std::vector<float>> rows;
      std::vector<Wish> wishes;
      for (int kind = 0; kind < kinds; ++kind) {
        rows.push_back(row_of_kind(kind, vocab, ++seed));
        if (kind == 3 || kind == 5)
          rows.back()[rows.back().size() / 2] = 0.5F;  // at least one above -infinity
        for (const SamplingParams& params : parameter_grid(vocab, 1000 * seed))
          wishes.push_back({kind, params});
      }
      expect_equal_ids(pick_ids, logits(dtype, rows, vocab % 8), wishes, 1);
    }
  }
}

TEST_F(CudaSampling, PicksTheIdsOfTheCpuFromTheVocabulariesOfRealModels) {
  PickIds pick_ids;
  const std::vector<SamplingParams> params = {{},
                                              {.temperature = 1, .seed = 1},
                                              {.temperature = 0.7, .top_k = 40, .top_p = 0.9, .seed = 2},
                                              {.temperature = 1, .top_p = 0.9, .seed = 3},
                                              {.temperature = 50, .top_p = 0.5, .seed = 4},
                                              {.temperature = 50, .top_k = 5000, .seed = 5},
                                              {.temperature = 1e-3, .top_p = 0.9, .seed = 6}};
  for (const DType dtype : dtypes) {
    if (!has(dtype)) continue;
    for (const std::int64_t vocab : {50257, 151936}) {
      std::vector<std::vector<float>> rows;
      std::vector<Wish> wishes;
      for (const int kind : {0, 1, 6}) {
        for (const SamplingParams& how : params) wishes.push_back({std::ssize(rows), how});
        rows.push_back(row_of_kind(kind, vocab, static_cast<std::uint32_t>(vocab + kind)));
      }
      expect_equal_ids(pick_ids, logits(dtype, rows, 0), wishes, 1);
    }
  }
}

TEST_F(CudaSampling, KeepsExactlyAsManyTiesAsTheCpuDoes) {
  PickIds pick_ids;
  std::vector<Wish> wishes;  // so many that each id which is kept is picked
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const double share = 0.25 * static_cast<double>(seed % 5);  // whole numbers of ids, exactly
    const auto k = static_cast<std::int64_t>(seed / 5 % 4);
    wishes.push_back(
        {static_cast<std::int64_t>(seed % 3), {.temperature = 1, .top_k = k, .top_p = share, .seed = seed}});
  }
  expect_equal_ids(pick_ids, logits(DType::f32, {{1, 1, 1, 1}, {-1000, 0, 0, 0}, {0, 0, 0, 1}}, 0), wishes,
                   1);
}

TEST_F(CudaSampling, DrawsLongSequencesAsTheCpuDoes) {  // SP4
  PickIds pick_ids;
  const Logits from = logits(DType::f32, {row_of_kind(0, 1000, 7), row_of_kind(1, 1000, 8)}, 0);
  expect_equal_ids(pick_ids, from,
                   {{0, {.temperature = 1, .seed = 42}},
                    {1, {.temperature = 0.7, .top_k = 300, .top_p = 0.8, .seed = 43}},
                    {1, {.temperature = 0}},
                    {0, {.temperature = 2, .top_p = 0.95, .seed = 42}}},
                   100);
}

TEST_F(CudaSampling, MakesAsManyPicksOfOneRowAsThereAreSamples) {
  PickIds pick_ids;
  std::vector<Wish> wishes;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    wishes.push_back({1, {.temperature = seed % 3 == 0 ? 0.0 : 1.0, .top_p = 0.95, .seed = seed}});
  }
  expect_equal_ids(pick_ids, logits(DType::f32, {row_of_kind(1, 1000, 3), row_of_kind(0, 1000, 4)}, 4),
                   wishes, 2);
}

TEST_F(CudaSampling, MakesMorePicksThanItSamplesAtATime) {
  PickIds pick_ids;
  std::vector<Wish> wishes;
  for (std::uint64_t seed = 0; seed < 2 * 128 + 5; ++seed) {
    const auto k = 20 * static_cast<std::int64_t>(seed % 2);
    wishes.push_back({static_cast<std::int64_t>(seed % 3), {.temperature = 1, .top_k = k, .seed = seed}});
  }
  const std::int64_t vocab = 3001;
  expect_equal_ids(
      pick_ids,
      logits(DType::f32, {row_of_kind(0, vocab, 5), row_of_kind(1, vocab, 6), row_of_kind(6, vocab, 7)}, 0),
      wishes, 1);
}

TEST_F(CudaSampling, FindsTheLargestWhereverItIs) {
  PickIds pick_ids;
  for (const DType dtype : dtypes) {
    if (!has(dtype)) continue;
    const std::int64_t vocab = 5003;  // neither groups nor 16 bytes divide it
    std::vector<std::vector<float>> rows;
    std::vector<Wish> wishes;
    for (const std::int64_t id : {0, 1, 255, 256, 2047, 2048, 4999, 5002}) {
      rows.push_back(row_of_kind(0, vocab, static_cast<std::uint32_t>(id)));
      rows.back()[static_cast<std::size_t>(id)] = 100;
      rows.back()[static_cast<std::size_t>((id + 1777) % vocab)] = 100;
      wishes.push_back({std::ssize(rows) - 1, {}});
    }
    for (const std::int64_t padding : {0, 1, 5}) {
      expect_equal_ids(pick_ids, logits(dtype, rows, padding), wishes, 1);
    }
  }
}

TEST_F(CudaSampling, TiesGoToTheLowestIdAndZerosOfBothSignsAreTies) {
  PickIds pick_ids;
  std::vector<float> zeros(3000, -1.0F);
  zeros[1234] = -0.0F;
  zeros[1235] = zeros[2900] = 0.0F;
  const Logits from = logits(DType::f32, {std::vector<float>(3000, 2.0F), zeros}, 0);
  Sampler sampler{SamplingParams{}};
  const std::vector<Pick> picks = {{0, &sampler}, {1, &sampler}};
  EXPECT_EQ(ids_on_gpu(pick_ids, from, picks), (std::vector<std::int32_t>{0, 1234}));
}

TEST_F(CudaSampling, TheNextCallSeesOtherRowsAndParameters) {
  PickIds pick_ids;
  const Logits from = logits(DType::f32, {row_of_kind(0, 700, 1), row_of_kind(0, 700, 2)}, 0);
  expect_equal_ids(pick_ids, from, {{0, {}}, {1, {}}}, 2);
  expect_equal_ids(pick_ids, from, {{1, {}}, {0, {}}}, 1);
  expect_equal_ids(pick_ids, from, {{1, {.temperature = 1, .seed = 9}}, {0, {}}}, 2);
  expect_equal_ids(pick_ids, from, {{1, {}}, {0, {}}}, 1);
  expect_equal_ids(pick_ids, from, {}, 1);
}

/// Rows that give no id, each for its own reason, but for the first.
std::vector<std::vector<float>> one_good_row_and_bad_ones() {
  std::vector<std::vector<float>> rows(5, std::vector<float>(1500, 1.0F));
  rows[1][700] = not_a_number;
  rows[1][300] = infinity;
  rows[2][700] = infinity;
  rows[2][300] = not_a_number;
  rows[3].assign(1500, -infinity);
  rows[4][1499] = -not_a_number;
  return rows;
}

TEST_F(CudaSampling, SaysWhatTheCpuSaysOfLogitsThatAreNotFinite) {
  const std::vector<std::vector<float>> rows = one_good_row_and_bad_ones();
  for (const DType dtype : dtypes) {
    if (!has(dtype)) continue;
    const Logits from = logits(dtype, rows, 3);
    PickIds pick_ids;
    for (const double temperature : {0.0, 1.0}) {
      for (std::size_t row = 0; row < rows.size(); ++row) {
        Sampler here({.temperature = temperature, .top_k = 3, .top_p = 0.5}), there = here;
        const std::vector<Pick> picks = {{static_cast<std::int64_t>(row), &there}};
        const Picked picked = picked_on_gpu(pick_ids, from, picks).front();
        EXPECT_EQ(picked, here.pick(from.rows[row]))
            << fmt::format("{}, row {}, temperature {}", name_of(dtype), row, temperature);
      }
    }
  }
}

TEST_F(CudaSampling, PicksForTheGoodRowsBesideAnyNumberOfBadOnes) {
  const std::vector<std::vector<float>> rows = one_good_row_and_bad_ones();
  for (const DType dtype : dtypes) {
    if (!has(dtype)) continue;
    const Logits from = logits(dtype, rows, 3);
    PickIds pick_ids;
    std::vector<Sampler> here, there;
    std::vector<Pick> picks;
    constexpr std::size_t count = 300;  // more than are sampled at a time
    for (std::size_t n = 0; n < count; ++n) {
      here.emplace_back(SamplingParams{.temperature = n % 3 == 0 ? 0.0 : 1.0, .top_p = 0.9, .seed = n});
      there.push_back(here.back());
    }
    for (std::size_t n = 0; n < count; ++n) picks.push_back({static_cast<std::int64_t>(n % 5), &there[n]});
    for (int round = 0; round < 3; ++round) {  // each sampler has taken exactly its draw
      const std::vector<Picked> picked = picked_on_gpu(pick_ids, from, picks);
      ASSERT_EQ(picked.size(), count);
      for (std::size_t n = 0; n < count; ++n)
        ASSERT_EQ(picked[n], here[n].pick(from.rows[n % 5])) << name_of(dtype) << ", pick " << n;
    }
  }
}

}  // namespace
}  // namespace kvcache
