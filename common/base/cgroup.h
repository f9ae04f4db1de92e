/// @file
/// The Linux control groups that limit this process, as in a container.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvcache {

/// The folders of the groups that limit this process, the innermost first: the groups of version 2, or of one
/// controller of version 1. Some folders may not exist: a container sees its own group as the root, while the
/// path names folders of the machine outside.
/// @param root        in front of "/proc" and "/sys", for tests
/// @param controller  of version 1, as "cpu"; empty: version 2
[[nodiscard]] std::vector<std::filesystem::path> cgroups(const std::filesystem::path& root,
                                                         const std::string& controller = "");

}  // namespace kvcache
