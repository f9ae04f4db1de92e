/// @file
/// Step 1: decoding without a cache. For every new token the whole sequence goes through the model again.
#include <memory>

#include "common/cli/program.h"
#include "common/cli/run_main.h"
#include "step1_no_cache/demo.h"
#include "step1_no_cache/no_cache.h"
#ifdef WITH_CUDA
#include "step1_no_cache/cuda_no_cache_store.h"
#endif

namespace kvcache {
namespace {

std::unique_ptr<KvStore> make_store(const Program& program) {
#ifdef WITH_CUDA
  if (program.gpu)
    return std::make_unique<CudaNoCacheStore>(program.model->config(), program.dtype, *program.gpu);
#endif
  return std::make_unique<NoCacheStore>(program.model->config(), program.dtype, *program.pool);
}

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    const auto options = parse_options(Step::no_cache, argc, argv);
    if (!options) return 0;
    Program program = load_program(Step::no_cache, *options);
    NoCacheManager manager;
    const std::unique_ptr<KvStore> store = make_store(program);
    const Report report = run_and_print(program, manager, *store);
    if (options->demo) print_growth(report);
    return 0;
  });
}
