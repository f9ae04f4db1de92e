/// @file
/// See kv_manager.h.
#include "common/kv/kv_manager.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace kvcache {

void check_work(std::span<const Work> work, const std::function<std::int64_t(std::int32_t)>& stored) {
  const auto name = [](std::int32_t sequence) { return "sequence " + std::to_string(sequence); };
  std::vector<std::int32_t> sequences;
  sequences.reserve(work.size());
  for (const Work& wanted : work) {
    const std::int64_t before = stored(wanted.sequence);
    if (wanted.token_ids.empty())
      throw std::logic_error(name(wanted.sequence) + " is planned without a token");
    if (std::ssize(wanted.token_ids) < before) {
      throw std::logic_error(name(wanted.sequence) + " stores " + std::to_string(before) +
                             " tokens and is planned with " + std::to_string(wanted.token_ids.size()));
    }
    sequences.push_back(wanted.sequence);
  }
  std::ranges::sort(sequences);
  if (const auto twice = std::ranges::adjacent_find(sequences); twice != sequences.end())
    throw std::logic_error(name(*twice) + " is twice in one plan");
}

void KvManager::fork(std::int32_t, std::int32_t) {
  throw std::logic_error("this cache cannot share blocks");
}
void KvManager::pin(std::int32_t) {
  throw std::logic_error("this cache cannot share blocks");
}

}  // namespace kvcache
