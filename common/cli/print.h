/// @file
/// Prints the report on stdout: as text for people, or as one JSON object for programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "common/engine/report.h"

namespace kvcache {

/// The report as one JSON object of schema 1, with a newline at its end. Invalid UTF-8 in texts becomes
/// U+FFFD. A float reads back as the same float; a number that is not finite becomes null.
std::string to_json(const Report& report);

// Parts of the report, for the server's JSON answers.

/// The object "blocks".
nlohmann::ordered_json json_of(const BlocksReport& blocks);
/// The object "counters".
nlohmann::ordered_json json_of(const CountersReport& counters);
/// The object "kv_memory".
nlohmann::ordered_json json_of(const KvMemoryReport& memory);

/// 1234567 as "1,234,567".
std::string grouped(std::int64_t number);

/// `text`, or its ids if the text is empty, in lines that fit a terminal.
std::string text_or_ids(std::string text, std::span<const std::int32_t> ids);

/// The line above the text of sequence `number` (0 is the first) of `sequences`; empty for a single sequence.
std::string heading_of(std::size_t number, std::size_t sequences);
inline constexpr const char* kBelowText = "\n\n";  ///< below each text

/// The report as text, without the generated texts if `texts_already_shown`.
std::string to_text(const Report& report, bool texts_already_shown);

}  // namespace kvcache
