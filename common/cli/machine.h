/// @file
/// Where and when times were measured: every record says it.
#pragma once

#include <string>

namespace kvcache {

/// UTC, as in 2026-01-31.
std::string today();

/// The name of the CPU, or of the first GPU if `device` is "cuda". Not every CPU has one.
/// @throws RunError if there is no such GPU.
std::string processor_name(const std::string& device);

}  // namespace kvcache
