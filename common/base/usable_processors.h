/// @file
/// How many processors this process may use, which may be fewer than the machine has.
#pragma once

#include <filesystem>

namespace kvcache {

/// The number of threads that this process can run at once, at least 1. It is the number of processors that
/// the affinity mask allows (`taskset`, a job scheduler), and at most the share of time that the control
/// groups allow (a container's `--cpus`; versions 1 and 2), rounded up.
/// @param root  in front of "/proc" and "/sys", for tests
[[nodiscard]] int usable_processors(const std::filesystem::path& root = "/");

}  // namespace kvcache
