/// @file
/// `compare_reports REPORT.json ...`: prints the steps' JSON reports side by side (compare.h).
#include <span>
#include <string_view>

#include "common/base/error.h"
#include "common/cli/compare.h"
#include "common/cli/run_main.h"
#include "fmt/format.h"

/// Compares the report files that it is given. @return 0, or what run_main makes of a failure.
int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    if (argc < 2) throw InputError("give the JSON reports to compare: compare_reports REPORT.json ...");
    const std::span<const char* const> names(argv + 1, argv + argc);
    for (const std::string_view name : names) {
      if (name.starts_with("--"))
        throw InputError(fmt::format(
            "{} is no file, and compare_reports has no options; compare_reports REPORT.json ...", name));
    }
    fmt::print("{}", compare_reports(read_reports(names)));
    return 0;
  });
}
