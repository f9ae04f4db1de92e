/// @file
/// The control groups that limit this process, as Linux tells them: what a container may use.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvcache {

/// The folders of the groups that limit this process, the innermost first: those of version 2, or of one of
/// version 1's controllers. Some may not be there: in a container the own group is mounted as the root, and
/// the path inside names folders of the machine outside.
/// @param root        in front of "/proc" and "/sys", for tests
/// @param controller  of version 1, as "cpu"; empty: version 2
[[nodiscard]] std::vector<std::filesystem::path> cgroups(const std::filesystem::path& root,
                                                         const std::string& controller = "");

}  // namespace kvcache
