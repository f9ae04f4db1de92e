/// @file
/// The CPU's half of bench_kernels: matrix product, attention, scatter and gather with the heads and weights
/// of Qwen3-0.6B. Chapter: step3_paged/README.md.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/bench/cpu_limits.h"
#include "common/bench/repeated_calls.h"
#include "common/cpu/attention.h"
#include "common/cpu/matmul.h"
#include "common/cpu/reserved_memory.h"
#include "common/cpu/scatter.h"
#include "fmt/format.h"
#include "step3_paged/bench/bench_kernels.h"
#include "step3_paged/gather.h"

namespace kvcache {
namespace {

// More than the last-level cache of most processors holds: when a set's turn comes again, little of it is
// left there.
constexpr std::int64_t kTurnBytes = std::int64_t{1} << 30;
constexpr std::int64_t kWrittenBytes = kTurnBytes / 2;

/// `bytes` bytes that are small positive numbers in each of the three types.
ReservedMemory small_numbers(std::int64_t bytes) {
  ReservedMemory memory(bytes);
  std::memset(memory.data(), 0x3C, static_cast<std::size_t>(bytes));
  return memory;
}

/// The CPU, its limits, and the data that take turns. Each is made when it is first asked for.
class Machine {
 public:
  ThreadPool threads{ThreadPool::all_threads()};

  double read_rate() {
    return measured("read", [&] { return cpu_read_rate(threads); });
  }
  double copy_rate() {
    return measured("copy", [&] { return cpu_copy_rate(threads); });
  }
  double multiply_add_rate() {
    return measured("fma", [&] { return cpu_multiply_add_rate(threads); });
  }
  double copy_rate_of_one_thread() {
    return measured("copy of one", [] {
      ThreadPool one(1);
      return cpu_copy_rate(one);
    });
  }

  /// Weights, K and V: [kTurnBytes].
  std::byte* data() { return in_use(data_, kTurnBytes); }
  /// What is written: [kWrittenBytes].
  std::byte* written() { return in_use(written_, kWrittenBytes); }

 private:
  double measured(const std::string& what, const std::function<double()>& measure) {
    const auto [rate, is_new] = rates_.try_emplace(what, 0.0);
    if (is_new) rate->second = measure();
    return rate->second;
  }
  static std::byte* in_use(std::optional<ReservedMemory>& memory, std::int64_t bytes) {
    if (!memory) memory = small_numbers(bytes);
    return memory->data();
  }

