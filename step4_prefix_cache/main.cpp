/// @file
/// Step 4: decoding with a paged cache whose blocks are shared. What an earlier sequence has computed is
/// found by its hash, samples of one prompt fork, and whoever writes to a shared block copies it first.
#include "common/cli/program.h"
#include "common/cli/run_main.h"
#include "step3_paged/sizing.h"
#include "step4_prefix_cache/demo.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "step4_prefix_cache/tiered_kv_store.h"

int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    auto options = parse_options(Step::prefix_cache, argc, argv);
    if (!options) return 0;
    if (options->demo) add_demo_prompts(*options);
    Program program = load_program(Step::prefix_cache, *options);
    const PagedShape shape = paged_shape(program);
    check_memory("a host tier", options->host_blocks, shape);
    PrefixCachingManager manager(
        shape, {options->prefix_cache, options->salt, options->host_blocks, options->debug_hash_bits});
    check_capacity(program, manager, "raise --num-blocks or --kv-memory");
    TieredKvStore store(program.model->config(), shape, options->host_blocks, program.dtype,
                        {options->attention, options->debug_fill}, *program.pool);
    const Report report = run_and_print(program, manager, store);
    if (options->demo) print_sharing(program, report);
    return 0;
  });
}
