/// @file
/// See sampling.h. Two kernels: `sampling_arg_max` finds the largest logit of each row, which is all that a
/// greedy pick needs. `sampling_draw` makes the other picks, one thread block each: top-k, top-p, draw.
///
/// The ids are those of the CPU, because nothing depends on the order of the threads. Weights are whole
/// numbers (common/model/sampling_weight.h), so sums are exact. What top-k and top-p keep is a border, "every
/// logit above this one, and the first so many that equal it", which follows from counts and sums alone.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "common/cuda/launch.cuh"
#include "common/cuda/sampling.h"
#include "common/model/sampling_weight.h"

namespace kvcache::cuda {
namespace {

constexpr int kSliceThreads = 256;
constexpr int kSampleThreads = 512;          ///< of a thread block of sampling_draw
constexpr int kReadAhead = 8;                ///< numbers that a thread asks for at once: memory is slow
constexpr std::int64_t kMostSampling = 128;  ///< rows at a time: thread blocks that a large GPU runs at once

/// A logit's key: a whole number; keys have the order of their logits, so a border can be found by halving.
/// NaN and +infinity share the largest key, so the first of them is found as the arg max.
template <typename T>
struct Keys {
  /// The last bits of a float, which are zero for every number of the type; keys leave them out.
  static constexpr int kSpareBits = std::is_same_v<T, __half>          ? 13
                                    : std::is_same_v<T, __nv_bfloat16> ? 16
                                                                       : 0;
  static constexpr std::uint32_t kZero = 0x8000'0000;
  static constexpr std::uint32_t kMinusInfinity = (kZero - 0x7F80'0000) >> kSpareBits;
  static constexpr std::uint32_t kNotFinite = 0xFFFF'FFFF >> kSpareBits;

  /// The magnitude's bits, counted up or down from zero: -0 and +0 are equal.
  __device__ static std::uint32_t of(float logit) {
    if (!(logit < INFINITY)) return kNotFinite;
    const std::uint32_t bits = __float_as_uint(logit), magnitude = bits & 0x7FFF'FFFF;
    return (bits == magnitude ? kZero + magnitude : kZero - magnitude) >> kSpareBits;
  }

  __device__ static float logit_of(std::uint32_t key) {
    const std::uint32_t wide = key << kSpareBits;
    return wide >= kZero ? __uint_as_float(wide - kZero) : -__uint_as_float(kZero - wide);
  }
};

/// A logit's key and its id in one number: the larger of two numbers has the larger logit, or the lower id if
/// the logits are equal. 0 is smaller than all. The last bit tells NaN from infinity.
template <typename T>
__device__ std::uint64_t ranked(float logit, std::int64_t id) {
  const std::uint32_t id_and_nan = static_cast<std::uint32_t>(id) << 1 | (isnan(logit) ? 1U : 0U);
  return std::uint64_t{Keys<T>::of(logit)} << 32 | ~id_and_nan;
}
__host__ __device__ std::uint32_t key_in(std::uint64_t ranked) {
  return static_cast<std::uint32_t>(ranked >> 32);
}
std::int32_t id_in(std::uint64_t ranked) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(ranked) >> 1);
}
bool is_nan(std::uint64_t ranked) {
  return (ranked & 1) == 0;
}

/// The arguments of both kernels, passed by value.
template <typename T>
struct Task {
  const T* logits;  // [rows, vocab], rows `stride` numbers apart
  std::int64_t stride, vocab, picks;
  bool on_packs;             // rows begin on 16 bytes
  const std::int64_t* rows;  // [picks]
  const Draw* draws;         // [picks] only where some are sampled
  std::uint64_t* found;      // [picks] ranked(): first the largest of the row, then the one picked
  std::uint64_t* weights;    // [blocks of sampling_draw, vocab]
};

/// Ids of a row per thread block of sampling_arg_max: 16 bytes for each thread.
template <typename T>
constexpr int kSlice = Pack<T>::size* kSliceThreads;

/// One thread block per slice of a row, so that a single row keeps the whole GPU busy. `found` starts at 0.
/// Where rows begin on 16 bytes, so does every pack; the last one may end behind the row's last logit.
template <typename T>
__global__ void __launch_bounds__(kSliceThreads) sampling_arg_max(Task<T> task) {
  using Reduce = cub::BlockReduce<std::uint64_t, kSliceThreads>;
  __shared__ typename Reduce::TempStorage storage;
  const auto larger = [](std::uint64_t a, std::uint64_t b) { return a > b ? a : b; };

  const std::int64_t pick = blockIdx.x;
  const std::int64_t first = std::int64_t{blockIdx.y} * kSlice<T> + threadIdx.x * Pack<T>::size;
  const T* const row = task.logits + task.rows[pick] * task.stride;
  const auto ids = static_cast<int>(min(std::int64_t{Pack<T>::size}, task.vocab - first));  // may be negative
  Pack<T> logits;
  if (ids > 0 && task.on_packs) {
    logits = *reinterpret_cast<const Pack<T>*>(row + first);
  } else {
#pragma unroll
    for (int n = 0; n < Pack<T>::size; ++n) {
      if (n < ids) logits.numbers[n] = row[first + n];
    }
  }
  std::uint64_t best = 0;
#pragma unroll
  for (int n = 0; n < Pack<T>::size; ++n) {
    if (n < ids) best = larger(best, ranked<T>(to_float(logits.numbers[n]), first + n));
  }
  best = Reduce(storage).Reduce(best, larger);
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned long long*>(task.found + pick), best);
}

