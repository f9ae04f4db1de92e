/// @file
/// The main function of the benchmark programs that take Google Benchmark's options alone.
#pragma once

#include <functional>

namespace kvcache {

/// Runs the benchmarks that `add` registers.
/// @param note  how the numbers are made and what they do not say; goes into the output's context
/// @return exit code: 2 after one line on stderr for an option that is none of Google Benchmark's or a filter
/// that matches nothing; 1 after a failure, as run_main
int run_benchmark_program(int argc, char** argv, const char* note, const std::function<void()>& add);

}  // namespace kvcache
