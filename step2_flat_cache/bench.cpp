/// @file
/// Step 2's benchmarks: those that all steps have (common/bench/step_benchmarks.h).
#include "common/bench/step_benchmarks.h"
#include "step2_flat_cache/make_cache.h"

int main(int argc, char** argv) {
  return kvcache::run_step_benchmarks(kvcache::Step::flat_cache, argc, argv, kvcache::make_flat_cache);
}
