/// @file
/// `numbers`: prints docs/articles.md, the figures of the five articles beside the arithmetic and what the
/// programs report. `./steps numbers` writes it to its place.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>

#include "common/base/error.h"
#include "common/cli/options.h"
#include "common/cli/run_main.h"
#include "docs/numbers/page.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

struct NumbersOptions {
  bool no_times = false, only_times = false;
  std::string device = "cpu", gpu_record;
};

/// @throws InputError for an unknown option or value. @return false if only help was asked for.
bool parse(int argc, char** argv, NumbersOptions& options) {
  refuse_values({argv, static_cast<std::size_t>(argc)}, {"-h", "--help", "--no-times", "--only-times"});
  CLI::App app(
      "Prints the figures of the five articles beside the arithmetic and the programs' figure, as Markdown");
  app.add_flag("--no-times", options.no_times, "leave out the times, which depend on the machine");
  CLI::Option* only_times =
      app.add_flag("--only-times", options.only_times, "print only the decode times, to be kept as a record");
  app.add_option("--device", options.device, "with --only-times: cpu or cuda (default: cpu)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->needs(only_times);
  app.add_option("--gpu-record", options.gpu_record,
                 "include this file, the output of --only-times --device cuda");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw InputError(error.what());
  }
  return true;
}

/// @throws InputError if there is no such file, or it is not what --only-times --device cuda prints.
std::string gpu_record(const std::string& path) {
  if (path.empty()) return "";
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file || !text.starts_with(kGpuRecordStart))
    throw InputError(fmt::format(
        "{} is no record of a GPU; give --gpu-record the output of numbers --only-times --device cuda",
        path));
  return text;
}

}  // namespace
}  // namespace kvcache

/// Prints the page docs/articles.md, or its times alone. @return 0, or what run_main makes of a failure.
int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    NumbersOptions options;
    if (!parse(argc, argv, options)) return 0;
    if (options.only_times) {
      fmt::print("{}", machine_times(decode_times(options.device)));
      return 0;
    }
    const std::string record = gpu_record(options.gpu_record);
    std::string page = articles_page(measure());
    if (!options.no_times) page += times_section(decode_times("cpu"), record);
    fmt::print("{}", page);
    return 0;
  });
}
