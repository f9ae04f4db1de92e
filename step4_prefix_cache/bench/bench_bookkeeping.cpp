/// @file
/// What the bookkeeping of steps 3 and 4 costs for one block, in pools of a thousand to a million blocks.
/// Timed are calls of the managers, as a server makes them, and the parts of these calls. Integers only.
/// Chapter: step4_prefix_cache/README.md.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/bench/benchmark_program.h"
#include "common/bench/repeated_calls.h"
#include "fmt/format.h"
#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/block_hash.h"
#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {
namespace {

constexpr const char* kWhat =
    "Usage: bench_bookkeeping [OPTIONS OF GOOGLE BENCHMARK]\n\n"
    "Times the block operations of the managers of steps 3 and 4, and their parts, in pools of a\n"
    "thousand to a million blocks.\n";

constexpr const char* kNote =
    "Time: the time of one core for one operation, averaged over all blocks of a pool, in the median round "
    "over the pool. IQR %: the distance between the rounds' quartiles, in percent of that time. The column "
    "CPU says nothing. Blocks lie in random order, so large pools show the cost of cache misses; nothing "
    "else grows with the pool. Managers: calls for sequences of 64 blocks of 16 tokens and one token more, "
    "per block. allocate, hit, evict: plan and commit of new tokens, with their rows of the plan. evict "
    "also hashes, looks up and enters the new blocks (evictions: per operation; the other blocks are tails, "
    "which no lookup can find). copy_on_write: plan and commit of one token, 64 sequences to a pass, per "
    "token. Others: the parts. lookup: prompts of 50,000 tokens that fill the pool, in turn; all_miss ends "
    "at the first block.";

constexpr std::int64_t kBlockSize = 16;
constexpr std::int64_t kPromptTokens = 50'000;

using TokenIds = std::vector<std::int32_t>;

/// Runs `operations`, `count` of them, again and again. `restore` brings back the state before them and is
/// not timed.
/// @return operations that have run
template <typename Operations, typename Restore>
std::int64_t measure(benchmark::State& state, std::int64_t count, const Operations& operations,
                     const Restore& restore) {
  std::int64_t rounds = 0;
  const double seconds = time_calls(state, {.calls = 5, .seconds = 0.1 / static_cast<double>(count)}, [&] {
    const double begin = seconds_of_this_thread();
    operations();
    const double took = seconds_of_this_thread() - begin;
    restore();
    ++rounds;
    return took / static_cast<double>(count);
  });
  state.counters[kOperationsPerSecond] = 1 / seconds;
  return rounds * count;
}

/// [0, count) in random order.
std::vector<std::int32_t> shuffled(std::int64_t count) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(1));
  return numbers;
}

TokenIds random_tokens(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  TokenIds ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 150'000);
  return ids;
}

// The managers

constexpr std::int64_t kWholeBlocks = 64;

/// As many prompts as fill a pool up to the watermark. Each has some whole blocks, which are found when it
/// comes again, and one token more.
class Prompts {
 public:
  Prompts(std::int64_t pool_blocks, std::uint32_t seed, std::int64_t whole_blocks = kWholeBlocks)
      : whole_blocks_(whole_blocks) {
    const std::int64_t room = pool_blocks - pool_blocks / 100;
    const std::int64_t sequences = room / (whole_blocks + 2);  // one for the tail, one for its copy
    for (std::int64_t n = 0; n < sequences; ++n)
      ids_.push_back(random_tokens(whole_blocks * kBlockSize + 2, seed + static_cast<std::uint32_t>(n)));
    order_ = shuffled(sequences);
  }

  std::int64_t sequences() const { return std::ssize(ids_); }
  std::int64_t blocks() const { return sequences() * whole_blocks_; }
  /// All sequences in random order.
  const std::vector<std::int32_t>& order() const { return order_; }
  std::span<const std::int32_t> prompt(std::int32_t sequence) const {
    return longer_prompt(sequence).first(static_cast<std::size_t>(whole_blocks_ * kBlockSize + 1));
  }
  /// With one token more.
  std::span<const std::int32_t> longer_prompt(std::int32_t sequence) const {
    return ids_[static_cast<std::size_t>(sequence)];
  }

