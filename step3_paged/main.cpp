/// @file
/// Step 3: decoding with a paged cache. Sequences take blocks of a shared pool as they grow, and attention
/// finds K and V through a block table.
#include <memory>

#include "common/cli/program.h"
#include "common/cli/run_main.h"
#include "step3_paged/demo.h"
#include "step3_paged/paged_kv_store.h"
#include "step3_paged/sizing.h"
#ifdef WITH_CUDA
#include "step3_paged/cuda_paged_kv_store.h"
#endif

namespace kvcache {
namespace {

std::unique_ptr<KvStore> make_store(const Program& program, const PagedShape& shape) {
  const PagedKvStore::Settings settings{program.options.attention, program.options.debug_fill};
#ifdef WITH_CUDA
  if (program.gpu)
    return std::make_unique<CudaPagedKvStore>(program.model->config(), shape, program.dtype, settings,
                                              *program.gpu);
#endif
  return std::make_unique<PagedKvStore>(program.model->config(), shape, program.dtype, settings,
                                        *program.pool);
}

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    auto options = parse_options(Step::paged, argc, argv);
    if (!options) return 0;
    if (options->demo) add_demo_prompts(*options);
    Program program = load_program(Step::paged, *options);
    const PagedShape shape = paged_shape(program);
    KVCacheManager manager(shape);
    check_capacity(program, manager, "raise --num-blocks or --kv-memory");
    const std::unique_ptr<KvStore> store = make_store(program, shape);
    const Report report = run_and_print(program, manager, *store);
    if (options->demo) print_walk_through(program, report);
    return 0;
  });
}
