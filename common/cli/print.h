/// @file
/// The report on stdout: as text for people, or as one JSON object for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/kv/report.h"

namespace kvcache {

/// The report as one JSON object of schema 1, ending in a newline. Invalid UTF-8 in texts becomes U+FFFD;
/// floats are printed so that reading them back gives the same float; a number that is not finite becomes
/// null.
std::string to_json(const Report& report);

// Parts of it, for what else is told in JSON.

/// Under "blocks".
nlohmann::ordered_json json_of(const BlocksReport& blocks);
/// Under "counters".
nlohmann::ordered_json json_of(const CountersReport& counters);
/// Under "kv_memory".
nlohmann::ordered_json json_of(const KvMemoryReport& memory);

/// The report for a terminal: the generated texts are not repeated when `texts_already_shown`.
std::string to_text(const Report& report, bool texts_already_shown);

}  // namespace kvcache
