/// @file
/// Step 2's benchmarks: those that all steps have (common/bench/step_benchmarks.h), and growing instead of
/// reserving (bench_grow.cpp).
#include <benchmark/benchmark.h>

#include "common/bench/step_benchmarks.h"
#include "step2_flat_cache/make_cache.h"

/// For the output's context: what the benchmarks named grow measure.
constexpr const char* kNoteOnGrowing =
    "grow: no model, and always on one thread of the CPU, whose own time is told, not that of a clock on "
    "the wall: K and V of Qwen3-0.6B's shape in bf16 are appended token by token to contiguous buffers, "
    "from none to all. exact: every token gets buffers of its own size, as concatenation makes them; "
    "doubling: when they are full; reservation: never. MB moved: older rows copied, each read and written "
    "once. The process has the memory and has touched it, so that the times are those of copying and of "
    "writing the new rows. fresh_memory: buffers come from the allocator, and the system gives each page, "
    "zeroed, when it is first written; page faults count these.";

/// Takes Google Benchmark's options and those of run_step_benchmarks.
int main(int argc, char** argv) {
  benchmark::AddCustomContext("note_grow", kNoteOnGrowing);
  return kvcache::run_step_benchmarks(kvcache::Step::flat_cache, argc, argv, kvcache::make_flat_cache);
}
