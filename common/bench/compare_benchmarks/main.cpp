/// @file
/// `compare_benchmarks [--keep FOLDER] FILE.json ...`: prints the results of the steps' benchmark programs
/// side by side (benchmark_table.h): rounds of one run, step beside step; two runs are never compared.
/// Several files of one step are its rounds. With `--keep`, the rounds of each step are put together as
/// FOLDER/STEP.json after the table is printed: all of these files, or none.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/bench/benchmark_program.h"
#include "common/bench/benchmark_table.h"
#include "common/cli/options.h"
#include "common/cli/run_main.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

constexpr const char* kUsage = "compare_benchmarks [--keep FOLDER] FILE.json ...";

/// Files that are all written beside their places before the first is moved into place. After a failure the
/// old files are still there.
class Drafts {
 public:
  explicit Drafts(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~Drafts() {
    std::error_code ignored;
    for (const std::string& name : names_) std::filesystem::remove(draft(name), ignored);
  }
  Drafts(const Drafts&) = delete;
  Drafts& operator=(const Drafts&) = delete;

  void write(const std::string& name, const std::string& text) {
    names_.push_back(name);
    std::ofstream file(draft(name));
    file << text << "\n";
    file.close();
    // A file cannot be moved onto a folder: checked before the first file is moved.
    if (!file || std::filesystem::is_directory(place(name)))
      throw RunError(fmt::format("cannot write {}: {}", place(name).string(),
                                 file ? "a folder stands in its place" : std::strerror(errno)));
  }
  void move_all() const {
    for (const std::string& name : names_) std::filesystem::rename(draft(name), place(name));
  }

 private:
  std::filesystem::path place(const std::string& name) const { return folder_ / name; }
  std::filesystem::path draft(const std::string& name) const { return folder_ / (name + ".new"); }

  std::filesystem::path folder_;
  std::vector<std::string> names_;
};

/// @throws InputError if `folder` is no folder in which this user may write, and cannot be made one.
void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK) != 0) error.assign(errno, std::generic_category());
  if (error)
    throw InputError(
        fmt::format("cannot write in --keep {}: {}; give another folder", folder.string(), error.message()));
}

void keep(const std::vector<StepRuns>& steps, const std::filesystem::path& folder) {
  Drafts drafts(folder);
  for (const StepRuns& step : steps) drafts.write(step.name() + ".json", to_json(step).dump(2));
  drafts.move_all();
}

}  // namespace
}  // namespace kvcache

/// Prints the table. @return 0, or what run_main makes of a failure.
int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    refuse_values({argv, static_cast<std::size_t>(argc)}, {"-h", "--help"});
    int next = 1;
    std::filesystem::path folder;
    if (argc > 1 && asks_for_help(argv[1])) {
      fmt::print(
          "Usage: {}\n\nPrints the output files of the steps' benchmarks side by side; several files of one "
          "step are its rounds.\nWith --keep, the rounds of each step are also written together, as "
          "FOLDER/STEP.json.\n",
          kUsage);
      return 0;
    }
    if (argc > 2 && std::string_view(argv[1]) == "--keep") {
      folder = argv[2];
      next = 3;
    }
    if (next >= argc) throw InputError(fmt::format("give the files to compare: {}", kUsage));
    std::vector<StepRuns> rounds;
    for (; next < argc; ++next) {
      if (std::string_view(argv[next]).starts_with("--"))
        throw InputError(fmt::format("{} stands where a file should; {}", argv[next], kUsage));
      rounds.push_back(read_step_runs(argv[next]));
    }
    const std::vector<StepRuns> steps = merge_rounds(std::move(rounds));
    if (!folder.empty()) make_folder(folder);
    fmt::print("{}",
               benchmark_table(steps));  // printed first: if writing fails, the measurement is not lost
    if (!folder.empty()) keep(steps, folder);
    return 0;
  });
}