/// Sums over the threads of a block.
struct BlockSums {
  std::uint64_t before;  ///< over the threads before this one
  std::uint64_t total;
};

/// All threads of `sampling_draw`'s block must call it.
__device__ BlockSums block_sums(std::uint64_t number) {
  using Scan = cub::BlockScan<std::uint64_t, kSampleThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage storage;
  __syncthreads();  // all threads have read the results of the call before
  BlockSums sums{};
  Scan(storage).ExclusiveSum(number, sums.before, sums.total);
  return sums;
}

/// What top-k and top-p keep of a row: the ids whose key is above `key`, and the first `ties` of those whose
/// key it is.
struct Border {
  std::uint32_t key;
  std::uint64_t ties;
};

/// The row that a block samples from.
template <typename T>
struct Row {
  const T* logits;         // [vocab]
  std::uint64_t* weights;  // [vocab] of ids below the first border: 0
  std::int64_t vocab;
  float largest;
  double temperature;

  __device__ float logit(std::int64_t id) const { return to_float(logits[id]); }
  __device__ std::uint32_t key(std::int64_t id) const { return Keys<T>::of(logit(id)); }

  /// The weight of every id with this key.
  __device__ std::uint64_t weight(std::uint32_t key) const {
    return weight_of(Keys<T>::logit_of(key), largest, temperature);
  }
};

/// The amounts of all ids with at least this key, added up. All threads of the block must call this function
/// and those below.
template <typename T, typename AmountOf>
__device__ std::uint64_t amount_from(const Row<T>& row, std::uint32_t key, AmountOf amount_of) {
  std::uint64_t amount = 0;
  for (std::int64_t first = threadIdx.x; first < row.vocab; first += kReadAhead * kSampleThreads) {
    float logits[kReadAhead];  // beyond the row: its last logit again, which is not counted
    for (int n = 0; n < kReadAhead; ++n)
      logits[n] = row.logit(min(first + n * kSampleThreads, row.vocab - 1));
    for (int n = 0; n < kReadAhead; ++n) {
      const std::int64_t id = first + n * kSampleThreads;
      if (id < row.vocab && Keys<T>::of(logits[n]) >= key) amount += amount_of(id);
    }
  }
  return block_sums(amount).total;
}

/// Where the amounts, added up from the largest logit downwards, reach a wanted amount.
struct Reached {
  std::uint32_t key;      ///< the largest key from which on they reach it
  std::uint64_t missing;  ///< what ids with exactly this key must add to the ids above it
};

