/// @file
/// See sampling.h. The ids are the CPU's because nothing depends on the order in which threads come: weights
/// are whole numbers (model/sampling_weight.h), and what top-k and top-p keep is written as a border, "every
/// logit above this one, and the first so many that equal it", which follows from counts and sums alone.
///
/// A row is looked at in groups of 256 ids, one warp each. Of the five kernels, greedy picks need the first
/// two:
///   1. group_maxima        the largest logit of each group
///   2. arg_max_and_top_k   the largest of all; the border of top-k
///   3. group_weights       the weight of each group within the border
///   4. top_p               the border of top-p, within that of top-k; then 3 runs again
///   5. draw_ids            the id that the random number falls on
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <utility>

#include "common/cuda/launch.cuh"
#include "common/cuda/memory.h"
#include "common/cuda/sampling.h"
#include "common/model/sampling_weight.h"

namespace kvcache::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFF'FFFF;
constexpr int kGroup = 256;  ///< ids: 16 bytes per lane of the 16-bit types
constexpr int kPerLane = kGroup / kWarp;
constexpr int kGroupsPerBlock = 8;  ///< enough warps per block to fill a multiprocessor with few blocks
constexpr int kRowThreads = 1024;   ///< of a block that has a row to itself
constexpr int kRowBlocks = 1;       ///< of those per multiprocessor; said so that registers suffice
constexpr int kMostPicks = 65535;   ///< of one launch: the limit of grid.y
constexpr std::int64_t kListBytes = 64 << 20;  ///< of the candidates of sampled picks; more picks take turns

/// One pick, as the host asks for it.
struct Choice {
  std::int64_t row = 0;
  Draw draw;

  bool operator==(const Choice&) const = default;
};

/// What became of a pick. The GPU writes it into the host's memory.
struct Outcome {
  enum Verdict : std::int32_t { picked, not_a_number, infinite, nothing };
  std::int32_t id;  ///< of the token, or of the logit that is not finite
  Verdict verdict;
};

/// What top-k and top-p keep of a row: the ids whose key (rank_key) is above `key`, and the first `ties` of
/// those whose key it is. {0, 0} keeps all.
struct Border {
  std::uint32_t key;
  std::uint32_t ties;
};

/// A pick between two kernels.
struct Progress {
  std::uint32_t drawing;  ///< 0: the outcome is known, or will never be
  float largest;
  Border border;
};

/// A group within the border.
struct GroupSum {
  std::uint64_t above;  ///< weight of the ids above the border
  std::uint64_t ties;   ///< ids on the border
};

/// All that the kernels work on, passed by value.
template <typename T>
struct Task {
  const T* logits;  // [rows, vocab], rows `stride` numbers apart
  std::int64_t stride, vocab;
  int groups;
  const Choice* choices;   // [picks]
  Outcome* outcomes;       // [picks] in the host's memory
  Progress* progress;      // [picks]
  std::uint64_t* maxima;   // [picks, groups] see ranked()
  GroupSum* sums;          // [picks, groups]
  std::uint32_t* keys;     // [picks, groups * kGroup] candidates, in no order
  std::uint64_t* amounts;  // [picks, groups * kGroup] what each counts

  __device__ const T* row(std::int64_t pick) const { return logits + choices[pick].row * stride; }
};

// Keys: logits as whole numbers in the same order.
constexpr std::uint32_t kZeroKey = 0x8000'0000;
constexpr std::uint32_t kMinusInfinityKey = kZeroKey - 0x7F80'0000;
constexpr std::uint32_t kNotFiniteKey = 0xFFFF'FFFF;

/// The magnitude's bits, counted up or down from zero: -0 and +0 are equal. NaN and +infinity share the
/// largest key, so that the first of them is found as the arg max.
__device__ std::uint32_t rank_key(float logit) {
  if (!(logit < INFINITY)) return kNotFiniteKey;
  const std::uint32_t bits = __float_as_uint(logit), magnitude = bits & 0x7FFF'FFFF;
  return bits == magnitude ? kZeroKey + magnitude : kZeroKey - magnitude;
}

