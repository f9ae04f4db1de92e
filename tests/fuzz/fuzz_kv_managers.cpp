// Feeds: operations on the bookkeeping of steps 3 and 4, a few bytes each, all within the callers' contract.
//
// Holds: the invariants after every operation. What fitted before an abort fits after it.
#include <map>
#include <vector>

#include "step3_paged/paged_manager.h"
#include "step4_prefix_cache/prefix_caching_manager.h"
#include "tests/fuzz/hold.h"

using namespace kvcache;

namespace {

template <typename Manager>
void drive(Manager& manager, FuzzInput input) {
  std::map<std::int32_t, std::vector<std::int32_t>> stored;  // what has been committed
  std::int32_t next = 0, pinned = -1;
  const auto any = [&] { return std::next(stored.begin(), input.byte() % static_cast<int>(stored.size())); };
  for (int operation = 0; operation < 256 && !input.empty(); ++operation) {
    const int what = input.byte() % 8;
    if (what == 0 && !stored.empty()) {
      const auto gone = any();
      manager.free(gone->first);
      stored.erase(gone);
    } else if (what == 1 && !stored.empty() && manager.can_fork()) {
      const auto parent = any();
      manager.fork(parent->first, next);
      stored[next++] = parent->second;
    } else if (what == 2 && !stored.empty() && manager.can_fork() && pinned < 0) {
      pinned = any()->first;
      manager.pin(pinned);
      stored.erase(pinned);  // the manager's own from now on
    } else if (what > 2) {
      std::map<std::int32_t, std::vector<std::int32_t>> wanted;
      for (int n = input.byte() % 3; n >= 0; --n) {
        const bool is_new = stored.empty() || input.byte() % 3 == 0;
        const auto one = is_new ? stored.end() : any();
        std::vector<std::int32_t> ids = is_new ? std::vector<std::int32_t>() : one->second;
        for (int more = 1 + input.byte() % 12; more > 0; --more) ids.push_back(input.byte() % 2);
        wanted[is_new ? next++ : one->first] = std::move(ids);
      }
      std::vector<Work> work;
      for (const auto& [sequence, ids] : wanted) work.push_back({sequence, ids});
      std::optional<PassPlan> plan = manager.plan(work);
      if (plan && what == 3) {
        manager.abort(*plan);
        manager.check_invariants();
        plan = manager.plan(work);
        hold(plan.has_value(), "what fitted before an abort fits after it");
      }
      if (plan) {
        manager.commit(*plan);
        for (auto& [sequence, ids] : wanted) stored[sequence] = std::move(ids);
      }
    }
    manager.check_invariants();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  const std::uint8_t settings = input.byte();
  const PagedShape shape{/*blocks=*/1 + settings % 16, /*block_size=*/1 + settings / 16 % 4,
                         /*bytes_per_token=*/1};
  PagedManager paged(shape);
  drive(paged, input);
  PrefixCachingManager sharing(shape, {.prefix_cache = settings % 3 != 0,
                                       .host_blocks = settings / 64,
                                       .hash_bits = settings % 2 == 0 ? 64 : 2});
  drive(sharing, input);
  return 0;
}
