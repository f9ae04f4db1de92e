/// @file
/// See processor_name.h.
#include "common/bench/processor_name.h"

#include <fstream>

namespace kvcache {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "a CPU without a name";
}

}  // namespace kvcache
