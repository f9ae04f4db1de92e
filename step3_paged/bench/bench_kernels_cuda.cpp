/// @file
/// The GPU's half of bench_kernels: every rung of scatter, gather and attention, and the matrix products,
/// beside the GPU's limits. All calls work on random numbers, on more data in turn than the L2 cache holds.
/// Chapter: step3_paged/README.md.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/bench/peak_loop.h"
#include "common/bench/read_sweep.h"
#include "common/bench/repeated_calls.h"
#include "common/cuda/attention.h"
#include "common/cuda/cublas.h"
#include "common/cuda/memory.h"
#include "common/cuda/scatter.h"
#include "fmt/format.h"
#include "step3_paged/bench/bench_kernels.h"
#include "step3_paged/cuda_gather.h"

namespace kvcache::cuda {
namespace {

constexpr std::int64_t kTokens = 65'536;  // scattered and gathered
// Far more than any L2 cache holds (50 MB on an H100): when a set's turn comes again, nothing of it is left.
constexpr std::int64_t kTurnBytes = 512 << 20;

constexpr int kReplays = 30;  // each plays all turns

using Call = std::function<void(int turn)>;

/// How many sets of `bytes` take turns.
int turns_of(std::int64_t bytes) {
  return static_cast<int>(std::max<std::int64_t>(2, (kTurnBytes + bytes - 1) / bytes));
}

template <typename T>
DeviceBuffer<T> on_gpu(const Device& device, const std::vector<T>& numbers) {
  DeviceBuffer<T> buffer(std::ssize(numbers), "a benchmark");
  check(cudaMemcpyAsync(buffer.data(), numbers.data(), numbers.size() * sizeof(T), cudaMemcpyHostToDevice,
                        device.stream()),
        "copying to the GPU");
  device.synchronize();
  return buffer;
}

DeviceBuffer<std::byte> random_on_gpu(const Device& device, DType dtype, std::int64_t count,
                                      std::uint32_t seed) {
  DeviceBuffer<std::byte> buffer(count * size_of(dtype), "a benchmark");
  fill_with_random(dtype, buffer.data(), count, seed, device.stream());
  return buffer;
}

/// All ids of a pool's blocks, in random order: [sequences, blocks of each].
std::vector<std::int32_t> shuffled_blocks(std::int64_t blocks) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(blocks));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
  return ids;
}

