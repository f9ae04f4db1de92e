/// @file
/// Several steps' reports of the same run, side by side.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace kvcache {

/// A report as it stands in a file.
struct ReportFile {
  std::string name;        ///< of the file, for messages
  nlohmann::json content;  ///< any JSON at all
};

/// @param names  paths of files or pipes
/// @throws InputError naming the first that cannot be read or is not JSON.
[[nodiscard]] std::vector<ReportFile> read_reports(std::span<const char* const> names);

/// The text of the first report's sequences, then a table: one column per report, one row per figure, and at
/// its end whether ids and logits are those of the first report, bit for bit.
/// @param reports  JSON reports of schema 1, all of the same prompts
/// @throws InputError, naming file and field, for a report of another schema, one with a field missing or of
/// another type, and one with other prompts than the first.
std::string compare_reports(std::span<const ReportFile> reports);

}  // namespace kvcache