__device__ float logit_of(std::uint32_t key) {
  return key >= kZeroKey ? __uint_as_float(key - kZeroKey) : -__uint_as_float(kZeroKey - key);
}

/// How many of a key's last bits are zero for every number of the type: a float of 24 bits holds 11 or 8.
template <typename T>
constexpr int zero_bits = std::is_same_v<T, __half>          ? 13
                          : std::is_same_v<T, __nv_bfloat16> ? 16
                                                             : 0;

/// A key with its id: the larger of two is the larger logit, or the lower id. 0 is smaller than all.
__device__ std::uint64_t ranked(std::uint32_t key, std::int64_t id) {
  return std::uint64_t{key} << 32 | (0xFFFF'FFFF - static_cast<std::uint32_t>(id));
}
__device__ std::uint32_t key_in(std::uint64_t ranked) {
  return static_cast<std::uint32_t>(ranked >> 32);
}
__device__ std::int32_t id_in(std::uint64_t ranked) {
  return static_cast<std::int32_t>(0xFFFF'FFFF - static_cast<std::uint32_t>(ranked));
}

__device__ int lane() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ int warp() {
  return static_cast<int>(threadIdx.x) / kWarp;
}

struct Sum {
  __device__ std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const { return a + b; }
};
struct Max {
  __device__ std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const { return a > b ? a : b; }
};

/// The sum or maximum over the lanes, in every lane.
template <typename Operation>
__device__ std::uint64_t warp_reduce(std::uint64_t number, Operation operation) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    number = operation(number, __shfl_xor_sync(kAllLanes, number, distance));
  }
  return number;
}

/// The sum or maximum over the block, in every thread. All threads must call it.
template <typename Operation>
__device__ std::uint64_t block_reduce(std::uint64_t number, Operation operation) {
  __shared__ std::uint64_t of_warp[kRowThreads / kWarp];
  number = warp_reduce(number, operation);
  __syncthreads();  // everyone has read what the call before left
  if (lane() == 0) of_warp[warp()] = number;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  return warp_reduce(lane() < warps ? of_warp[lane()] : 0, operation);
}

/// The sum over this lane and those before it.
__device__ std::uint64_t sum_up_to_lane(std::uint64_t number) {
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const std::uint64_t before = __shfl_up_sync(kAllLanes, number, distance);
    if (lane() >= distance) number += before;
  }
  return number;
}

/// The logits of a group, spread over a warp. Ids beyond the vocabulary read as -infinity, which nothing
/// picks.
template <typename T>
struct Group {
  static constexpr int kPack = Pack<T>::size;
  float logits[kPerLane];

  __device__ Group(const T* row, std::int64_t vocab, int group) {
    const std::int64_t first = std::int64_t{group} * kGroup;
    const bool aligned = reinterpret_cast<std::uintptr_t>(row) % sizeof(Pack<T>) == 0;
    if (aligned && first + kGroup <= vocab) {
      const auto* packs = reinterpret_cast<const Pack<T>*>(row + first);
      for (int pack = 0; pack < kPerLane / kPack; ++pack) {
        const Pack<T> numbers = packs[pack * kWarp + lane()];
        for (int n = 0; n < kPack; ++n) logits[pack * kPack + n] = to_float(numbers.numbers[n]);
      }
    } else {
      for (int n = 0; n < kPerLane; ++n) {
        const std::int64_t id = first + offset(n);
        logits[n] = id < vocab ? to_float(row[id]) : -INFINITY;
      }
    }
  }

  /// Where in the group this lane's n-th logit lies. It rises with n.
  __device__ static int offset(int n) { return (n / kPack * kWarp + lane()) * kPack + n % kPack; }
};

template <typename T>
__device__ Outcome outcome_of(std::uint64_t best, const T* row) {
  const std::int32_t id = id_in(best);
  if (key_in(best) <= kMinusInfinityKey) return {0, Outcome::nothing};
  if (key_in(best) < kNotFiniteKey) return {id, Outcome::picked};
  return {id, isnan(to_float(row[id])) ? Outcome::not_a_number : Outcome::infinite};
}