/// Halves the range of keys: the higher the key, the lower the amount from it on.
/// @param low  a key from which on the amounts reach `wanted` for certain
template <typename T, typename AmountOf>
__device__ Reached reach(const Row<T>& row, std::uint32_t low, std::uint64_t wanted, AmountOf amount_of) {
  std::uint32_t high = Keys<T>::of(row.largest);
  std::uint64_t above_high = 0;
  while (low < high) {
    const std::uint32_t middle = low + (high - low + 1) / 2;
    const std::uint64_t amount = amount_from(row, middle, amount_of);
    if (amount >= wanted) {
      low = middle;
    } else {
      high = middle - 1;
      above_high = amount;
    }
  }
  return {low, wanted - above_high};
}

/// The border around the k largest logits; k 0: around all above -infinity.
template <typename T>
__device__ Border top_k_border(const Row<T>& row, std::uint64_t k) {
  constexpr std::uint32_t lowest = Keys<T>::kMinusInfinity;
  if (k == 0 || k >= static_cast<std::uint64_t>(row.vocab)) return {lowest, 0};
  const Reached reached = reach(row, lowest, k, [](std::int64_t) { return std::uint64_t{1}; });
  return {reached.key, reached.missing};
}

/// Writes the weights of the ids that are not below the border. A weight is read up to thirty times, and
/// computing it takes some fifty operations in double precision.
template <typename T>
__device__ void weigh(const Row<T>& row, const Border& border) {
  for (std::int64_t id = threadIdx.x; id < row.vocab; id += kSampleThreads) {
    const std::uint32_t key = row.key(id);
    row.weights[id] = key >= border.key ? row.weight(key) : 0;
  }
}

/// The weight of all ids within the border.
template <typename T>
__device__ std::uint64_t total_weight(const Row<T>& row, const Border& border) {
  const std::uint64_t above =
      amount_from(row, border.key + 1, [&](std::int64_t id) { return row.weights[id]; });
  return above + border.ties * row.weight(border.key);
}

/// The border around the fewest ids within `border` that together weigh at least `wanted`; all together do.
template <typename T>
__device__ Border top_p_border(const Row<T>& row, const Border& border, std::uint64_t wanted) {
  const Reached reached = reach(row, border.key, wanted, [&](std::int64_t id) { return row.weights[id]; });
  const std::uint64_t each = row.weight(reached.key);
  return {reached.key, (reached.missing + each - 1) / each};
}

/// Lays the weights within the border end to end in the order of ids, and stores the id whose weight covers
/// `place`, which is less than their total.
template <typename T>
__device__ void find_place(const Row<T>& row, const Border& border, std::uint64_t place,
                           std::uint64_t* found) {
  std::uint64_t ties = 0, laid = 0;  // ties and weights before this round's ids
  for (std::int64_t first = 0; first < row.vocab && laid <= place; first += kSampleThreads) {
    const std::int64_t id = first + threadIdx.x;
    const std::uint32_t key = id < row.vocab ? row.key(id) : 0;
    const BlockSums tie = block_sums(key == border.key ? 1 : 0);
    const bool kept = key > border.key || (key == border.key && ties + tie.before < border.ties);
    const std::uint64_t own = kept ? row.weights[id] : 0;
    const BlockSums weight = block_sums(own);
    const std::uint64_t begin = laid + weight.before;
    if (begin <= place && place < begin + own) *found = ranked<T>(row.logit(id), id);
    ties += tie.total;
    laid += weight.total;
  }
}

/// One thread block per pick that is not greedy and whose largest logit is finite; with more picks than
/// blocks, a block takes several. The same thread writes and reads an id's weight, so the weights need no
/// barrier.
template <typename T>
__global__ void __launch_bounds__(kSampleThreads) sampling_draw(Task<T> task) {
  for (std::int64_t pick = blockIdx.x; pick < task.picks; pick += gridDim.x) {
    const Draw draw = task.draws[pick];
    const std::uint32_t largest = key_in(task.found[pick]);
    const bool finite = largest > Keys<T>::kMinusInfinity && largest < Keys<T>::kNotFinite;
    if (draw.greedy || !finite) continue;

    const Row<T> row{task.logits + task.rows[pick] * task.stride, task.weights + blockIdx.x * task.vocab,
                     task.vocab, Keys<T>::logit_of(largest), draw.temperature};
    Border border = top_k_border(row, draw.top_k);
    weigh(row, border);
    if (draw.top_p < 1) {
      border = top_p_border(row, border, weight_to_reach(draw.top_p, total_weight(row, border)));
    }
    find_place(row, border, place_of(draw.random, total_weight(row, border)), task.found + pick);
  }
}