  void admit_all(KvManager& manager) const {
    for (const std::int32_t sequence : order_) {
      const Work work{sequence, prompt(sequence)};
      manager.commit(manager.plan({&work, 1}).value());
    }
  }
  void free_all(KvManager& manager) const {
    for (const std::int32_t sequence : order_) manager.free(sequence);
  }

 private:
  std::int64_t whole_blocks_;
  std::vector<TokenIds> ids_;        // [sequences][whole_blocks * block_size + 2]
  std::vector<std::int32_t> order_;  // [sequences]
};

/// A manager whose free blocks lie in random order: each was given to a sequence of its own, and the
/// sequences were freed in random order.
template <typename Manager, typename... Settings>
Manager used_manager(std::int64_t blocks, const Settings&... settings) {
  Manager manager({blocks, kBlockSize, 1}, settings...);
  const std::int32_t token = 1;
  const std::int64_t room = blocks - blocks / 100;
  for (std::int64_t n = 0; n < room; ++n) {
    const Work work{static_cast<std::int32_t>(n), {&token, 1}};
    manager.commit(manager.plan({&work, 1}).value());
  }
  for (const std::int32_t sequence : shuffled(room)) manager.free(sequence);
  return manager;
}

/// Times the admission of all `prompts`, for which `manager` has room.
void time_admission(benchmark::State& state, KvManager& manager, const Prompts& prompts) {
  measure(
      state, prompts.blocks(), [&] { prompts.admit_all(manager); }, [&] { prompts.free_all(manager); });
}

void allocate_step3(benchmark::State& state, std::int64_t blocks) {
  auto manager = used_manager<PagedManager>(blocks);
  time_admission(state, manager, Prompts(blocks, 1));
}

/// Without the prefix cache, so that free blocks hold nothing that could be found.
void allocate(benchmark::State& state, std::int64_t blocks) {
  auto manager = used_manager<PrefixCachingManager>(blocks, SharingSettings{.prefix_cache = false});
  time_admission(state, manager, Prompts(blocks, 1));
}

void hit(benchmark::State& state, std::int64_t blocks) {
  auto manager = used_manager<PrefixCachingManager>(blocks);
  const Prompts prompts(blocks, 1);
  prompts.admit_all(manager);
  prompts.free_all(manager);
  time_admission(state, manager, prompts);
}

/// Two sets of prompts evict each other: each set fills the pool.
void evict(benchmark::State& state, std::int64_t blocks) {
  auto manager = used_manager<PrefixCachingManager>(blocks);
  const Prompts one(blocks, 1), other(blocks, 1'000'000);
  one.admit_all(manager);
  one.free_all(manager);
  const Prompts *wanted = &other, *cached = &one;
  const std::int64_t operations = measure(
      state, one.blocks(), [&] { wanted->admit_all(manager); },
      [&] {
        wanted->free_all(manager);
        std::swap(wanted, cached);
      });
  state.counters["evictions"] =
      static_cast<double>(manager.counters().evictions) / static_cast<double>(operations);
}

template <typename Manager>
void free(benchmark::State& state, std::int64_t blocks) {
  auto manager = used_manager<Manager>(blocks);
  const Prompts prompts(blocks, 1);
  prompts.admit_all(manager);
  measure(
      state, prompts.blocks(), [&] { prompts.free_all(manager); }, [&] { prompts.admit_all(manager); });
}

/// A second sequence for each of `prompts`.
class Forks {
 public:
  Forks(PrefixCachingManager& manager, const Prompts& prompts) : manager_(manager), prompts_(prompts) {}

  std::int32_t child(std::int32_t parent) const {
    return parent + static_cast<std::int32_t>(prompts_.sequences());
  }
  void make() const {
    for (const std::int32_t parent : prompts_.order()) manager_.fork(parent, child(parent));
  }
  void free() const {
    for (const std::int32_t parent : prompts_.order()) manager_.free(child(parent));
  }

 private:
  PrefixCachingManager& manager_;
  const Prompts& prompts_;
};

void fork(benchmark::State& state, std::int64_t blocks) {
  auto manager = used_manager<PrefixCachingManager>(blocks);
  const Prompts prompts(blocks, 1);
  prompts.admit_all(manager);
  const Forks forks(manager, prompts);
  measure(
      state, prompts.blocks(), [&] { forks.make(); }, [&] { forks.free(); });
}

