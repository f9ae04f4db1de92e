/// @file
/// See machine.h.
#include "common/cli/machine.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <optional>

#include "common/base/cgroup.h"
#include "common/base/error.h"

#ifdef WITH_CUDA
#include "common/cuda/device.h"
#endif

namespace kvcache {
namespace {

/// The CPU's name in /proc/cpuinfo.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "a CPU without a name";
}

/// The bytes of the entry `name` in a file of lines such as "MemTotal: 24000 kB"; kUnknownMemory without it.
std::int64_t kilobytes(const std::filesystem::path& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return kUnknownMemory;
}

/// The number in a file; nothing if there is no such file, or no number in it ("max").
std::optional<std::int64_t> number_in(const std::filesystem::path& path) {
  std::int64_t number = 0;
  return std::ifstream(path) >> number ? std::optional(number) : std::nullopt;
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

MachineMemory machine_memory(const std::filesystem::path& root) {
  MachineMemory memory{kilobytes(root / "proc/meminfo", "MemTotal"),
                       kilobytes(root / "proc/meminfo", "MemAvailable")};
  for (const std::filesystem::path& group : cgroups(root)) {
    const std::optional<std::int64_t> limit = number_in(group / "memory.max");
    if (!limit) continue;
    memory.total = std::min(memory.total, *limit);
    const std::int64_t used = number_in(group / "memory.current").value_or(0);
    memory.available = std::clamp<std::int64_t>(*limit - used, 0, memory.available);
  }
  return memory;
}

std::string processor_name(const std::string& device) {
  return device == "cuda" ? gpu_name() : cpu_name();
}

}  // namespace kvcache