/// The first rung: a block goes through a row, one number per thread at a time. Right, but a single row keeps
/// one multiprocessor of over a hundred busy.
template <typename T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) arg_max_plain(Task<T> task) {
  const std::int64_t pick = blockIdx.x;
  const T* row = task.row(pick);
  std::uint64_t best = 0;
  for (std::int64_t id = threadIdx.x; id < task.vocab; id += blockDim.x) {
    best = Max()(best, ranked(rank_key(to_float(row[id])), id));
  }
  best = block_reduce(best, Max());
  if (threadIdx.x == 0) task.outcomes[pick] = outcome_of(best, row);
}

/// The fast rung, and where sampling starts: a warp per group, so that one row is spread over the whole GPU,
/// and 16 bytes per lane at once. What it leaves, a hundredth of the logits, arg_max_and_top_k goes through.
template <typename T>
__global__ void __launch_bounds__(kGroupsPerBlock* kWarp) group_maxima(Task<T> task) {
  const std::int64_t pick = blockIdx.y;
  const int group = static_cast<int>(blockIdx.x) * kGroupsPerBlock + warp();
  if (group >= task.groups) return;
  const Group<T> numbers(task.row(pick), task.vocab, group);
  std::uint32_t key = 0;
  int offset = 0;
  for (int n = 0; n < kPerLane; ++n) {
    const std::uint32_t candidate = rank_key(numbers.logits[n]);
    if (candidate > key) {  // of equal ones the first stays
      key = candidate;
      offset = Group<T>::offset(n);
    }
  }
  const std::uint64_t best = warp_reduce(ranked(key, std::int64_t{group} * kGroup + offset), Max());
  if (lane() == 0) task.maxima[pick * task.groups + group] = best;
}

/// The candidates of one row among which a border is looked for.
struct List {
  std::uint32_t* keys;     // [groups * kGroup]
  std::uint64_t* amounts;  // [groups * kGroup]
  int size;
};

template <typename T>
__device__ List empty_list(const Task<T>& task, std::int64_t pick) {
  const std::int64_t first = pick * task.groups * kGroup;
  return {task.keys + first, task.amounts + first, 0};
}

/// What the candidates with at least this key amount to. All threads of the block must call it.
__device__ std::uint64_t amount_from(const List& list, std::uint32_t key) {
  std::uint64_t amount = 0;
  for (int n = static_cast<int>(threadIdx.x); n < list.size; n += static_cast<int>(blockDim.x)) {
    if (list.keys[n] >= key) amount += list.amounts[n];
  }
  return block_reduce(amount, Sum());
}

/// The largest key from which on the candidates reach `wanted`, which all together do. Bit by bit from the
/// top: a bit is set if what then still qualifies is enough.
template <typename T>
__device__ std::uint32_t border_key(const List& list, std::uint64_t wanted) {
  std::uint32_t key = 0;
  for (int bit = 31; bit >= zero_bits<T>; --bit) {
    const std::uint32_t trial = key | 1U << bit;
    if (amount_from(list, trial) >= wanted) key = trial;
  }
  return key;
}

/// Lists the ids of a row whose key is at least `lowest`, with `amount_of(logit)` each. Groups without one
/// are not read again. All threads of the block must call it.
template <typename T, typename AmountOf>
__device__ void collect(const Task<T>& task, std::int64_t pick, std::uint32_t lowest, AmountOf amount_of,
                        List& list) {
  __shared__ int size;
  __syncthreads();  // everyone is done with the list before
  if (threadIdx.x == 0) size = 0;
  __syncthreads();
  for (int group = warp(); group < task.groups; group += static_cast<int>(blockDim.x) / kWarp) {
    if (key_in(task.maxima[pick * task.groups + group]) < lowest) continue;
    const Group<T> numbers(task.row(pick), task.vocab, group);
    for (int n = 0; n < kPerLane; ++n) {
      const std::uint32_t key = rank_key(numbers.logits[n]);
      const unsigned listed = __ballot_sync(kAllLanes, key >= lowest);
      int place = 0;
      if (lane() == 0 && listed != 0) place = atomicAdd(&size, __popc(listed));
      place = __shfl_sync(kAllLanes, place, 0) + __popc(listed & ((1U << lane()) - 1));
      if (key >= lowest) {
        list.keys[place] = key;
        list.amounts[place] = amount_of(numbers.logits[n]);
      }
    }
  }
  __syncthreads();
  list.size = size;
}

