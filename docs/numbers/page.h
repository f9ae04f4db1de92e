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

/// What one machine took: its name and the date, a table, and what that says of article 004's figures. Also
/// the form in which a record of another machine is kept.
std::string machine_times(const MachineTimes& times);
/// How every record begins that machine_times() has written for a GPU.
inline constexpr const char* kGpuRecordStart = "On a GPU";

/// The section of the times.
/// @param gpu_record  as machine_times() has written it; empty: none
std::string times_section(const MachineTimes& cpu, const std::string& gpu_record);

}  // namespace kvcache
