/// @file
/// Step 4's benchmarks: those that all steps have (common/bench/step_benchmarks.h).
#include "common/bench/step_benchmarks.h"
#include "step4_prefix_cache/make_cache.h"

/// Takes Google Benchmark's options and those of run_step_benchmarks.
int main(int argc, char** argv) {
  return kvcache::run_step_benchmarks(kvcache::Step::prefix_cache, argc, argv, kvcache::make_prefix_cache);
}