/// Every child goes on by one token, in a tail that its parent refers to.
void copy_on_write(benchmark::State& state, std::int64_t blocks) {
  constexpr std::size_t kOfAPass = 64;
  auto manager = used_manager<PrefixCachingManager>(blocks);
  const Prompts prompts(blocks, 1);
  prompts.admit_all(manager);
  const Forks forks(manager, prompts);
  forks.make();
  std::vector<Work> work;
  for (const std::int32_t parent : prompts.order())
    work.push_back({forks.child(parent), prompts.longer_prompt(parent)});
  const std::int64_t operations = measure(
      state, prompts.sequences(),
      [&] {
        for (std::span<const Work> left = work; !left.empty();) {
          const std::span<const Work> pass = left.first(std::min(kOfAPass, left.size()));
          manager.commit(manager.plan(pass).value());
          left = left.subspan(pass.size());
        }
      },
      [&] {
        forks.free();
        forks.make();
      });
  state.counters["copies"] = static_cast<double>(manager.counters().copies) / static_cast<double>(operations);
}

// Their parts

enum class Half : std::uint8_t { taking, giving };

/// Of taking all blocks and giving them back in random order, one half.
void time_half(benchmark::State& state, Half timed, std::int64_t blocks, const auto& take, const auto& give) {
  take();
  give();
  if (timed == Half::taking) {
    measure(state, blocks, take, give);
    return;
  }
  take();
  measure(state, blocks, give, take);
}

void pool_half(benchmark::State& state, std::int64_t blocks, Half timed) {
  BlockPool pool(blocks);
  const std::vector<std::int32_t> order = shuffled(blocks);
  time_half(
      state, timed, blocks,
      [&] {
        while (pool.allocate()) {
        }
      },
      [&] {
        for (const std::int32_t block : order) static_cast<void>(pool.free(block));
      });
}

void queue_half(benchmark::State& state, std::int64_t blocks, Half timed) {
  FreeBlockQueue queue(blocks);
  const std::vector<std::int32_t> order = shuffled(blocks);
  time_half(
      state, timed, blocks,
      [&] {
        while (queue.size() > 0) queue.remove(queue.front());
      },
      [&] {
        for (const std::int32_t block : order) queue.push_back(block);
      });
}

/// A hit takes its blocks from wherever they are.
void queue_remove(benchmark::State& state, std::int64_t blocks) {
  FreeBlockQueue queue(blocks);
  const std::vector<std::int32_t> order = shuffled(blocks);
  measure(
      state, blocks,
      [&] {
        for (const std::int32_t block : order) queue.remove(block);
      },
      [&] {
        for (std::int64_t block = 0; block < blocks; ++block)
          queue.push_back(static_cast<std::int32_t>(block));
      });
}

/// An index of first blocks, and what each of them holds.
class FilledIndex {
 public:
  explicit FilledIndex(std::int64_t blocks)
      : order_(shuffled(blocks)), ids_(random_tokens(blocks * kBlockSize, 1)), index_(blocks, kBlockSize) {
    for (std::int32_t block = 0; block < blocks; ++block)
      contents_.push_back({block_hash({}, ids(block)), static_cast<std::uint64_t>(block) + 1, 0});
    insert();
  }

  void insert() {
    for (const std::int32_t block : order_) index_.insert(block, content(block), ids(block));
  }
  void erase() {
    for (const std::int32_t block : order_) index_.erase(block);
  }
  void find() const {
    for (const std::int32_t block : order_)
      benchmark::DoNotOptimize(index_.find(content(block).hash, 0, ids(block)));
  }

 private:
  const BlockContent& content(std::int32_t block) const { return contents_[static_cast<std::size_t>(block)]; }
  std::span<const std::int32_t> ids(std::int32_t block) const {
    return std::span(ids_).subspan(static_cast<std::size_t>(block * kBlockSize), kBlockSize);
  }

  std::vector<std::int32_t> order_;     // [blocks]
  TokenIds ids_;                        // [blocks, block_size]
  std::vector<BlockContent> contents_;  // [blocks]
  PrefixIndex index_;
};

void index_insert(benchmark::State& state, std::int64_t blocks) {
  FilledIndex index(blocks);
  index.erase();
  measure(
      state, blocks, [&] { index.insert(); }, [&] { index.erase(); });
}

