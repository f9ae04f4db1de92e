/// @file
/// See usable_processors.h.
#include "common/base/usable_processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

#include "common/base/cgroup.h"

namespace kvcache {
namespace {

int allowed_by_affinity() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
  return static_cast<int>(std::thread::hardware_concurrency());  // more processors than a cpu_set_t has bits
}

/// The share of processors that a limit of `quota` in each `period` allows, both in microseconds.
double share(double quota, double period) {
  const bool is_limited = quota > 0 && period > 0;  // version 1 writes -1 for no limit
  return is_limited ? quota / period : std::numeric_limits<double>::infinity();
}

}  // namespace

int usable_processors(const std::filesystem::path& root) {
  double processors = allowed_by_affinity(), quota = 0, period = 0;
  for (const std::filesystem::path& group : cgroups(root)) {
    std::ifstream file(group / "cpu.max");  // "50000 100000", or "max 100000"
    if (file >> quota >> period) processors = std::min(processors, share(quota, period));
  }
  for (const std::filesystem::path& group : cgroups(root, "cpu")) {
    std::ifstream quota_file(group / "cpu.cfs_quota_us"), period_file(group / "cpu.cfs_period_us");
    if (quota_file >> quota && period_file >> period) processors = std::min(processors, share(quota, period));
  }
  return std::max(1, static_cast<int>(std::ceil(processors)));
}

}  // namespace kvcache
