/// @file
/// How many processors this process may use, which may be fewer than the machine has.
#pragma once

#include <filesystem>

namespace kvcache {

/// As many threads as this process can run at once, at least 1: the processors that its affinity mask allows
/// (`taskset`, a job scheduler), and no more than its control groups' share of their time (a container's
/// `--cpus`; versions 1 and 2), a part of a processor rounded up.
/// @param root  in front of "/proc" and "/sys", for tests
[[nodiscard]] int usable_processors(const std::filesystem::path& root = "/");

}  // namespace kvcache