/// The least power of two that is no less than `count`, a positive number: buffers double when they grow.
std::int64_t power_of_two(std::int64_t count) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)));
}

template <typename T>
Picked picked_from(std::uint64_t found, std::int64_t vocab) {
  if (key_in(found) <= Keys<T>::kMinusInfinity) return {.problem = Picked::Problem::nothing, .logits = vocab};
  if (key_in(found) < Keys<T>::kNotFinite) return {.id = id_in(found)};
  return {.problem = is_nan(found) ? Picked::Problem::nan : Picked::Problem::infinity,
          .logits = id_in(found)};
}

}  // namespace

std::int64_t PickIds::most_bytes(std::int64_t vocab, std::int64_t picks) {
  return power_of_two(std::min(picks, kMostSampling)) * vocab *
         static_cast<std::int64_t>(sizeof(std::uint64_t));
}

std::vector<Picked> PickIds::operator()(DType dtype, const void* logits, std::int64_t stride,
                                        std::int64_t vocab, std::span<const Pick> picks,
                                        cudaStream_t stream) {
  const std::int64_t count = std::ssize(picks);
  if (count == 0) return {};
  std::vector<std::int64_t> rows;
  std::vector<Draw> draws;
  for (const Pick& pick : picks) {
    rows.push_back(pick.row);
    draws.push_back(pick.sampler->draw());
  }
  const bool sampling = !std::ranges::all_of(draws, &Draw::greedy);
  const std::int64_t blocks = sampling ? std::min(count, kMostSampling) : 0;

  constexpr const char* what = "picking token ids";
  if (count > found_.size()) {
    const std::int64_t room = power_of_two(count);
    found_here_ = PinnedBuffer<std::uint64_t>(room, what);
    found_.reserve(room, what);  // last: its size says that both buffers have grown
  }
  if (sampling) weights_.reserve(power_of_two(blocks) * vocab, what);
  const std::size_t found_bytes = static_cast<std::size_t>(count) * sizeof(std::uint64_t);
  check(cudaMemsetAsync(found_.data(), 0, found_bytes, stream), what);

  std::vector<Picked> picked;
  with_number_type(dtype, [&]<typename T>() {
    const Task<T> task{
        .logits = static_cast<const T*>(logits),
        .stride = stride,
        .vocab = vocab,
        .picks = count,
        .on_packs = reinterpret_cast<std::uintptr_t>(logits) % 16 == 0 && stride % Pack<T>::size == 0,
        .rows = rows_(rows, stream),
        .draws = sampling ? draws_(draws, stream) : nullptr,
        .found = found_.data(),
        .weights = weights_.data()};
    const dim3 slices(static_cast<unsigned>(count), static_cast<unsigned>(ceil_div(vocab, kSlice<T>)));
    launch("sampling_arg_max", sampling_arg_max<T>, {slices, kSliceThreads}, stream, task);
    launch("sampling_draw", sampling_draw<T>, {static_cast<unsigned>(blocks), kSampleThreads}, stream, task);
    check(cudaMemcpyAsync(found_here_.data(), found_.data(), found_bytes, cudaMemcpyDeviceToHost, stream),
          "copying the picked ids");
    check(cudaStreamSynchronize(stream), "waiting for the picked ids");
    for (std::int64_t pick = 0; pick < count; ++pick) {
      picked.push_back(picked_from<T>(found_here_.data()[pick], vocab));
    }
  });
  return picked;
}

}  // namespace kvcache::cuda
