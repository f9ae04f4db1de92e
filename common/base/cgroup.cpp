/// @file
/// See cgroup.h.
#include "common/base/cgroup.h"

#include <fstream>

#include "fmt/format.h"

namespace kvcache {

std::vector<std::filesystem::path> cgroups(const std::filesystem::path& root, const std::string& controller) {
  std::filesystem::path group;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "0::/outer/inner", "4:cpu,cpuacct:/outer/inner"
    const std::size_t colon = line.find(':'), second = line.find(":/", colon + 1);
    if (colon == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(colon + 1, second - colon - 1));
    const bool is_it = controller.empty()
                           ? line.starts_with("0::")
                           : controllers.find(fmt::format(",{},", controller)) != std::string::npos;
    if (is_it) group = line.substr(second + 2);
  }
  const std::filesystem::path all = root / "sys/fs/cgroup" / controller;
  std::vector<std::filesystem::path> groups;
  for (; !group.empty(); group = group.parent_path()) groups.push_back(all / group);
  groups.push_back(all);
  return groups;
}

}  // namespace kvcache
