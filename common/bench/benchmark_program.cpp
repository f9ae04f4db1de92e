/// @file
/// See benchmark_program.h.
#include "common/bench/benchmark_program.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/cli/options.h"
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

/// An option of Google Benchmark that needs a value. One without a value, as --benchmark_list_tests, is never
/// refused.
struct ValuedOption {
  std::string_view name;
  std::string_view takes;    ///< in words
  std::string_view choices;  ///< all values that there are, each in spaces; empty: any
  bool may_be_empty = false;
};
constexpr std::array kValuedOptions{
    ValuedOption{"--benchmark_filter", "a regular expression", "", true},
    ValuedOption{"--benchmark_min_time", "a number of seconds", ""},
    ValuedOption{"--benchmark_min_warmup_time", "a number of seconds", ""},
    ValuedOption{"--benchmark_repetitions", "a number of at least 1", ""},
    ValuedOption{"--benchmark_format", "console, json or csv", " console json csv "},
    ValuedOption{"--benchmark_out", "a file", "", true},
    ValuedOption{"--benchmark_out_format", "console, json or csv", " console json csv "},
    ValuedOption{"--benchmark_color", "auto, true or false", ""},
    ValuedOption{"--benchmark_perf_counters", "names of counters with commas between them", "", true},
    ValuedOption{"--benchmark_context", "KEY=VALUE, or several with commas between them", "", true},
    ValuedOption{"--benchmark_time_unit", "ns, us, ms or s", " ns us ms s "},
    ValuedOption{"--v", "a whole number", ""},
};

/// @param name  of the option, or of the variable that stands for it
/// @throws InputError that says what the option takes.
[[noreturn]] void refuse_value(const ValuedOption& option, std::string_view name, std::string_view value) {
  throw InputError(fmt::format("{} takes {}, and not '{}'", name, option.takes, value));
}

/// Whether `value` is a number, of seconds or, since Google Benchmark 1.8, with an x behind it, of
/// iterations.
bool is_min_time(const std::string& value) {
  char* rest = nullptr;
  std::strtod(value.c_str(), &rest);
  const std::string_view unit(rest);
  return rest != value.c_str() && (unit.empty() || unit == "s" || unit == "x");
}

/// @param name  as in refuse_value
/// @throws InputError for a value that is none of the option's choices; for a number of repetitions below 1,
/// with which Google Benchmark would measure nothing; for a time that is none, at which some builds of Google
/// Benchmark abort.
void check_value(const ValuedOption& option, std::string_view name, std::string_view value) {
  if (!option.choices.empty() && option.choices.find(fmt::format(" {} ", value)) == std::string_view::npos)
    refuse_value(option, name, value);
  if (option.name == "--benchmark_repetitions" && std::strtol(std::string(value).c_str(), nullptr, 10) < 1)
    refuse_value(option, name, value);
  if (option.name == "--benchmark_min_time" && !is_min_time(std::string(value)))
    refuse_value(option, name, value);
}

/// @throws InputError as check_value, for the variables that Google Benchmark reads as options:
/// BENCHMARK_FORMAT for --benchmark_format. An empty number counts for nothing.
void check_environment() {
  for (const ValuedOption& option : kValuedOptions) {
    if (!option.name.starts_with("--benchmark_")) continue;
    std::string name(option.name.substr(2));
    std::ranges::transform(name, name.begin(), [](char letter) {
      return static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    });
    const char* const value = std::getenv(name.c_str());
    if (value != nullptr && (*value != '\0' || !option.choices.empty())) check_value(option, name, value);
  }
}

/// A word of the command line, NAME=VALUE or NAME.
struct Word {
  explicit Word(std::string_view text)
      : name(text.substr(0, text.find('='))), value(text.substr(std::min(text.size(), name.size() + 1))) {
    const auto found = std::ranges::find(kValuedOptions, name, &ValuedOption::name);
    if (found != kValuedOptions.end()) option = &*found;
  }

  std::string_view name, value;
  const ValuedOption* option = nullptr;  ///< null: it needs no value, or is no option of Google Benchmark
};

/// @throws InputError if the value is missing, or as check_value.
void check_word(std::string_view text) {
  const Word word(text);
  if (word.option == nullptr) return;
  if (word.name == text || (word.value.empty() && !word.option->may_be_empty))
    throw InputError(fmt::format("{} needs a value: {}", word.name, word.option->takes));
  check_value(*word.option, word.name, word.value);
}