/// Calls recorded once as a CUDA graph, so that short kernels follow each other without waiting for the host.
/// The graph takes the time itself, before the first call and after the last: its start is not counted.
class Replay {
 public:
  Replay(const Device& device, int calls, const Call& call) : device_(device), calls_(calls) {
    call(0);  // the first call loads and allocates; it is not recorded
    device.synchronize();
    check(cudaEventCreate(&begin_), "making a CUDA event");
    check(cudaEventCreate(&end_), "making a CUDA event");
    cudaGraph_t recorded = nullptr;
    check(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal),
          "recording a CUDA graph");
    check(cudaEventRecordWithFlags(begin_, device.stream(), cudaEventRecordExternal), "timing the GPU");
    for (int turn = 0; turn < calls; ++turn) call(turn);
    check(cudaEventRecordWithFlags(end_, device.stream(), cudaEventRecordExternal), "timing the GPU");
    check(cudaStreamEndCapture(device.stream(), &recorded), "recording a CUDA graph");
    check(cudaGraphInstantiate(&graph_, recorded, 0), "making a CUDA graph");
    check(cudaGraphDestroy(recorded), "making a CUDA graph");
    seconds_per_call();  // the first replay is slower
  }
  ~Replay() {
    cudaGraphExecDestroy(graph_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  /// Plays all calls once.
  double seconds_per_call() {
    check(cudaGraphLaunch(graph_, device_.stream()), "starting a CUDA graph");
    device_.synchronize();
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing the GPU");
    return static_cast<double>(milliseconds) * 1e-3 / calls_;
  }

 private:
  const Device& device_;
  int calls_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

/// Times replays of `calls` calls.
/// @return seconds of a call in the median replay
double measure(benchmark::State& state, const Device& device, int calls, const Call& call) {
  Replay replay(device, calls, call);
  return time_calls(state, {.calls = kReplays, .seconds = 0}, [&] { return replay.seconds_per_call(); });
}

/// The GPU, and how fast it copies, reads and computes when it does nothing else.
class Machine {
 public:
  Device device;

  /// Calls that copy `bytes` from device to device.
  struct Copy {
    DeviceBuffer<std::byte> from, to;
    std::int64_t bytes;
    Call call(const Device& device) const {
      return [this, &device](int turn) {
        check(cudaMemcpyAsync(to.data() + turn * bytes, from.data() + turn * bytes,
                              static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, device.stream()),
              "copying");
      };
    }
  };
  Copy copy(std::int64_t bytes) const {
    const std::int64_t all = turns_of(bytes) * bytes;
    return {random_on_gpu(device, DType::bf16, all / 2, 1), random_on_gpu(device, DType::bf16, all / 2, 2),
            bytes};
  }
  /// Calls that read `bytes`.
  struct Read {
    DeviceBuffer<std::byte> from;
    DeviceBuffer<std::uint32_t> sink;
    std::int64_t bytes;
    Call call(const Device& device) const {
      return [this, &device](int turn) {
        read_sweep(from.data() + turn * bytes, bytes, sink.data(), device.stream());
      };
    }
  };
  Read read(std::int64_t bytes) const {
    return {random_on_gpu(device, DType::bf16, turns_of(bytes) * bytes / 2, 1), {1, "a benchmark"}, bytes};
  }

  /// Bytes read plus bytes written per second when `bytes` are copied.
  double copy_rate(std::int64_t bytes) {
    double& rate = copy_rates_[bytes];
    if (rate == 0) {
      const Copy copied = copy(bytes);
      rate = 2 * static_cast<double>(bytes) / median_seconds(turns_of(bytes), copied.call(device));
    }
    return rate;
  }
  /// Bytes read per second.
  double read_rate(std::int64_t bytes) {
    double& rate = read_rates_[bytes];
    if (rate == 0) {
      const Read swept = read(bytes);
      rate = static_cast<double>(bytes) / median_seconds(turns_of(bytes), swept.call(device));
    }
    return rate;
  }
  /// Floating-point operations per second on numbers of a type, in registers.
  double peak_rate(DType dtype) {
    double& rate = peak_rates_[dtype];
    if (rate == 0) {
      const DeviceBuffer<float> sink(1, "a benchmark");
      double operations = 0;
      const double seconds =
          median_seconds(1, [&](int) { operations = peak_loop(device, dtype, sink.data()); });
      rate = operations / seconds;
    }
    return rate;
  }

 private:
  double median_seconds(int calls, const Call& call) const {
    Replay replay(device, calls, call);
    std::vector<double> seconds(11);
    for (double& each : seconds) each = replay.seconds_per_call();
    std::nth_element(seconds.begin(), seconds.begin() + 5, seconds.end());
    return seconds[5];
  }

  std::map<std::int64_t, double> copy_rates_, read_rates_;
  std::map<DType, double> peak_rates_;
};

void report_operations(benchmark::State& state, double operations, double seconds, double rate) {
  state.counters[kTeraflopsPerSecond] = operations / seconds * 1e-12;
  state.counters["of peak"] = operations / seconds / rate;
}

void report(benchmark::State& state, std::int64_t bytes, double seconds, const char* of_what, double rate) {
  const double reached = static_cast<double>(bytes) / seconds;
  state.counters[kGigabytesPerSecond] = reached * 1e-9;
  state.counters[of_what] = reached / rate;
}

void copy(benchmark::State& state, Machine& machine, std::int64_t bytes) {
  const Machine::Copy copied = machine.copy(bytes);
  const double seconds = measure(state, machine.device, turns_of(bytes), copied.call(machine.device));
  state.counters[kGigabytesPerSecond] = 2e-9 * static_cast<double>(bytes) / seconds;
}

void read(benchmark::State& state, Machine& machine, std::int64_t bytes) {
  const Machine::Read swept = machine.read(bytes);
  const double seconds = measure(state, machine.device, turns_of(bytes), swept.call(machine.device));
  state.counters[kGigabytesPerSecond] = 1e-9 * static_cast<double>(bytes) / seconds;
}

void peak(benchmark::State& state, Machine& machine, DType dtype) {
  const DeviceBuffer<float> sink(1, "a benchmark");
  double operations = 0;
  const double seconds = measure(state, machine.device, 1,
                                 [&](int) { operations = peak_loop(machine.device, dtype, sink.data()); });
  state.counters[kTeraflopsPerSecond] = operations / seconds * 1e-12;
}

/// y = x W^T by cuBLAS. Must be computed: a multiplication and an addition for each row and weight. Must
/// move, for one row: the weights.
void product(benchmark::State& state, Machine& machine, std::int64_t rows, std::int64_t in, std::int64_t out,
             DType dtype) {
  const Device& device = machine.device;
  const std::int64_t bytes = in * out * size_of(dtype);
  const int turns = turns_of(bytes);
  const auto weights = random_on_gpu(device, dtype, turns * in * out, 1);  // [turns, out, in]
  const auto x = random_on_gpu(device, dtype, rows * in, 2);
  const auto y = random_on_gpu(device, dtype, rows * out, 3);
  Cublas cublas(device.stream());
  const double seconds = measure(state, device, turns, [&](int turn) {
    cublas.multiply(dtype, x.data(), in, weights.data() + turn * bytes, y.data(), out, rows, in, out,
                    /*add=*/false);
  });
  if (rows == 1) return report(state, bytes, seconds, "of read", machine.read_rate(bytes));
  report_operations(state, 2 * static_cast<double>(rows * in * out), seconds, machine.peak_rate(dtype));
}

constexpr std::int64_t kMovedBytes = kTokens * kBenchKvWidth * 2 * size_of(DType::bf16);  // K and V

/// Must move: K and V read and written once each, and the slot mapping read.
void scatter(benchmark::State& state, Machine& machine, RowKernels kernels, std::int64_t block_size) {
  const Device& device = machine.device;
  constexpr std::int64_t kNumbers = kTokens * kBenchKvWidth;
  const int turns = turns_of(2 * kMovedBytes);
  const auto rows =
      random_on_gpu(device, DType::bf16, turns * 2 * kNumbers, 1);  // [turns, K and V, tokens, width]
  const auto pool = random_on_gpu(device, DType::bf16, turns * 2 * kNumbers, 2);
  const std::vector<std::int32_t> blocks = shuffled_blocks(kTokens / block_size);
  std::vector<std::int64_t> mapping;
  for (std::int64_t token = 0; token < kTokens; ++token)
    mapping.push_back(blocks[static_cast<std::size_t>(token / block_size)] * block_size + token % block_size);
  const auto slots = on_gpu(device, mapping);
  const double seconds = measure(state, device, turns, [&](int turn) {
    const std::int64_t k = turn * kMovedBytes, v = k + kMovedBytes / 2;
    scatter_kv(DType::bf16, {rows.data() + k, kBenchKvWidth, rows.data() + v, kBenchKvWidth, kTokens},
               kBenchKvWidth, slots.data(), pool.data() + k, pool.data() + v, device.stream(), kernels);
  });
  report(state, 2 * kMovedBytes + kTokens * 8, seconds, "of copy", machine.copy_rate(kMovedBytes));
}

/// Must move: K and V read and written once each, and the block table read.
void gather(benchmark::State& state, Machine& machine, RowKernels kernels, std::int64_t block_size) {
  const Device& device = machine.device;
  constexpr std::int64_t kNumbers = kTokens * kBenchKvWidth, kSequences = 16, kContext = kTokens / kSequences;
  const int turns = turns_of(2 * kMovedBytes);
  const auto pool =
      random_on_gpu(device, DType::bf16, turns * 2 * kNumbers, 1);  // [turns, K and V, slots, width]
  const auto gathered = random_on_gpu(device, DType::bf16, turns * 2 * kNumbers, 2);
  const auto table = on_gpu(device, shuffled_blocks(kTokens / block_size));
  std::vector<std::int64_t> first_slots;
  for (std::int64_t s = 0; s <= kSequences; ++s) first_slots.push_back(s * kContext);
  const auto first_slot = on_gpu(device, first_slots);
  const SlotMap slots{.block_table = table.data(),
                      .table_width = static_cast<std::int32_t>(kContext / block_size),
                      .block_size = static_cast<std::int32_t>(block_size)};
  const double seconds = measure(state, device, turns, [&](int turn) {
    const std::int64_t k = turn * kMovedBytes, v = k + kMovedBytes / 2;
    gather_kv(DType::bf16, {pool.data() + k, pool.data() + v}, slots, kBenchKvWidth,
              {gathered.data() + k, gathered.data() + v, first_slot.data(), kSequences, kTokens},
              device.stream(), kernels);
  });
  report(state, 2 * kMovedBytes + table.size() * 4, seconds, "of copy", machine.copy_rate(kMovedBytes));
}

/// Attention of the last `rows` positions of each of `sequences` contexts.
struct AttentionCase {
  std::int64_t sequences, context, rows;
  DType dtype;
  bool paged;
  AttentionKernels kernels;

  /// K and V of all sequences in one layer.
  std::int64_t kv_bytes() const { return sequences * context * kBenchKvWidth * 2 * size_of(dtype); }
};

/// @param turns  layers of K and V that take turns
/// @return seconds of one layer's attention
double attention(benchmark::State& state, const Device& device, const AttentionCase& of, int turns) {
  const std::int64_t slots = of.sequences * of.context, rows = of.sequences * of.rows;
  const auto pool = random_on_gpu(device, of.dtype, turns * 2 * slots * kBenchKvWidth, 1);
  const auto q = random_on_gpu(device, of.dtype, rows * kBenchQWidth, 2);
  const auto out = random_on_gpu(device, of.dtype, rows * kBenchQWidth, 3);
  const auto table = on_gpu(device, shuffled_blocks(slots / kBenchBlockSize));
  std::vector<std::int64_t> first_slots;
  std::vector<std::int32_t> row_begin{0}, context_len;
  for (std::int64_t s = 0; s < of.sequences; ++s) {
    first_slots.push_back(s * of.context);
    row_begin.push_back(static_cast<std::int32_t>((s + 1) * of.rows));
    context_len.push_back(static_cast<std::int32_t>(of.context));
  }
  const auto first_slot = on_gpu(device, first_slots);
  SlotMap map{.first_slot = first_slot.data()};
  if (of.paged) {
    map = {.block_table = table.data(),
           .table_width = static_cast<std::int32_t>(of.context / kBenchBlockSize),
           .block_size = kBenchBlockSize};
  }
  Attention attention(device, kBenchHeads, of.dtype, of.kernels);
  attention.begin(row_begin, context_len);
  return measure(state, device, turns, [&](int turn) {
    const std::byte* k = pool.data() + turn * of.kv_bytes();
    attention.run({k, k + of.kv_bytes() / 2}, map, q.data(), kBenchQWidth, out.data(), kBenchQWidth);
  });
}

/// Must move: K and V read once; q, the block table and the output are small beside them, and counted.
void decode(benchmark::State& state, Machine& machine, const AttentionCase& of) {
  const double seconds = attention(state, machine.device, of, turns_of(of.kv_bytes()));
  const std::int64_t q_and_out = 2 * of.sequences * kBenchQWidth * size_of(of.dtype);
  const std::int64_t table = of.paged ? of.sequences * of.context / kBenchBlockSize * 4 : 0;
  report(state, of.kv_bytes() + q_and_out + table, seconds, "of read", machine.read_rate(of.kv_bytes()));
}

/// Must be computed: prefill_operations().
void prefill(benchmark::State& state, Machine& machine, const AttentionCase& of) {
  const double seconds = attention(state, machine.device, of, 2);
  const double operations = static_cast<double>(of.sequences) * prefill_operations(of.context);
  report_operations(state, operations, seconds, machine.peak_rate(of.dtype));
}

template <typename Function, typename... Arguments>
void add(const std::string& name, const std::shared_ptr<Machine>& machine, Function function,
         Arguments... arguments) {
  benchmark::RegisterBenchmark(("cuda/" + name).c_str(),
                               [=](benchmark::State& state) {
                                 try {
                                   function(state, *machine, arguments...);
                                 } catch (const std::exception& error) {
                                   state.SkipWithError(error.what());
                                 }
                               })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

const char* name_of(RowKernels kernels) {
  return kernels == RowKernels::plain ? "plain" : "packs";
}

const char* name_of(AttentionKernels kernels) {
  return kernels == AttentionKernels::plain   ? "plain"
         : kernels == AttentionKernels::tiles ? "tiles"
                                              : "tensor_cores";
}

void add_moves(const std::shared_ptr<Machine>& machine) {
  for (const RowKernels kernels : {RowKernels::plain, RowKernels::packs}) {
    for (const std::int64_t block_size : {16, 8, 64}) {
      const std::string how = fmt::format("{}/block_size:{}", name_of(kernels), block_size);
      add("scatter/" + how, machine, scatter, kernels, block_size);
      add("gather/" + how, machine, gather, kernels, block_size);
    }
  }
}

void add_attention(const std::shared_ptr<Machine>& machine) {
  struct Size {
    std::int64_t sequences, context;
    DType dtype;
  };
  for (const AttentionKernels kernels :
       {AttentionKernels::plain, AttentionKernels::tiles, AttentionKernels::tensor_cores}) {
    for (const bool paged : {false, true}) {
      const auto named = [&](const char* what, const Size& size) {
        return fmt::format("{}/{}/{}/{}x{}/{}", what, name_of(kernels), paged ? "paged" : "contiguous",
                           size.sequences, size.context, kvcache::name_of(size.dtype));
      };
      for (const Size& size : {Size{64, 4096, DType::bf16},
                               {1, 4096, DType::bf16},
                               {1, 32768, DType::bf16},
                               {8, 8192, DType::bf16},
                               {64, 2048, DType::f32}}) {
        if (size.dtype == DType::f32 && kernels == AttentionKernels::tensor_cores) continue;
        add(named("decode", size), machine, decode,
            AttentionCase{size.sequences, size.context, 1, size.dtype, paged, kernels});
      }
      for (const Size& size : {Size{1, 512, DType::bf16}, {1, 4096, DType::bf16}, {1, 16384, DType::bf16}}) {
        if (size.context > 4096 && kernels == AttentionKernels::plain) continue;  // seconds for each call
        add(named("prefill", size), machine, prefill,
            AttentionCase{size.sequences, size.context, size.context, size.dtype, paged, kernels});
      }
    }
  }
}

void add_products(const std::shared_ptr<Machine>& machine) {
  std::vector<DType> types{DType::f32};
  if (machine->device.compute_capability() >= 80) types.push_back(DType::bf16);
  for (const DType dtype : types) {
    const std::string type(kvcache::name_of(dtype));
    add((dtype == DType::f32 ? "multiply_add/" : "tensor_cores/") + type, machine, peak, dtype);
    for (const std::int64_t rows : {1, 64, 512, 4096}) {
      for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{1024, 3072}, {3072, 1024}})
        add(fmt::format("matmul/{}x{}x{}/{}", rows, in, out, type), machine, product, rows, in, out, dtype);
    }
    add("matmul/1x1024x151936/" + type, machine, product, 1, 1024, 151'936, dtype);  // logits
  }
}

}  // namespace

void add_cuda_benchmarks() {
  const auto machine = std::make_shared<Machine>();
  benchmark::AddCustomContext("gpu", machine->device.name());
  for (const std::int64_t bytes : {kMovedBytes, std::int64_t{16} << 20}) {
    add(fmt::format("copy/{}MiB", bytes >> 20), machine, copy, bytes);
    add(fmt::format("read/{}MiB", bytes >> 20), machine, read, bytes);
  }
  add_products(machine);
  add_moves(machine);
  add_attention(machine);
}

}  // namespace kvcache::cuda
