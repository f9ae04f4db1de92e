/// @file
/// `compare_reports REPORT.json ...`: prints the steps' JSON reports side by side (compare.h).
#include <fstream>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/cli/compare.h"
#include "common/cli/run_main.h"
#include "fmt/format.h"

/// Compares the report files that it is given. @return 0, or what run_main makes of a failure.
int main(int argc, char** argv) {
  using namespace kvcache;
  return run_main([&] {
    if (argc < 2) throw InputError("give the JSON reports to compare: compare_reports REPORT.json ...");
    std::vector<nlohmann::json> reports;
    for (int n = 1; n < argc; ++n) {
      std::ifstream file(argv[n]);
      nlohmann::json report = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
      if (report.is_discarded()) throw InputError(fmt::format("{} is not a JSON report", argv[n]));
      reports.push_back(std::move(report));
    }
    fmt::print("{}", compare_reports(reports));
    return 0;
  });
}