/// The border around the k largest of more than k logits.
template <typename T>
__device__ Border top_k_border(const Task<T>& task, std::int64_t pick, std::uint64_t k) {
  List list = empty_list(task, pick);
  std::uint32_t lowest = 0;
  if (k <= static_cast<std::uint64_t>(task.groups)) {
    // k groups have a maximum not below the k-th largest maximum, so the k-th largest logit is not below it.
    list.size = task.groups;
    for (int group = static_cast<int>(threadIdx.x); group < task.groups;
         group += static_cast<int>(blockDim.x)) {
      list.keys[group] = key_in(task.maxima[pick * task.groups + group]);
      list.amounts[group] = 1;
    }
    __syncthreads();
    lowest = border_key<T>(list, k);
  }
  collect(
      task, pick, lowest, [](float) { return std::uint64_t{1}; }, list);
  const std::uint32_t key = border_key<T>(list, k);
  return {key, static_cast<std::uint32_t>(k - amount_from(list, key + 1))};
}

/// One block per pick: settles those that are greedy or cannot be made, and starts the others.
template <typename T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) arg_max_and_top_k(Task<T> task) {
  const std::int64_t pick = blockIdx.x;
  const Draw draw = task.choices[pick].draw;
  std::uint64_t best = 0;
  for (int group = static_cast<int>(threadIdx.x); group < task.groups;
       group += static_cast<int>(blockDim.x)) {
    best = Max()(best, task.maxima[pick * task.groups + group]);
  }
  best = block_reduce(best, Max());
  const Outcome outcome = outcome_of(best, task.row(pick));
  Progress progress{0, 0, {0, 0}};
  if (draw.greedy || outcome.verdict != Outcome::picked) {
    if (threadIdx.x == 0) task.outcomes[pick] = outcome;
  } else {
    progress = {1, logit_of(key_in(best)), {0, 0}};
    const bool all = draw.top_k == 0 || draw.top_k >= static_cast<std::uint64_t>(task.vocab);
    if (!all) progress.border = top_k_border(task, pick, draw.top_k);
  }
  if (threadIdx.x == 0) task.progress[pick] = progress;
}

/// A warp per group: what of it lies within the border.
template <typename T>
__global__ void __launch_bounds__(kGroupsPerBlock* kWarp) group_weights(Task<T> task) {
  const std::int64_t pick = blockIdx.y;
  const int group = static_cast<int>(blockIdx.x) * kGroupsPerBlock + warp();
  const Progress progress = task.progress[pick];
  if (group >= task.groups || !progress.drawing) return;
  const double temperature = task.choices[pick].draw.temperature;
  const std::uint32_t border = progress.border.key;
  GroupSum sum{0, 0};
  if (key_in(task.maxima[pick * task.groups + group]) >= border) {
    const Group<T> numbers(task.row(pick), task.vocab, group);
    for (int n = 0; n < kPerLane; ++n) {
      const std::uint32_t key = rank_key(numbers.logits[n]);
      if (key > border) sum.above += weight_of(numbers.logits[n], progress.largest, temperature);
      if (key == border) ++sum.ties;
    }
    sum = {warp_reduce(sum.above, Sum()), warp_reduce(sum.ties, Sum())};
  }
  if (lane() == 0) task.sums[pick * task.groups + group] = sum;
}

/// The weight of an id on the border.
__device__ std::uint64_t tie_weight(const Progress& progress, double temperature) {
  if (progress.border.ties == 0) return 0;
  return weight_of(logit_of(progress.border.key), progress.largest, temperature);
}

/// A key that no logit of more than `light` weight falls short of; some lighter ones reach it too, for the
/// logarithm's last digits do not matter then.
__device__ std::uint32_t lowest_heavy_key(std::uint64_t light, float largest, double temperature) {
  constexpr double margin = 1e-3;
  const double exponent = log(static_cast<double>(light < 1 ? 1 : light)) - weight_bits * ln2 - margin;
  return rank_key(__double2float_rd(largest + exponent * temperature));
}

