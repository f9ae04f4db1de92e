/// @file
/// See prefix_index.h.
#include "step4_prefix_cache/prefix_index.h"

#include <algorithm>

namespace kvcache {

PrefixIndex::PrefixIndex(std::int64_t total, std::int64_t block_size)
    : block_size_(block_size),
      contents_(static_cast<std::size_t>(total)),
      token_ids_(static_cast<std::size_t>(total * block_size)) {}

void PrefixIndex::insert(std::int32_t block, const BlockContent& content,
                         std::span<const std::int32_t> token_ids) {
  contents_[static_cast<std::size_t>(block)] = content;
  std::copy(token_ids.begin(), token_ids.end(), token_ids_.begin() + block * block_size_);
  by_hash_.emplace(content.hash, block);
}

void PrefixIndex::erase(std::int32_t block) {
  BlockContent& content = contents_[static_cast<std::size_t>(block)];
  const auto [first, last] = by_hash_.equal_range(content.hash);
  by_hash_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == block; }));
  content = BlockContent{};
}

std::span<const std::int32_t> PrefixIndex::token_ids(std::int32_t block) const {
  return std::span(token_ids_)
      .subspan(static_cast<std::size_t>(block * block_size_), static_cast<std::size_t>(block_size_));
}

std::optional<std::int32_t> PrefixIndex::find(std::uint64_t hash, std::uint64_t parent,
                                              std::span<const std::int32_t> wanted) const {
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto entry = first; entry != last; ++entry) {
    const std::int32_t block = entry->second;
    if (content(block).parent == parent && std::ranges::equal(token_ids(block), wanted)) return block;
  }
  return std::nullopt;
}

}  // namespace kvcache
