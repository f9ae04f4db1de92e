// The default number of threads: no more than the affinity mask and the container's share of processors
// allow.
#include "common/base/usable_processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <string>

#include "tests/support/report_of.h"

namespace kvcache {
namespace {

class UsableProcessors : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    write_file(root_ / path, text);
  }
  int usable() const { return usable_processors(root_.path()); }
  const int all_ = usable_processors("/nowhere");  // that the affinity mask allows
  TemporaryFolder root_;
};

/// Binds this thread, and the programs that it starts, to one of its processors for as long as it lives.
class OnOneProcessor {
 public:
  OnOneProcessor() {
    sched_getaffinity(0, sizeof before_, &before_);
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OnOneProcessor() { sched_setaffinity(0, sizeof before_, &before_); }
  OnOneProcessor(const OnOneProcessor&) = delete;
  OnOneProcessor& operator=(const OnOneProcessor&) = delete;

 private:
  cpu_set_t before_{};
};

TEST_F(UsableProcessors, AreThoseOfTheAffinityMask) {
  const OnOneProcessor bound;
  EXPECT_EQ(usable_processors("/nowhere"), 1);
  EXPECT_EQ(report_of("step3_paged", {"--random-weights", "tiny", "--tokens", "1"})["threads"], 1);
}

TEST_F(UsableProcessors, AreNoMoreThanTheShareOfVersion2) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(usable(), all_);
  write("sys/fs/cgroup/outer/inner/cpu.max", "50000 100000\n");
  EXPECT_EQ(usable(), 1) << "half a processor";
  write("sys/fs/cgroup/outer/inner/cpu.max", "150000 100000\n");
  EXPECT_EQ(usable(), std::min(all_, 2)) << "one and a half";
  write("sys/fs/cgroup/outer/cpu.max", "100000 100000\n");
  EXPECT_EQ(usable(), 1) << "the outer group has one";
}

TEST_F(UsableProcessors, AreNoMoreThanTheShareOfVersion1) {
  write("proc/self/cgroup", "7:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(usable(), all_);
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(usable(), 1);
}

TEST_F(UsableProcessors, AreNoMoreThanTheShareOfAContainerWhichSeesItsOwnGroupAsTheRoot) {
  write("proc/self/cgroup", "4:cpuacct,cpu:/docker/0123abc\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "25000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(usable(), 1);
}

TEST_F(UsableProcessors, AreAllWhereFilesSayNothingThatCanBeUnderstood) {
  write("proc/self/cgroup", "nonsense\n0::\n\n");
  write("sys/fs/cgroup/cpu.max", "0 0\n");
  EXPECT_EQ(usable(), all_);
}

}  // namespace
}  // namespace kvcache
