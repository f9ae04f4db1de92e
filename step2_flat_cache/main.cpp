/// @file
/// Step 2: decoding with a flat cache. Every sequence reserves room for the longest text it may become, and
/// each new token computes one row of K and V.
#include "common/cli/program.h"
#include "common/cli/run_main.h"
#include "common/server/serve.h"
#include "step2_flat_cache/demo.h"
#include "step2_flat_cache/make_cache.h"

/// Loads the model, runs the prompts, prints the report; or serves. @return 0, or what run_main makes of a
/// failure.
int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    auto options = parse_options(Step::flat_cache, argc, argv);
    if (!options) return 0;
    if (options->serve) return serve(Step::flat_cache, *options, make_flat_cache);
    if (options->demo) add_demo_prompts(*options);
    Program program = load_program(Step::flat_cache, *options);
    const Cache cache = make_flat_cache(program);
    const Report report = run_and_print(program, cache);
    if (options->demo) print_reservations(report, cache.manager->capacity());
    return 0;
  });
}
