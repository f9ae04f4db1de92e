/// @file
/// The machine that a program runs on: where and when times were measured, which every record says, and how
/// much memory there is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace kvcache {

/// UTC, as in 2026-01-31.
std::string today();

/// The name of the CPU, or of the first GPU if `device` is "cuda". Not every CPU has one.
/// @throws RunError if there is no such GPU.
std::string processor_name(const std::string& device);

/// Bytes of memory, as the system tells them; a container's limit counts (cgroup version 2).
struct MachineMemory {
  std::int64_t total = 0;      ///< that a program can have at all
  std::int64_t available = 0;  ///< that nothing needs now
};
/// @param root  in front of "/proc" and "/sys", for tests
MachineMemory machine_memory(const std::filesystem::path& root = "/");

}  // namespace kvcache
