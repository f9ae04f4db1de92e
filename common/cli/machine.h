/// @file
/// The machine that a program runs on: its name and today's date, for records of times, and its memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

namespace kvcache {

/// Today's date in UTC, as in 2026-01-31.
std::string today();

/// The name of the CPU, or of the first GPU if `device` is "cuda"; "a CPU without a name" if it has none.
/// @throws RunError if there is no GPU.
std::string processor_name(const std::string& device);

/// The bytes of memory where the system does not tell them, as without /proc: every size fits.
constexpr std::int64_t kUnknownMemory = std::numeric_limits<std::int64_t>::max();

/// Bytes of memory, within the limits of the system and of a container (cgroup version 2).
struct MachineMemory {
  std::int64_t total = 0;      ///< the most that a program can have
  std::int64_t available = 0;  ///< free now
};
/// @param root  put in front of "/proc" and "/sys"; tests have their own
MachineMemory machine_memory(const std::filesystem::path& root = "/");

}  // namespace kvcache
