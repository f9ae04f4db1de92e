/// @file
/// Measures the two layouts of a block pool: layer-major [layers, blocks, ...], which this step uses, and
/// block-major [blocks, layers, ...]. It times the attention of one token over a long context, and the copy
/// of a block out of the pool, as a swap makes it. Record: docs/results/2026-11-28-pool-layout-cpu.md.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/base/stored_number.h"
#include "common/bench/benchmark_program.h"
#include "common/cpu/attention.h"
#include "common/cpu/reserved_memory.h"

namespace kvcache {
namespace {

constexpr AttentionShape kHeads{16, 8, 128};  // those of Qwen3-0.6B
constexpr std::int64_t kLayers = 28, kBlockSize = 16, kContext = 2048, kBlocks = kContext / kBlockSize;
constexpr std::int64_t kBlockBytes = kBlockSize * kHeads.kv_heads * kHeads.head_dim * size_of(DType::bf16);

enum class Layout : std::int64_t { layer_major, block_major };

/// Pools of K and V for one long sequence whose blocks lie in no order, filled.
class Pool {
 public:
  explicit Pool(Layout layout) : layout_(layout) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    // Any fixed shuffle will do: 37 has no divisor in common with the number of blocks.
    for (std::int64_t n = 0; n < kBlocks; ++n)
      blocks_[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(n * 37 % kBlocks);
    for (std::int64_t at = 0; at < k_.bytes(); at += 2) {
      write_number(DType::bf16, static_cast<float>(at % 127) * 0.01F, k_.data() + at);
      write_number(DType::bf16, static_cast<float>(at % 113) * 0.01F, v_.data() + at);
    }
  }

  /// Block ids of a layer, counted in units of one layer's block from the start of the pool.
  std::vector<std::int32_t> table(std::int64_t layer) const {
    std::vector<std::int32_t> ids;
    for (const std::int32_t block : blocks_) ids.push_back(static_cast<std::int32_t>(place(layer, block)));
    return ids;
  }
  std::byte* k(std::int64_t layer, std::int32_t block) const {
    return k_.data() + place(layer, block) * kBlockBytes;
  }
  cpu::KvRows rows() const { return {DType::bf16, k_.data(), v_.data()}; }

 private:
  std::int64_t place(std::int64_t layer, std::int32_t block) const {
    return layout_ == Layout::layer_major ? layer * kBlocks + block : block * kLayers + layer;
  }

  Layout layout_;
  std::vector<std::int32_t> blocks_ = std::vector<std::int32_t>(kBlocks);
  ReservedMemory k_{kLayers * kBlocks * kBlockBytes}, v_{kLayers * kBlocks * kBlockBytes};
};

void decode_attention(benchmark::State& state) {
  const Pool pool(static_cast<Layout>(state.range(0)));
  ThreadPool threads(ThreadPool::all_threads());
  std::vector<std::vector<std::int32_t>> tables;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) tables.push_back(pool.table(layer));
  constexpr std::int64_t kQWidth = kHeads.heads * kHeads.head_dim;
  std::vector<float> q(kQWidth, 0.01F), out(kQWidth);
  for (auto _ : state) {
    for (const std::vector<std::int32_t>& table : tables) {
      const cpu::AttentionSequence sequence{0, 1, kContext,
                                            cpu::SlotMap{.blocks = table.data(), .block_size = kBlockSize}};
      cpu::attention(kHeads, pool.rows(), {&sequence, 1}, q.data(), out.data(), kQWidth, DType::f32, threads);
    }
  }
  state.SetBytesProcessed(state.iterations() * 2 * kLayers * kBlocks * kBlockBytes);
}

void copy_a_block_of_all_layers(benchmark::State& state) {
  const auto layout = static_cast<Layout>(state.range(0));
  const Pool pool(layout);
  std::vector<std::byte> away(static_cast<std::size_t>(kLayers * kBlockBytes));
  std::int32_t block = 0;
  for (auto _ : state) {
    if (layout == Layout::block_major) {
      std::memcpy(away.data(), pool.k(0, block), away.size());
    } else {
      for (std::int64_t layer = 0; layer < kLayers; ++layer) {
        std::memcpy(away.data() + layer * kBlockBytes, pool.k(layer, block),
                    static_cast<std::size_t>(kBlockBytes));
      }
    }
    benchmark::DoNotOptimize(away.data());
    block = static_cast<std::int32_t>((block + 1) % kBlocks);
  }
  state.SetBytesProcessed(state.iterations() * kLayers * kBlockBytes);
}

constexpr const char* kWhat =
    "Usage: bench_pool_layout [OPTIONS OF GOOGLE BENCHMARK]\n\n"
    "Times a layer-major (block_major:0) and a block-major pool: attention of one token over 2,048, and the\n"
    "copy of a block.\n";

constexpr const char* kNote =
    "K and V of Qwen3-0.6B's shape in bf16. decode_attention: all layers, once. copy: K of one block in all "
    "layers. "
    "Time is the mean of the calls; with --benchmark_repetitions, the median of such means, and its "
    "spread.";

void add_all() {
  benchmark::RegisterBenchmark("decode_attention", decode_attention)
      ->ArgName("block_major")
      ->Arg(0)
      ->Arg(1)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("copy_a_block_of_all_layers", copy_a_block_of_all_layers)
      ->ArgName("block_major")
      ->Arg(0)
      ->Arg(1)
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace kvcache

/// Takes Google Benchmark's options. @return as run_benchmark_program.
int main(int argc, char** argv) {
  return kvcache::run_benchmark_program(argc, argv, kvcache::kWhat, kvcache::kNote, kvcache::add_all);
}