void index_erase(benchmark::State& state, std::int64_t blocks) {
  FilledIndex index(blocks);
  measure(
      state, blocks, [&] { index.erase(); }, [&] { index.insert(); });
}

void index_find(benchmark::State& state, std::int64_t blocks) {
  const FilledIndex index(blocks);
  measure(
      state, blocks, [&] { index.find(); }, [] {});
}

// Prompts

void hash_chain(benchmark::State& state) {
  const TokenIds ids = random_tokens(kPromptTokens, 1);
  measure(
      state, 1,
      [&] {
        std::optional<std::uint64_t> parent;
        for (std::size_t token = 0; token < ids.size(); token += kBlockSize)
          parent = block_hash(parent, std::span(ids).subspan(token, kBlockSize));
        benchmark::DoNotOptimize(parent);
      },
      [] {});
  state.counters[kTokensPerSecond] =
      state.counters[kOperationsPerSecond] * static_cast<double>(kPromptTokens);
}

/// A pool full of prompts of 50,000 tokens; they, or others, are looked up in turn.
void lookup(benchmark::State& state, std::int64_t blocks, bool known) {
  constexpr std::int64_t kBlocks = kPromptTokens / kBlockSize;
  auto manager = used_manager<PrefixCachingManager>(blocks);
  const Prompts cached(blocks, 1, kBlocks), others(blocks, 1'000'000, kBlocks);
  cached.admit_all(manager);
  cached.free_all(manager);
  const Prompts& wanted = known ? cached : others;
  std::int64_t found = 0;
  const std::int64_t lookups = measure(
      state, wanted.sequences(),
      [&] {
        for (const std::int32_t sequence : wanted.order()) found += manager.peek(wanted.prompt(sequence));
      },
      [] {});
  state.counters["found"] = static_cast<double>(found) / static_cast<double>(lookups);
}

// The list

template <typename Function, typename... Arguments>
void add(const std::string& name, Function function, Arguments... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { function(state, arguments...); })
      ->UseManualTime()
      ->Iterations(1);
}

void add_for_all_pools(const std::string& name, auto function, auto... arguments) {
  for (const std::int64_t blocks : {1'000, 100'000, 1'000'000})
    add(fmt::format("{}/blocks:{}", name, blocks), function, blocks, arguments...);
}

void add_all() {
  add_for_all_pools("PagedManager/allocate", allocate_step3);
  add_for_all_pools("PagedManager/free", free<PagedManager>);
  add_for_all_pools("PrefixCachingManager/allocate", allocate);
  add_for_all_pools("PrefixCachingManager/free", free<PrefixCachingManager>);
  add_for_all_pools("PrefixCachingManager/hit", hit);
  add_for_all_pools("PrefixCachingManager/evict", evict);
  add_for_all_pools("PrefixCachingManager/fork", fork);
  add_for_all_pools("PrefixCachingManager/copy_on_write", copy_on_write);
  add_for_all_pools("BlockPool/allocate", pool_half, Half::taking);
  add_for_all_pools("BlockPool/free", pool_half, Half::giving);
  add_for_all_pools("FreeBlockQueue/take_front", queue_half, Half::taking);
  add_for_all_pools("FreeBlockQueue/push_back", queue_half, Half::giving);
  add_for_all_pools("FreeBlockQueue/remove", queue_remove);
  add_for_all_pools("PrefixIndex/find", index_find);
  add_for_all_pools("PrefixIndex/insert", index_insert);
  add_for_all_pools("PrefixIndex/erase", index_erase);
  add(fmt::format("block_hash/tokens:{}", kPromptTokens), hash_chain);
  for (const std::int64_t blocks : {10'000, 100'000, 1'000'000}) {
    add(fmt::format("lookup/all_hit/tokens:{}/blocks:{}", kPromptTokens, blocks), lookup, blocks, true);
    add(fmt::format("lookup/all_miss/tokens:{}/blocks:{}", kPromptTokens, blocks), lookup, blocks, false);
  }
}

}  // namespace
}  // namespace kvcache

/// Takes Google Benchmark's options. @return as run_benchmark_program.
int main(int argc, char** argv) {
  return kvcache::run_benchmark_program(argc, argv, kvcache::kWhat, kvcache::kNote, kvcache::add_all);
}
