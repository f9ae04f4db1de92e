/// @file
/// What prefix_caching_manager.cpp leaves out: fork, pin and discard, and the part of the host tier in a plan.
#include <iterator>
#include <stdexcept>

#include "step4_prefix_cache/prefix_caching_manager.h"

namespace kvcache {

void PrefixCachingManager::fork(std::int32_t parent, std::int32_t child) {
  const Sequence& original = sequences_.at(parent);
  const auto [added, is_new] = sequences_.try_emplace(child);
  if (!is_new) throw std::logic_error("a fork needs an id that no sequence has");
  Sequence& copy = added->second;
  // Assignment keeps a vector's capacity: so the child's first token reallocates nothing.
  copy.token_ids.reserve(original.token_ids.size() + static_cast<std::size_t>(shape_.block_size));
  copy = original;
  copy.cached_tokens = copy.length;  // the child has computed nothing
  pool_.share(copy.blocks);
}

void PrefixCachingManager::pin(std::int32_t sequence) {
  if (!sequences_.contains(sequence)) throw std::logic_error("only a sequence that is there can be pinned");
  if (pinned_ && pinned_->id != sequence) free(pinned_->id);
  pinned_ = Pinned{sequence, known(sequence).token_ids, known(sequence).salt};
}

void PrefixCachingManager::discard(const Work& work, std::int64_t cached_tokens) {
  free(work.sequence);
  // It may have been freed before, and then its table is gone. So its blocks are looked up by their content.
  const std::optional<BlockParent> root = root_of(salt_or_default(work.salt));
  if (!root) return;
  const std::vector<PrefixPlaces> places = finder().find_all(work.token_ids, *root);
  for (std::int64_t n = cached_tokens / shape_.block_size; n < std::ssize(places); ++n) {
    const PrefixPlaces& place = places[static_cast<std::size_t>(n)];
    for (const std::int32_t block : place.blocks) pool_.forget(block);
    if (place.host_block) host_.forget(*place.host_block);
  }
}

void PrefixCachingManager::bring_back(std::span<const std::int32_t> host_blocks, Sequence& sequence,
                                      PassPlan& plan) {
  for (const std::int32_t host_block : host_blocks) {
    sequence.blocks.push_back(pool_.allocate());
    plan.swaps_in.push_back({host_block, sequence.blocks.back()});
  }
}

}  // namespace kvcache
