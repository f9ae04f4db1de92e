/// @file
/// What it costs to let a contiguous cache grow, beside reserving it: K and V of a model of Qwen3-0.6B's
/// shape, in bf16, from no token to many. "exact" is what concatenating does: every token gets buffers of its
/// own, into which all older rows are copied. "doubling" copies only when a buffer is full. "reservation" is
/// this step's way and copies nothing. No model runs. Chapter: step2_flat_cache/README.md.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <vector>

namespace {

constexpr std::int64_t kBuffers = 2 * 28;        // K and V of 28 layers
constexpr std::int64_t kRowBytes = 8 * 128 * 2;  // kv_heads * head_dim numbers
constexpr std::int64_t kLongest = 512;           // tokens

enum class Growth : std::uint8_t { exact, doubling, reservation };

/// The rows of K, or of V, of one layer.
class Rows {
 public:
  explicit Rows(Growth growth) : growth_(growth) {
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
    auto larger = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(capacity * kRowBytes));
    const std::int64_t bytes = length_ * kRowBytes;
    if (bytes > 0) std::memcpy(larger.get(), data_.get(), static_cast<std::size_t>(bytes));
    data_ = std::move(larger);
    capacity_ = capacity;
    return bytes;
  }

  Growth growth_;
  std::int64_t length_ = 0, capacity_ = 0;  // rows
  std::unique_ptr<std::byte[]> data_;       // [capacity, kRowBytes]
};

/// @return bytes moved while `tokens` tokens were appended to all buffers
std::int64_t grow(Growth growth, std::int64_t tokens) {
  const std::vector<std::byte> row(kRowBytes, std::byte{1});
  std::vector<Rows> cache;
  for (std::int64_t buffer = 0; buffer < kBuffers; ++buffer) cache.emplace_back(growth);
  std::int64_t moved = 0;
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (Rows& rows : cache) moved += rows.append(row.data());
  }
  for (const Rows& rows : cache) benchmark::DoNotOptimize(rows.data());
  return moved;
}

void grow_to(benchmark::State& state, Growth growth) {
  const std::int64_t tokens = state.range(0);
  std::int64_t moved = 0;
  grow(growth, tokens);  // warm-up: the process has the memory
  for (auto _ : state) moved = grow(growth, tokens);
  state.counters["context"] = static_cast<double>(tokens);
  state.counters["bytes_moved"] = static_cast<double>(moved);
  state.counters["tokens_per_s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsIterationInvariantRate);
}

/// The same sizes for all, timed once each, as the runs of the steps are.
void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("tokens")->RangeMultiplier(2)->Range(32, kLongest);
  benchmark->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(grow_to, exact, Growth::exact)->Name("grow/exact")->Apply(sizes);
BENCHMARK_CAPTURE(grow_to, doubling, Growth::doubling)->Name("grow/doubling")->Apply(sizes);
BENCHMARK_CAPTURE(grow_to, reservation, Growth::reservation)->Name("grow/reservation")->Apply(sizes);

}  // namespace
