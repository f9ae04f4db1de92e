// --trace without memory, once, at any place: the program ends with an error, or, where a destructor finds no
// memory, in std::terminate, which run_main turns into an error too. It never ends with a signal.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <sstream>

#include "common/engine/tracing_manager.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "tests/support/failing_new.h"

namespace kvcache {
namespace {

constexpr int kPlaces = 400;  // more than trace_a_run has
constexpr int kWhole = 0, kFailed = 1;

void trace_a_run() {
  PrefixCachingManager manager({.blocks = 8, .block_size = 4, .bytes_per_token = 8}, {});
  std::ostringstream lines;
  TracingManager tracing(manager, lines, "step4", "none", {});
  std::vector<std::int32_t> ids(9);
  std::iota(ids.begin(), ids.end(), 1);
  const Work work{1, ids};
  const std::optional<PassPlan> plan = tracing.plan({&work, 1});
  tracing.commit(plan.value());
  tracing.free(1);
}

/// How a process ends, as waitpid tells it, that traces a run and fails at its allocation number `place`.
int end_without_memory(int place) {
  const pid_t child = fork();
  if (child == 0) {
    std::set_terminate([] { std::_Exit(kFailed); });
    may_fail = true;
    fails_in = place;
    try {
      trace_a_run();
    } catch (const std::bad_alloc&) {
      std::_Exit(kFailed);
    }
    std::_Exit(kWhole);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(ATraceWithoutMemory, EndsTheProgramWithoutASignal) {
  int whole = 0;
  for (int place = 0; place < kPlaces; ++place) {
    const int status = end_without_memory(place);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << " at allocation " << place;
    whole += WEXITSTATUS(status) == kWhole ? 1 : 0;
  }
  EXPECT_GT(whole, 0);
  EXPECT_LT(whole, kPlaces);
}

}  // namespace
}  // namespace kvcache