/// Hands the command line to Google Benchmark.
/// @throws InputError for an option or a value that it does not have, with its own message if it prints one.
void initialize(std::vector<char*> words) {
  check_environment();
  std::ranges::for_each(words, check_word);
  int count = static_cast<int>(words.size());
  words.push_back(nullptr);
  const KeptErrors errors;
  benchmark::Initialize(&count, words.data(), [] {  // it would print its help, and exit with code 0
    throw InputError("an option of Google Benchmark has a value that it does not take; --help lists those");
  });
  if (count == 1) return;
  const Word word(words[1]);  // the first that it did not take
  if (word.option == nullptr)
    throw InputError(fmt::format("'{}' is no option of Google Benchmark; --help lists those", words[1]));
  if (!errors.text().empty()) throw InputError(errors.text());
  refuse_value(*word.option, word.name, word.value);
}

/// Lets Google Benchmark look for the benchmarks that it would run, and run none.
class Search : public benchmark::BenchmarkReporter {
 public:
  Search() {
    SetOutputStream(&said_);
    SetErrorStream(&said_);
  }
  bool ReportContext(const Context&) override { return false; }
  void ReportRuns(const std::vector<Run>&) override {}

  std::string text() const { return said_.str(); }

 private:
  std::ostringstream said_;
};

/// @param left_out  as what `add` of run_benchmarks returns
/// @throws InputError if no registered benchmark matches the filter
void check_filter(const std::string& left_out) {
  Search search;
  if (benchmark::RunSpecifiedBenchmarks(&search) > 0) return;
  std::string said = search.text();
  said.erase(said.find_last_not_of('\n') + 1);
  throw InputError((benchmark::GetBenchmarkFilter().empty()
                        ? "there is no benchmark"
                        : said + "; --benchmark_list_tests lists those that there are") +
                   left_out);
}

constexpr std::string_view kOut = "--benchmark_out=", kOutFormat = "--benchmark_out_format=";

/// The value of an option of Google Benchmark: the last on the line, or else that in the environment.
std::string value_of(std::string_view option, std::span<char* const> line, const char* variable) {
  const char* const set = std::getenv(variable);
  std::string value = set == nullptr ? "" : set;
  for (const std::string_view word : line) {
    if (word.starts_with(option)) value = word.substr(option.size());
  }
  return value;
}

/// A record in one of Google Benchmark's formats. Google Benchmark itself does not look whether it is
/// written.
template <typename Format>
class Record : public Format {
 public:
  template <typename... Options>
  explicit Record(std::string name, Options... options) : Format(options...), name_(std::move(name)) {}

  void Finalize() override {
    Format::Finalize();
    if (!this->GetOutputStream().flush())
      throw RunError(fmt::format("cannot write all of {}{}; check that the disk has room", kOut, name_));
  }

 private:
  std::string name_;
};

std::unique_ptr<benchmark::BenchmarkReporter> make_record(const std::string& name,
                                                          const std::string& format) {
  using benchmark::ConsoleReporter;
  if (format == "console") return std::make_unique<Record<ConsoleReporter>>(name, ConsoleReporter::OO_None);
  BENCHMARK_DISABLE_DEPRECATED_WARNING
  if (format == "csv") return std::make_unique<Record<benchmark::CSVReporter>>(name);
  BENCHMARK_RESTORE_DEPRECATED_WARNING
  return std::make_unique<Record<benchmark::JSONReporter>>(name);
}

/// Runs the benchmarks and writes their record to the file `name`.
void run_with_record(char* program, const std::string& name, const std::string& format) {
  // Open as long as Google Benchmark has it open, so that a reader of a pipe sees one end.
  const std::ofstream file(name, std::ios::app);
  if (!file)
    throw InputError(fmt::format("cannot write {}{}: {}; give a file that can be written", kOut, name,
                                 std::strerror(errno)));
  std::string option = std::string(kOut) + name;
  initialize({program, option.data()});
  const auto record = make_record(name, format);
  benchmark::RunSpecifiedBenchmarks(nullptr, record.get());
}

}  // namespace

void run_benchmarks(std::span<char* const> line, const std::function<std::string()>& add) {
  std::vector<char*> words(line.begin(), line.end());
  std::string no_record(kOut);  // until the filter is checked: a search, too, would empty the file
  words.push_back(no_record.data());
  initialize(words);
  check_filter(add());
  if (const std::string name = value_of(kOut, line, "BENCHMARK_OUT"); name.empty()) {
    benchmark::RunSpecifiedBenchmarks();
  } else {
    run_with_record(line[0], name, value_of(kOutFormat, line, "BENCHMARK_OUT_FORMAT"));
  }
  benchmark::Shutdown();
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
    refuse_values(line, {"-h", "--help"});
    if (std::ranges::any_of(line, asks_for_help)) {
      print_benchmark_help(what, note);
      return 0;
    }
    benchmark::AddCustomContext("note", note);
    run_benchmarks(line, [&add] {
      add();
      return std::string();
    });
    return 0;
  });
}

}  // namespace kvcache
