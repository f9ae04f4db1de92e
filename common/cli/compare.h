/// @file
/// Several steps' reports of the same prompts, side by side.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace kvcache {

/// A report from a file.
struct ReportFile {
  std::string name;        ///< of the file, for messages
  nlohmann::json content;  ///< any JSON, not checked yet
};

/// @param names  paths of files or pipes
/// @throws InputError that names the first file that cannot be read, is not JSON or is nested too deep.
[[nodiscard]] std::vector<ReportFile> read_reports(std::span<const char* const> names);

/// The texts of the first report, then a table with a column for each report and a row for each figure. Its
/// last rows say whether ids and logits equal those of the first report, bit for bit.
/// @param reports  JSON reports of schema 1, all of the same prompts
/// @throws InputError that names file and field, for a report of another schema, a field that is missing or
/// of another type, or other prompts than the first report's.
std::string compare_reports(std::span<const ReportFile> reports);

}  // namespace kvcache
