/// @file
/// The report on stdout: as text for people, or as one JSON object for programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "common/engine/report.h"

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

/// 1234567 as "1,234,567".
std::string grouped(std::int64_t number);

/// `text`, or, where it is empty, the ids that it was decoded from, in lines that fit a terminal.
std::string text_or_ids(std::string text, std::span<const std::int32_t> ids);

/// What stands above the text of sequence `number` (0 is the first) of `sequences`, and below it.
std::string heading_of(std::size_t number, std::size_t sequences);
inline constexpr const char* kBelowText = "\n\n";  ///< below each text

/// The report for a terminal: the generated texts are not repeated when `texts_already_shown`.
std::string to_text(const Report& report, bool texts_already_shown);

}  // namespace kvcache