  std::map<std::string, double> rates_;
  std::optional<ReservedMemory> data_, written_;
};

/// Times calls with `turns` sets of data in turn.
/// @return seconds of the median call
double measure(benchmark::State& state, std::int64_t turns,
               const std::function<void(std::int64_t turn)>& call) {
  std::int64_t calls = 0;
  call(0);
  return time_calls(state, {}, [&] {
    const std::int64_t turn = ++calls % turns;
    const auto begin = std::chrono::steady_clock::now();
    call(turn);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
}

void report_bytes(benchmark::State& state, double per_second, const char* of_what, double rate) {
  state.counters[kGigabytesPerSecond] = per_second * 1e-9;
  state.counters[of_what] = per_second / rate;
}

void report_operations(benchmark::State& state, double per_second, double rate) {
  state.counters[kGigaflopsPerSecond] = per_second * 1e-9;
  state.counters["of multiply_add"] = per_second / rate;
}

/// One of the machine's limits, as the time of its fastest stretch for 10^9 bytes or operations.
void limit(benchmark::State& state, Machine& machine, double (Machine::*rate)(), const char* unit) {
  const double per_second = (machine.*rate)();
  for (auto _ : state) state.SetIterationTime(1e9 / per_second);
  state.counters[unit] = per_second * 1e-9;
}

/// y = x W^T, x in the type of W. Must be computed: a multiplication and an addition for each row and weight.
/// Must move, for one row: the weights.
void product(benchmark::State& state, Machine& machine, std::int64_t rows, std::int64_t in, std::int64_t out,
             DType dtype) {
  const std::vector<float> x(static_cast<std::size_t>(rows * in), 0.01F);
  std::vector<float> y(static_cast<std::size_t>(rows * out));
  const std::int64_t bytes = in * out * size_of(dtype);
  const double seconds = measure(state, kTurnBytes / bytes, [&](std::int64_t turn) {
    const Projection projection{{dtype, out, in, machine.data() + turn * bytes}, {}};
    const MatmulOutput to{&projection, y.data(), out};
    matmul(x.data(), in, rows, {&to, 1}, dtype, machine.threads);
  });
  if (rows == 1)
    return report_bytes(state, static_cast<double>(bytes) / seconds, "of read", machine.read_rate());
  report_operations(state, 2 * static_cast<double>(rows * in * out) / seconds, machine.multiply_add_rate());
}

/// How attention reads the K and V of a context.
enum class Rows : std::uint8_t {
  contiguous,
  gathered,  ///< copied from blocks first
  paged,     ///< through the block table
};

const char* name_of(Rows rows) {
  return rows == Rows::contiguous ? "contiguous" : rows == Rows::gathered ? "gathered" : "paged";
}

/// The ids of a context's blocks, in random order.
std::vector<std::int32_t> shuffled_blocks(std::int64_t context) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(context / kBenchBlockSize));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
  return ids;
}

/// K or V of a context.
std::int64_t side_bytes(std::int64_t context, DType dtype) {
  return context * kBenchKvWidth * size_of(dtype);
}

/// Attention of the last `rows` positions of one sequence.
/// @return seconds of one layer
double attention_seconds(benchmark::State& state, Machine& machine, Rows layout, std::int64_t context,
                         std::int64_t rows, DType dtype) {
  const std::int64_t side = side_bytes(context, dtype);
  const std::vector<std::int32_t> table = shuffled_blocks(context);
  const cpu::SlotMap blocks{.blocks = table.data(), .block_size = kBenchBlockSize};
  const cpu::AttentionSequence sequence{0, rows, context, layout == Rows::paged ? blocks : cpu::SlotMap{}};
  const std::vector<float> q(static_cast<std::size_t>(rows * kBenchQWidth), 0.01F);
  std::vector<float> out(q.size());
  std::vector<std::byte> k_rows(static_cast<std::size_t>(side)), v_rows(k_rows.size());
  return measure(state, kTurnBytes / (2 * side), [&](std::int64_t turn) {
    const std::byte* k = machine.data() + turn * 2 * side;
    const std::byte* v = k + side;
    if (layout == Rows::gathered) {
      cpu::gather_rows(k, blocks, context, kBenchKvWidth * size_of(dtype), k_rows.data());
      cpu::gather_rows(v, blocks, context, kBenchKvWidth * size_of(dtype), v_rows.data());
      k = k_rows.data(), v = v_rows.data();
    }
    cpu::attention(kBenchHeads, {dtype, k, v}, {&sequence, 1}, q.data(), out.data(), kBenchQWidth, DType::f32,
                   machine.threads);
  });
}

/// Must move: K and V, read once, in each of the three ways.
void decode(benchmark::State& state, Machine& machine, Rows layout, std::int64_t context, DType dtype) {
  const double seconds = attention_seconds(state, machine, layout, context, 1, dtype);
  report_bytes(state, static_cast<double>(2 * side_bytes(context, dtype)) / seconds, "of read",
               machine.read_rate());
}

/// Must be computed: prefill_operations().
void prefill(benchmark::State& state, Machine& machine, Rows layout, std::int64_t context, DType dtype) {
  const double seconds = attention_seconds(state, machine, layout, context, context, dtype);
  report_operations(state, prefill_operations(context) / seconds, machine.multiply_add_rate());
}

/// Must move: rows of float32, read, and the same rows in their stored type, written.
void scatter(benchmark::State& state, Machine& machine, DType dtype) {
  constexpr std::int64_t kTokens = 4096;
  const std::vector<std::int32_t> table = shuffled_blocks(kTokens);
  const cpu::SlotMap map{.blocks = table.data(), .block_size = kBenchBlockSize};
  std::vector<std::int64_t> slots;
  for (std::int64_t token = 0; token < kTokens; ++token) slots.push_back(map.slot(token));
  const std::int64_t read = kTokens * kBenchKvWidth * 4, written = side_bytes(kTokens, dtype);
  ThreadPool one_thread(1);
  const double seconds = measure(state, kWrittenBytes / written, [&](std::int64_t turn) {
    Matrix rows;
    rows.data = machine.data() + turn * read;
    rows.rows = kTokens, rows.cols = rows.stride = kBenchKvWidth;
    cpu::scatter_rows(rows, slots, dtype, machine.written() + turn * written, one_thread);
  });
  report_bytes(state, static_cast<double>(read + written) / seconds, "of copy",
               machine.copy_rate_of_one_thread());
}

/// Must move: rows in their stored type, read and written.
void gather(benchmark::State& state, Machine& machine, DType dtype) {
  constexpr std::int64_t kContext = 4096;
  const std::vector<std::int32_t> table = shuffled_blocks(kContext);
  const std::int64_t bytes = side_bytes(kContext, dtype);
  const double seconds = measure(state, kWrittenBytes / bytes, [&](std::int64_t turn) {
    cpu::gather_rows(machine.data() + turn * bytes, {.blocks = table.data(), .block_size = kBenchBlockSize},
                     kContext, kBenchKvWidth * size_of(dtype), machine.written() + turn * bytes);
  });
  report_bytes(state, static_cast<double>(2 * bytes) / seconds, "of copy", machine.copy_rate_of_one_thread());
}

template <typename Function, typename... Arguments>
void add(const std::string& name, const std::shared_ptr<Machine>& machine, Function function,
         Arguments... arguments) {
  benchmark::RegisterBenchmark(("cpu/" + name).c_str(),
                               [=](benchmark::State& state) { function(state, *machine, arguments...); })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace

void add_cpu_benchmarks() {
  const auto machine = std::make_shared<Machine>();
  add("read/1GB", machine, limit, &Machine::read_rate, "GB/s at best");
  add("copy/1GB", machine, limit, &Machine::copy_rate, "GB/s at best");
  add("multiply_add/1GFLOP", machine, limit, &Machine::multiply_add_rate, "GFLOP/s at best");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string type(kvcache::name_of(dtype));
    for (const std::int64_t rows : {1, 512}) {
      for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{1024, 3072}, {3072, 1024}})
        add(fmt::format("matmul/{}x{}x{}/{}", rows, in, out, type), machine, product, rows, in, out, dtype);
    }
    add("matmul/1x1024x151936/" + type, machine, product, 1, 1024, 151'936, dtype);  // logits
    for (const Rows layout : {Rows::contiguous, Rows::gathered, Rows::paged}) {
      for (const std::int64_t context : {512, 2048, 8192})
        add(fmt::format("decode/{}/1x{}/{}", name_of(layout), context, type), machine, decode, layout,
            context, dtype);
    }
    for (const Rows layout : {Rows::contiguous, Rows::paged}) {
      for (const std::int64_t context : {512, 2048})
        add(fmt::format("prefill/{}/1x{}/{}", name_of(layout), context, type), machine, prefill, layout,
            context, dtype);
    }
    add(fmt::format("scatter/block_size:{}/{}", kBenchBlockSize, type), machine, scatter, dtype);
    add(fmt::format("gather/block_size:{}/{}", kBenchBlockSize, type), machine, gather, dtype);
  }
}

}  // namespace kvcache
