// An engine's loop around step 3's manager. docs/copying.md builds it from copied files.
#include <cstdio>

#include "step3_paged/paged_manager.h"

int main() {
  kvcache::PagedManager manager({.blocks = 8, .block_size = 4});
  std::vector<std::int32_t> ids{11, 12, 13};  // a prompt
  for (int pass = 0; pass < 3; ++pass) {
    const kvcache::Work work{.sequence = 1, .token_ids = ids};
    const std::optional<kvcache::PassPlan> plan = manager.plan({&work, 1});
    if (!plan) break;  // no room now: nothing has changed; free a sequence or try later
    // Here the engine computes plan->token_ids, writes their K and V to plan->slots, and attends through
    // plan->block_table. A pass that does not run is taken back with manager.abort(*plan).
    std::printf("pass %d: %lld tokens, the last to slot %lld, %d blocks\n", pass,
                static_cast<long long>(plan->tokens()), static_cast<long long>(plan->slots.back()),
                plan->table_width);
    manager.commit(*plan);
    ids.push_back(14 + pass);  // the token that the engine chose
  }
  manager.free(1);
}
