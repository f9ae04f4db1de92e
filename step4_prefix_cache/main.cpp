/// @file
/// Step 4: decoding with a paged cache whose blocks are shared. A full block that another sequence has
/// computed is found by its hash. Samples of one prompt fork. A writer to a shared block copies it first.
#include "common/cli/program.h"
#include "common/cli/run_main.h"
#include "common/server/serve.h"
#include "step4_prefix_cache/demo.h"
#include "step4_prefix_cache/make_cache.h"

/// Loads the model, runs the prompts, prints the report; or serves. @return 0, or what run_main makes of a
/// failure.
int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    auto options = parse_options(Step::prefix_cache, argc, argv);
    if (!options) return 0;
    if (options->serve) return serve(Step::prefix_cache, *options, make_prefix_cache);
    if (options->demo) add_demo_prompts(*options);
    Program program = load_program(Step::prefix_cache, *options);
    const Report report = run_and_print(program, make_prefix_cache(program));
    if (options->demo) print_sharing(report);
    return 0;
  });
}
