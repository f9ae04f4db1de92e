/// @file
/// The name of the processor, for records of measurements.
#pragma once

#include <string>

namespace kvcache {

/// As Linux names it; "a CPU without a name" where it does not.
std::string processor_name();

}  // namespace kvcache
