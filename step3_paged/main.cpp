/// @file
/// Step 3: decoding with a paged cache. Sequences take blocks of a shared pool as they grow, and attention
/// finds K and V through a block table. Chapter: step3_paged/README.md.
#include "common/cli/program.h"
#include "common/cli/run_main.h"
#include "common/server/serve.h"
#include "step3_paged/demo.h"
#include "step3_paged/make_cache.h"

/// Loads the model, runs the prompts and prints the report, or starts the server. @return 0, or what run_main
/// makes of a failure.
int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    auto options = parse_options(Step::paged, argc, argv);
    if (!options) return 0;
    if (options->serve) return serve(Step::paged, *options, make_paged_cache);
    if (options->demo) add_demo_prompts(*options);
    Program program = load_program(Step::paged, *options);
    const Report report = run_and_print(program, make_paged_cache(program));
    if (options->demo) print_walk_through(program, report);
    return 0;
  });
}
