/// @file
/// Step 1: decoding without a cache. For every new token the whole sequence goes through the model again.
#include "common/cli/program.h"
#include "common/cli/run_main.h"
#include "step1_no_cache/demo.h"
#include "step1_no_cache/make_cache.h"

/// Loads the model, runs the prompts, prints the report. @return 0, or what run_main makes of a failure.
int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    const auto options = parse_options(Step::no_cache, argc, argv);
    if (!options) return 0;
    Program program = load_program(Step::no_cache, *options);
    const Report report = run_and_print(program, make_no_cache(program));
    if (options->demo) print_growth(report);
    return 0;
  });
}
