/// @file
/// What the benchmark programs add to Google Benchmark: checks of the command line, help, and exit codes.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace kvcache {

/// Runs the benchmarks that `add` registers.
/// @param line  a program's name and Google Benchmark's options
/// @param add   returns what it left out and why, as "; no GPU is here", for the message about a filter that
/// matches nothing; nothing if it registered all
/// @throws InputError for an option or a value that Google Benchmark does not have, before `add` is called;
/// for a filter that matches nothing; for a `--benchmark_out` that cannot be opened
/// @throws RunError if `--benchmark_out` could not be written, after all have run
void run_benchmarks(std::span<char* const> line, const std::function<std::string()>& add);

/// Prints `what` (usage and what is measured), `note` (how the numbers are made) and Google Benchmark's
/// options.
void print_benchmark_help(std::string_view what, std::string_view note);

/// Whether `word` asks for help.
bool asks_for_help(std::string_view word);

/// The words of `text` in lines of at most `width` characters, each with a newline.
std::string wrapped(std::string_view text, std::size_t width);

/// The main function of a program that takes only Google Benchmark's options: runs the benchmarks that `add`
/// registers.
/// @param what  the beginning of `--help`: the usage, and what is measured
/// @param note  how the numbers are made and what they do not say; in `--help` and in the output's context
/// @return exit code, as run_main
int run_benchmark_program(int argc, char** argv, const char* what, const char* note,
                          const std::function<void()>& add);

}  // namespace kvcache
