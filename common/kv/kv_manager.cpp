/// @file
/// See kv_manager.h.
#include "common/kv/kv_manager.h"

#include <algorithm>
#include <stdexcept>

#include "fmt/format.h"

namespace kvcache {

void check_work(std::span<const Work> work, const std::function<std::int64_t(std::int32_t)>& stored) {
  std::vector<std::int32_t> sequences;
  sequences.reserve(work.size());
  for (const Work& wanted : work) {
    const std::int64_t before = stored(wanted.sequence);
    if (wanted.token_ids.empty())
      throw std::logic_error(fmt::format("sequence {} is planned without a token", wanted.sequence));
    if (std::ssize(wanted.token_ids) < before) {
      throw std::logic_error(fmt::format("sequence {} stores {} tokens and is planned with {}",
                                         wanted.sequence, before, wanted.token_ids.size()));
    }
    sequences.push_back(wanted.sequence);
  }
  std::ranges::sort(sequences);
  if (const auto twice = std::ranges::adjacent_find(sequences); twice != sequences.end())
    throw std::logic_error(fmt::format("sequence {} is twice in one plan", *twice));
}

void KvManager::fork(std::int32_t, std::int32_t) {
  throw std::logic_error("this cache cannot share blocks");
}
void KvManager::pin(std::int32_t) {
  throw std::logic_error("this cache cannot share blocks");
}

}  // namespace kvcache
