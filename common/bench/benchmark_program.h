/// @file
/// What the benchmark programs do around Google Benchmark: its command line, help, and exit codes.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace kvcache {

/// Hands `line`, a program's name and Google Benchmark's options, to it and runs the benchmarks that `add`
/// registers.
/// @return exit code: 0; 2 if the filter matches nothing, which Google Benchmark has said
/// @throws InputError for an option that is none of Google Benchmark's, before anything is added
int run_benchmarks(std::span<char* const> line, const std::function<void()>& add);

/// Prints what a benchmark program is, how its numbers are made, and Google Benchmark's options.
void print_benchmark_help(std::string_view what, std::string_view note);

/// Whether `word` asks for help.
bool asks_for_help(std::string_view word);

/// Words in lines of at most `width` characters, each line ended.
std::string wrapped(std::string_view text, std::size_t width);

/// The main function of the programs that take Google Benchmark's options alone: runs the benchmarks that
/// `add` registers.
/// @param what  the beginning of --help: the usage, and what is measured
/// @param note  how the numbers are made and what they do not say; in --help and in the output's context
/// @return exit code: 2 after one line on stderr for an option that is none of Google Benchmark's or a filter
/// that matches nothing; 1 after a failure, as run_main
int run_benchmark_program(int argc, char** argv, const char* what, const char* note,
                          const std::function<void()>& add);

}  // namespace kvcache