/// The border around the fewest that weigh at least `missing` together, all of them above the border of
/// top-k.
template <typename T>
__device__ Border top_p_border(const Task<T>& task, std::int64_t pick, const Progress& progress,
                               std::uint64_t missing, std::uint64_t light) {
  const double temperature = task.choices[pick].draw.temperature;
  const float largest = progress.largest;
  const std::uint32_t heavy = lowest_heavy_key(light, largest, temperature);
  const std::uint32_t lowest = heavy > progress.border.key ? heavy : progress.border.key + 1;
  List list = empty_list(task, pick);
  collect(
      task, pick, lowest, [=](float logit) { return weight_of(logit, largest, temperature); }, list);
  const std::uint32_t key = border_key<T>(list, missing);
  missing -= amount_from(list, key + 1);
  const std::uint64_t weight = weight_of(logit_of(key), largest, temperature);
  return {key, static_cast<std::uint32_t>((missing + weight - 1) / weight)};
}

/// One block per pick: narrows the border to the fewest that reach p.
template <typename T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) top_p(Task<T> task) {
  const std::int64_t pick = blockIdx.x;
  const Draw draw = task.choices[pick].draw;
  const Progress progress = task.progress[pick];
  if (!progress.drawing || draw.top_p == 1) return;
  std::uint64_t above = 0;
  for (int group = static_cast<int>(threadIdx.x); group < task.groups;
       group += static_cast<int>(blockDim.x)) {
    above += task.sums[pick * task.groups + group].above;
  }
  above = block_reduce(above, Sum());
  const std::uint64_t on_border = tie_weight(progress, draw.temperature);
  const std::uint64_t total = above + progress.border.ties * on_border;
  const std::uint64_t missing = weight_to_reach(draw.top_p, total);
  Border border = progress.border;
  if (missing > above) {
    border.ties = static_cast<std::uint32_t>((missing - above + on_border - 1) / on_border);
  } else {
    // Most are so light that all of their kind together are not needed: look for the border among the others.
    const std::uint64_t light = (total - missing) / static_cast<std::uint64_t>(task.vocab);
    border = top_p_border(task, pick, progress, missing, light);
  }
  if (threadIdx.x == 0) task.progress[pick].border = border;
}

/// A walk along the kept weights, laid end to end in the order of ids.
struct Walk {
  std::uint64_t rest;       ///< weight to go
  std::uint64_t ties;       ///< ids on the border that still count
  std::uint64_t on_border;  ///< the weight of each of them

  /// Goes along 32 neighbours, this lane's `sum` being that of one. Stops before the one that holds the place
  /// and returns its lane; kWarp if it is not among them.
  __device__ int go(const GroupSum& sum) {
    const std::uint64_t ties_up_to = sum_up_to_lane(sum.ties);
    const std::uint64_t counted = kept(ties_up_to) - kept(ties_up_to - sum.ties);
    const std::uint64_t weight_up_to = sum_up_to_lane(sum.above + counted * on_border);
    const unsigned beyond = __ballot_sync(kAllLanes, weight_up_to > rest);
    const int found = beyond == 0 ? kWarp : __ffs(static_cast<int>(beyond)) - 1;
    const int passed = found == 0 ? 0 : found - 1;  // the last lane gone past, if any is
    const std::uint64_t weight_passed = __shfl_sync(kAllLanes, weight_up_to, passed);
    const std::uint64_t ties_passed = kept(__shfl_sync(kAllLanes, ties_up_to, passed));
    if (found > 0) {
      rest -= weight_passed;
      ties -= ties_passed;
    }
    return found;
  }

  __device__ std::uint64_t kept(std::uint64_t count) const { return count < ties ? count : ties; }
};

