/// @file
/// Step 3's benchmarks: those that all steps have (common/bench/step_benchmarks.h).
#include "common/bench/step_benchmarks.h"
#include "step3_paged/make_cache.h"

/// Takes Google Benchmark's options and those of run_step_benchmarks.
int main(int argc, char** argv) {
  return kvcache::run_step_benchmarks(kvcache::Step::paged, argc, argv, kvcache::make_paged_cache);
}
