/// @file
/// docs/articles.md as text.
#pragma once

#include <span>
#include <string>

#include "docs/numbers/claims.h"
#include "docs/numbers/times.h"

namespace kvcache {

/// The line with which the part begins that depends on the machine.
inline constexpr const char* kTimesHeading = "## Times\n";

/// Everything but the times; the same text on every machine.
std::string articles_page(const Measurements& measured);

/// The rows of decode times as a table.
std::string times_table(std::span<const DecodeTimes> times);

/// The section of the times: those of the CPU at hand, and the record of a GPU, if there is one.
/// @param gpu_record  Markdown, as `numbers --only-times --device cuda` has written it; empty: none
std::string times_section(std::span<const DecodeTimes> cpu, const std::string& gpu_record);

}  // namespace kvcache