/// The group in which the walk ends. It stands before it then.
__device__ int walk_to_group(const GroupSum* sums, int groups, Walk& walk) {
  for (int first = 0; first < groups; first += kWarp) {
    const int group = first + lane();
    const int found = walk.go(group < groups ? sums[group] : GroupSum{0, 0});
    if (found < kWarp) return first + found;
  }
  return groups;  // never: the place is less than the total
}

/// One warp per pick: the id whose weight lies over the random place.
template <typename T>
__global__ void __launch_bounds__(kWarp) draw_ids(Task<T> task) {
  const std::int64_t pick = blockIdx.x;
  const Progress progress = task.progress[pick];
  if (!progress.drawing) return;
  const Draw draw = task.choices[pick].draw;
  const GroupSum* sums = task.sums + pick * task.groups;
  std::uint64_t total = 0;
  for (int group = lane(); group < task.groups; group += kWarp) total += sums[group].above;
  const std::uint64_t on_border = tie_weight(progress, draw.temperature);
  total = warp_reduce(total, Sum()) + progress.border.ties * on_border;

  Walk walk{place_of(draw.random, total), progress.border.ties, on_border};
  const int group = walk_to_group(sums, task.groups, walk);
  const T* row = task.row(pick);
  for (std::int64_t first = std::int64_t{group} * kGroup; first < task.vocab; first += kWarp) {
    const std::int64_t id = first + lane();
    const float logit = id < task.vocab ? to_float(row[id]) : -INFINITY;
    const std::uint32_t key = rank_key(logit);
    const bool above = key > progress.border.key;
    const int found = walk.go({above ? weight_of(logit, progress.largest, draw.temperature) : 0,
                               key == progress.border.key ? std::uint64_t{1} : 0});
    if (found == kWarp) continue;
    if (lane() == 0) task.outcomes[pick] = {static_cast<std::int32_t>(first + found), Outcome::picked};
    return;
  }
}

/// Which kernels the picks of a call need.
struct Needs {
  bool plain = false, sampling = false, top_p = false;
};

template <typename T>
void launch_kernels(const Task<T>& task, std::int64_t picks, const Needs& needs, cudaStream_t stream) {
  const auto count = static_cast<unsigned>(picks);
  const auto blocks = static_cast<unsigned>(ceil_div(task.groups, kGroupsPerBlock));
  const LaunchShape by_group{{blocks, count}, {kGroupsPerBlock * kWarp}}, by_row{{count}, {kRowThreads}};
  if (needs.plain) {
    launch("arg_max_plain", arg_max_plain<T>, by_row, stream, task);
    return;
  }
  launch("group_maxima", group_maxima<T>, by_group, stream, task);
  launch("arg_max_and_top_k", arg_max_and_top_k<T>, by_row, stream, task);
  if (!needs.sampling) return;
  launch("group_weights", group_weights<T>, by_group, stream, task);
  if (needs.top_p) {
    launch("top_p", top_p<T>, by_row, stream, task);
    launch("group_weights", group_weights<T>, by_group, stream, task);
  }
  launch("draw_ids", draw_ids<T>, {{count}, {kWarp}}, stream, task);
}

std::int64_t groups_of(std::int64_t vocab) {
  return ceil_div(vocab, kGroup);
}

/// How many picks are made at a time at most; the others of a call take turns.
std::int64_t picks_at_once(std::int64_t vocab, bool sampling) {
  if (!sampling) return kMostPicks;
  constexpr std::int64_t kBytesPerId = sizeof(std::uint32_t) + sizeof(std::uint64_t);
  const std::int64_t list_bytes = std::max<std::int64_t>(1, groups_of(vocab)) * kGroup * kBytesPerId;
  return std::clamp<std::int64_t>(kListBytes / list_bytes, 1, kMostPicks);
}

std::int32_t id_or_error(const Outcome& outcome, std::int64_t vocab) {
  if (outcome.verdict == Outcome::nothing) refuse_logits(static_cast<std::size_t>(vocab));
  if (outcome.verdict != Outcome::picked) {
    refuse_logit(static_cast<std::size_t>(outcome.id), outcome.verdict == Outcome::not_a_number);
  }
  return outcome.id;
}

}  // namespace

