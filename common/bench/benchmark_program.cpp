/// @file
/// See benchmark_program.h.
#include "common/bench/benchmark_program.h"

#include <benchmark/benchmark.h>

#include <iostream>
#include <sstream>

#include "common/cli/run_main.h"
#include "common/error.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

/// @throws InputError for what Google Benchmark does not take, with its own words if it has any.
void initialize(int argc, char** argv) {
  std::ostringstream said;
  std::streambuf* const terminal = std::cerr.rdbuf(said.rdbuf());
  benchmark::Initialize(&argc, argv);
  std::cerr.rdbuf(terminal);
  if (argc == 1) return;
  throw InputError(said.str().empty()
                       ? fmt::format("'{}' is no option of Google Benchmark; --help lists those", argv[1])
                       : said.str());
}

}  // namespace

int run_benchmark_program(int argc, char** argv, const char* note, const std::function<void()>& add) {
  return run_main([&] {
    initialize(argc, argv);
    benchmark::AddCustomContext("note", note);
    add();
    const bool some = benchmark::RunSpecifiedBenchmarks() > 0;  // else it has said so
    benchmark::Shutdown();
    return some ? 0 : 2;
  });
}

}  // namespace kvcache
