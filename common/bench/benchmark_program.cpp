/// @file
/// See benchmark_program.h.
#include "common/bench/benchmark_program.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <sstream>
#include <vector>

#include "common/base/error.h"
#include "common/cli/run_main.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

constexpr std::size_t kLineWidth = 112;

/// Keeps what is written to std::cerr.
class KeptErrors {
 public:
  KeptErrors() : terminal_(std::cerr.rdbuf(said_.rdbuf())) {}
  ~KeptErrors() { std::cerr.rdbuf(terminal_); }
  KeptErrors(const KeptErrors&) = delete;
  KeptErrors& operator=(const KeptErrors&) = delete;

  std::string text() const { return said_.str(); }

 private:
  std::ostringstream said_;
  std::streambuf* terminal_;
};

/// @throws InputError for a number of repetitions below 1, with which Google Benchmark would measure nothing
void check_repetitions(std::string_view word) {
  constexpr std::string_view option = "--benchmark_repetitions=";
  if (!word.starts_with(option)) return;
  int repetitions = 1;
  std::from_chars(word.data() + option.size(), word.data() + word.size(), repetitions);
  if (repetitions < 1) throw InputError(fmt::format("{}: give a number of at least 1", word));
}

/// Hands the command line to Google Benchmark.
/// @throws InputError for an option or a value that it does not have, with its own message if it prints one.
void initialize(std::vector<char*> words) {
  std::ranges::for_each(words, check_repetitions);
  int count = static_cast<int>(words.size());
  words.push_back(nullptr);
  const KeptErrors errors;
  benchmark::Initialize(&count, words.data(), [] {  // it would print its help, and exit with code 0
    throw InputError("an option of Google Benchmark has a value that it does not take; --help lists those");
  });
  if (count == 1) return;
  throw InputError(errors.text().empty()
                       ? fmt::format("'{}' is no option of Google Benchmark; --help lists those", words[1])
                       : errors.text());
}

}  // namespace

int run_benchmarks(std::span<char* const> line, const std::function<void()>& add) {
  initialize({line.begin(), line.end()});
  add();
  const bool some = benchmark::RunSpecifiedBenchmarks() > 0;  // else it has printed that none ran
  benchmark::Shutdown();
  return some ? 0 : 2;
}

bool asks_for_help(std::string_view word) {
  return word == "-h" || word == "--help";
}

std::string wrapped(std::string_view text, std::size_t width) {
  std::istringstream words{std::string(text)};
  std::string lines;
  std::size_t length = 0;
  for (std::string word; words >> word;) {
    if (length > 0 && length + 1 + word.size() > width) {
      lines += "\n";
      length = 0;
    }
    lines += (length > 0 ? " " : "") + word;
    length += word.size() + (length > 0 ? 1 : 0);
  }
  return lines + "\n";
}

void print_benchmark_help(std::string_view what, std::string_view note) {
  fmt::print(
      "{}\nHow the numbers are made:\n{}\n"
      "Google Benchmark's options (its name of a benchmark is the name here and /iterations:1/manual_time; "
      "a\n"
      "filter matches any part of it):\n",
      what, wrapped(note, kLineWidth));
  benchmark::PrintDefaultHelp();
}

int run_benchmark_program(int argc, char** argv, const char* what, const char* note,
                          const std::function<void()>& add) {
  return run_main([&] {
    const std::span<char* const> line(argv, static_cast<std::size_t>(argc));
    if (std::ranges::any_of(line, asks_for_help)) {
      print_benchmark_help(what, note);
      return 0;
    }
    benchmark::AddCustomContext("note", note);
    return run_benchmarks(line, add);
  });
}

}  // namespace kvcache