/// What a Task points to, but for the logits.
struct PickIds::Buffers {
  std::vector<Choice> choices;  // [picks] as they are on the GPU
  Upload<Choice> upload;
  PinnedBuffer<Outcome> outcomes;
  DeviceBuffer<Progress> progress;
  DeviceBuffer<std::uint64_t> maxima;
  DeviceBuffer<GroupSum> sums;
  DeviceBuffer<std::uint32_t> keys;
  DeviceBuffer<std::uint64_t> amounts;

  void set_choices(std::vector<Choice> wanted, cudaStream_t stream);
  template <typename T>
  Task<T> task(const void* logits, std::int64_t stride, std::int64_t vocab, std::int64_t first_pick) const;
};

/// Steps of a greedy decode ask for the same, and nothing has to be copied.
void PickIds::Buffers::set_choices(std::vector<Choice> wanted, cudaStream_t stream) {
  if (wanted == choices) return;
  upload(wanted, stream);
  choices = std::move(wanted);
}

template <typename T>
Task<T> PickIds::Buffers::task(const void* logits, std::int64_t stride, std::int64_t vocab,
                               std::int64_t first_pick) const {
  return {.logits = static_cast<const T*>(logits),
          .stride = stride,
          .vocab = vocab,
          .groups = static_cast<int>(groups_of(vocab)),
          .choices = upload.data() + first_pick,
          .outcomes = outcomes.data() + first_pick,
          .progress = progress.data(),
          .maxima = maxima.data(),
          .sums = sums.data(),
          .keys = keys.data(),
          .amounts = amounts.data()};
}

PickIds::PickIds(ArgMaxKernel kernel) : buffers_(std::make_unique<Buffers>()), kernel_(kernel) {}
PickIds::~PickIds() = default;

void PickIds::reserve(std::int64_t picks, std::int64_t vocab, bool sampling) {
  if (picks == 0) return;
  const auto room = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(picks)));
  if (picks > buffers_->outcomes.size())
    buffers_->outcomes = PinnedBuffer<Outcome>(room, "picking token ids");
  const std::int64_t rows = std::min(room, picks_at_once(vocab, sampling));
  buffers_->progress.reserve(rows, "picking token ids");
  buffers_->maxima.reserve(rows * groups_of(vocab), "picking token ids");
  if (!sampling) return;
  buffers_->sums.reserve(rows * groups_of(vocab), "sampling token ids");
  buffers_->keys.reserve(rows * groups_of(vocab) * kGroup, "sampling token ids");
  buffers_->amounts.reserve(rows * groups_of(vocab) * kGroup, "sampling token ids");
}

std::vector<std::int32_t> PickIds::operator()(DType dtype, const void* logits, std::int64_t stride,
                                              std::int64_t vocab, std::span<const Pick> picks,
                                              cudaStream_t stream) {
  const std::int64_t count = std::ssize(picks);
  Needs needs;
  std::vector<Choice> choices;
  for (const Pick& pick : picks) {
    const Draw draw = pick.sampler->draw();
    choices.push_back({pick.row, draw.greedy ? Draw{} : draw});
    needs.sampling |= !draw.greedy;
    needs.top_p |= !draw.greedy && draw.top_p != 1;
  }
  needs.plain = kernel_ == ArgMaxKernel::plain && !needs.sampling;
  reserve(count, vocab, needs.sampling);
  buffers_->set_choices(std::move(choices), stream);

  const std::int64_t at_once = picks_at_once(vocab, needs.sampling);
  with_number_type(dtype, [&]<typename T>() {
    for (std::int64_t first = 0; first < count; first += at_once) {
      launch_kernels(buffers_->task<T>(logits, stride, vocab, first), std::min(at_once, count - first), needs,
                     stream);
    }
  });
  // The outcomes were written straight into the host's memory; all there is to do is to wait.
  check(cudaStreamSynchronize(stream), "waiting for the picked ids");
  std::vector<std::int32_t> ids;
  for (std::int64_t pick = 0; pick < count; ++pick) {
    ids.push_back(id_or_error(buffers_->outcomes.data()[pick], vocab));
  }
  return ids;
}

}  // namespace kvcache::cuda
