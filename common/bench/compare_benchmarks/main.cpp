/// @file
/// `compare_benchmarks [--keep FOLDER] FILE.json ...`: prints what the steps' benchmark programs wrote side
/// by side (benchmark_table.h); several files of one step are rounds of it. With --keep, the rounds of each
/// step are put together as FOLDER/STEP.json: all of these files, or none.
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "common/bench/benchmark_table.h"
#include "common/cli/run_main.h"
#include "common/error.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

/// Written beside their places first, so that a failure leaves what was there.
void keep(const std::vector<StepRuns>& steps, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const auto place = [&](const StepRuns& step) { return folder / (step.name() + ".json"); };
  const auto draft = [&](const StepRuns& step) { return folder / (step.name() + ".json.new"); };
  for (const StepRuns& step : steps) {
    std::ofstream file(draft(step));
    file << to_json(step).dump(2) << "\n";
    file.close();
    if (file) continue;
    std::error_code ignored;
    for (const StepRuns& written : steps) std::filesystem::remove(draft(written), ignored);
    throw RunError(fmt::format("cannot write {}", place(step).string()));
  }
  for (const StepRuns& step : steps) std::filesystem::rename(draft(step), place(step));
}

}  // namespace
}  // namespace kvcache

/// Prints the table. @return 0, or what run_main makes of a failure.
int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    int next = 1;
    std::filesystem::path folder;
    if (argc > 2 && std::string_view(argv[1]) == "--keep") {
      folder = argv[2];
      next = 3;
    }
    if (next >= argc)
      throw InputError("give the files to compare: compare_benchmarks [--keep FOLDER] FILE.json ...");
    std::vector<StepRuns> rounds;
    for (; next < argc; ++next) rounds.push_back(read_step_runs(argv[next]));
    const std::vector<StepRuns> steps = merge_rounds(std::move(rounds));
    const std::string table = benchmark_table(steps);
    if (!folder.empty()) keep(steps, folder);
    fmt::print("{}", table);
    return 0;
  });
}
