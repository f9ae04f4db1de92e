/// @file
/// See machine.h.
#include "common/cli/machine.h"

#include <chrono>
#include <ctime>
#include <fstream>

#include "common/error.h"

#ifdef WITH_CUDA
#include "common/cuda/device.h"
#endif

namespace kvcache {
namespace {

/// As Linux names it.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "a CPU without a name";
}

std::string gpu_name() {
#ifdef WITH_CUDA
  return cuda::Device().name();
#else
  throw RunError("this build has no CUDA; use --device cpu");
#endif
}

}  // namespace

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[sizeof "2026-01-31"];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

std::string processor_name(const std::string& device) {
  return device == "cuda" ? gpu_name() : cpu_name();
}

}  // namespace kvcache
