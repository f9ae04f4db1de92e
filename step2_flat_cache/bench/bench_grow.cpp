/// @file
/// What a contiguous cache costs that grows, against one that is reserved. K and V of a model of Qwen3-0.6B's
/// shape in bf16 are appended token by token; no model runs. "exact": every token gets new buffers, into
/// which all older rows are copied, as concatenation does. "doubling" copies only when a buffer is full.
/// "reservation", this step's way, copies nothing. Chapter: step2_flat_cache/README.md.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/bench/repeated_calls.h"

namespace {

constexpr std::int64_t kBuffers = 2 * 28;        // K and V of 28 layers
constexpr std::int64_t kRowBytes = 8 * 128 * 2;  // kv_heads * head_dim numbers
constexpr std::int64_t kLongest = 512;           // tokens
constexpr std::int64_t kPlaceBytes = kLongest * kRowBytes;

enum class Growth : std::uint8_t { exact, doubling, reservation };

/// Gives buffers out and takes them back.
class Memory {
 public:
  /// @param fresh  true: every buffer is new memory from the allocator. false: buffers are memory that was
  /// written before, and the one given back last is taken first
  explicit Memory(bool fresh) : fresh_(fresh) {
    if (fresh) return;
    constexpr std::int64_t kPlaces = kBuffers + 1;  // one moves at a time
    places_.assign(static_cast<std::size_t>(kPlaces * kPlaceBytes), std::byte{1});
    for (std::int64_t place = kPlaces; place-- > 0;) spare_.push_back(places_.data() + place * kPlaceBytes);
  }

  struct GiveBack {
    Memory* memory = nullptr;
    void operator()(std::byte* buffer) const {
      if (memory->fresh_) {
        std::free(buffer);
      } else {
        memory->spare_.push_back(buffer);
      }
    }
  };
  using Buffer = std::unique_ptr<std::byte[], GiveBack>;

  /// @param bytes  at most kPlaceBytes
  Buffer take(std::int64_t bytes) {
    if (fresh_)
      return {static_cast<std::byte*>(std::malloc(static_cast<std::size_t>(bytes))), GiveBack{this}};
    std::byte* const place = spare_.back();
    spare_.pop_back();
    return {place, GiveBack{this}};
  }

 private:
  bool fresh_;
  std::vector<std::byte> places_;  // [kBuffers + 1, kPlaceBytes]
  std::vector<std::byte*> spare_;
};

/// The rows of K, or of V, of one layer.
class Rows {
 public:
  Rows(Growth growth, Memory& memory) : growth_(growth), memory_(memory) {
    if (growth == Growth::reservation) move_to(kLongest);
  }

  /// @return bytes of older rows that had to be copied
  std::int64_t append(const std::byte* row) {
    const std::int64_t moved = length_ == capacity_ ? move_to(next_capacity()) : 0;
    std::memcpy(data_.get() + length_ * kRowBytes, row, kRowBytes);
    ++length_;
    return moved;
  }
  const std::byte* data() const { return data_.get(); }

 private:
  std::int64_t next_capacity() const {
    return growth_ == Growth::doubling && capacity_ > 0 ? 2 * capacity_ : capacity_ + 1;
  }

  std::int64_t move_to(std::int64_t capacity) {
    Memory::Buffer larger = memory_.take(capacity * kRowBytes);
    const std::int64_t bytes = length_ * kRowBytes;
    if (bytes > 0) std::memcpy(larger.get(), data_.get(), static_cast<std::size_t>(bytes));
    data_ = std::move(larger);
    capacity_ = capacity;
    return bytes;
  }

  Growth growth_;
  Memory& memory_;
  std::int64_t length_ = 0, capacity_ = 0;  // rows
  Memory::Buffer data_;                     // [capacity, kRowBytes]
};

/// @return bytes moved while `tokens` tokens were appended to all buffers
std::int64_t grow(Growth growth, std::int64_t tokens, Memory& memory) {
  const std::vector<std::byte> row(kRowBytes, std::byte{1});
  std::vector<Rows> cache;
  for (std::int64_t buffer = 0; buffer < kBuffers; ++buffer) cache.emplace_back(growth, memory);
  std::int64_t moved = 0;
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (Rows& rows : cache) moved += rows.append(row.data());
  }
  for (const Rows& rows : cache) benchmark::DoNotOptimize(rows.data());
  return moved;
}

/// Pages that the system had to give to this process, or map, so far.
std::int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// With memory that was written before, growing costs the copies alone. Fresh memory adds page faults: the
/// allocator returns large buffers to the system, so in every run the system gives each page anew, filled
/// with zeros, when it is first written.
void grow_to(benchmark::State& state, Growth growth, bool fresh) {
  const std::int64_t tokens = state.range(0);
  Memory memory(fresh);
  std::int64_t moved = 0, faults = 0;
  for (auto _ : state) {
    faults = page_faults();
    const double begin = kvcache::seconds_of_this_thread();
    moved = grow(growth, tokens, memory);
    state.SetIterationTime(kvcache::seconds_of_this_thread() - begin);
    faults = page_faults() - faults;
  }
  state.counters["context"] = static_cast<double>(tokens);
  state.counters["bytes_moved"] = static_cast<double>(moved);
  state.counters["page_faults"] = static_cast<double>(faults);
  state.counters["tokens_per_s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsIterationInvariantRate);
}

/// Timed once each, as the runs of the steps are.
void timed_once(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("tokens")->Iterations(1)->UseManualTime()->Unit(benchmark::kMillisecond);
}
/// The same sizes for all.
void sizes(benchmark::internal::Benchmark* benchmark) {
  timed_once(benchmark->RangeMultiplier(2)->Range(32, kLongest));
}
void longest(benchmark::internal::Benchmark* benchmark) {
  timed_once(benchmark->Arg(kLongest));
}

BENCHMARK_CAPTURE(grow_to, exact, Growth::exact, false)->Name("grow/exact")->Apply(sizes);
BENCHMARK_CAPTURE(grow_to, doubling, Growth::doubling, false)->Name("grow/doubling")->Apply(sizes);
BENCHMARK_CAPTURE(grow_to, reservation, Growth::reservation, false)->Name("grow/reservation")->Apply(sizes);
BENCHMARK_CAPTURE(grow_to, exact, Growth::exact, true)->Name("grow/exact/fresh_memory")->Apply(longest);
BENCHMARK_CAPTURE(grow_to, doubling, Growth::doubling, true)
    ->Name("grow/doubling/fresh_memory")
    ->Apply(longest);
BENCHMARK_CAPTURE(grow_to, reservation, Growth::reservation, true)
    ->Name("grow/reservation/fresh_memory")
    ->Apply(longest);

}  // namespace
