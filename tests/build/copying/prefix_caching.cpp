// Two requests that begin alike, with step 4's manager. docs/copying.md builds it from copied files.
#include <cstdio>

#include "step4_prefix_cache/prefix_caching_manager.h"

int main() {
  kvcache::PrefixCachingManager manager({.blocks = 8, .block_size = 4});
  const std::vector<std::int32_t> request_1{11, 12, 13, 14, 15, 16, 17, 18, 19};
  const std::vector<std::int32_t> request_2{11, 12, 13, 14, 15, 16, 17, 18, 29, 30};
  std::int32_t sequence = 0;
  for (const std::vector<std::int32_t>& ids : {request_1, request_2}) {
    const kvcache::Work work{.sequence = ++sequence, .token_ids = ids};
    const std::optional<kvcache::PassPlan> plan = manager.plan({&work, 1});
    if (!plan) return 1;
    manager.commit(*plan);
    manager.free(sequence);  // its full blocks stay findable until their memory is needed
    std::printf("request %d: %lld of %zu tokens computed\n", sequence, static_cast<long long>(plan->tokens()),
                ids.size());
  }
}
