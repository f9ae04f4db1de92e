/// @file
/// Several steps' reports of the same run, side by side.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace kvcache {

/// The text of the first report's sequences, then a table: one column per report, one row per figure, and at
/// its end whether ids and logits are those of the first report, bit for bit.
/// @param reports  JSON reports of schema 1, all of the same prompts
/// @throws InputError for a report of another schema or with other prompts than the first.
std::string compare_reports(std::span<const nlohmann::json> reports);

}  // namespace kvcache
