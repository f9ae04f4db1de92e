/// @file
/// See prefix_index.h.
#include "step4_prefix_cache/prefix_index.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace kvcache {

PrefixIndex::PrefixIndex(std::int64_t total, std::int64_t block_size)
    : block_size_(block_size),
      first_(std::bit_ceil(static_cast<std::size_t>(2 * total)), kNone),
      entries_(static_cast<std::size_t>(total)),
      token_ids_(static_cast<std::size_t>(total * block_size)) {}

void PrefixIndex::insert(std::int32_t block, const BlockContent& content,
                         std::span<const std::int32_t> token_ids) {
  // A second entry would make the bucket's list a ring, and a look-up endless.
  if (!is_block(block) || contains(block))
    throw std::logic_error("block " + std::to_string(block) + " is findable already, or is no block");
  std::int32_t& first = first_[bucket(content.hash)];
  entries_[static_cast<std::size_t>(block)] = {content, first};
  first = block;
  std::copy(token_ids.begin(), token_ids.end(), token_ids_.begin() + block * block_size_);
  ++size_;
}

void PrefixIndex::erase(std::int32_t block) {
  // An unfindable block is in no list, and the search for it would run past the end.
  if (!is_block(block) || !contains(block))
    throw std::logic_error("block " + std::to_string(block) + " is not findable, so it cannot be erased");
  Entry& entry = entries_[static_cast<std::size_t>(block)];
  // The number that names `block`: the bucket's first, or the `next` of the entry before it in the list.
  std::int32_t* link = &first_[bucket(entry.content.hash)];
  while (*link != block) link = &entries_[static_cast<std::size_t>(*link)].next;
  *link = entry.next;
  entry = Entry{};
  --size_;
}

std::span<const std::int32_t> PrefixIndex::token_ids(std::int32_t block) const {
  return std::span(token_ids_)
      .subspan(static_cast<std::size_t>(block * block_size_), static_cast<std::size_t>(block_size_));
}

std::optional<std::int32_t> PrefixIndex::find(std::uint64_t hash, std::uint64_t parent_identity,
                                              std::span<const std::int32_t> ids) const {
  for (std::int32_t block = first_[bucket(hash)]; block != kNone;
       block = entries_[static_cast<std::size_t>(block)].next) {
    if (content(block).hash == hash && content(block).parent_identity == parent_identity &&
        std::ranges::equal(token_ids(block), ids)) {
      return block;
    }
  }
  return std::nullopt;
}

std::optional<std::int32_t> PrefixIndex::next_twin(std::int32_t block) const {
  for (std::int32_t twin = entries_[static_cast<std::size_t>(block)].next; twin != kNone;
       twin = entries_[static_cast<std::size_t>(twin)].next) {
    if (content(twin).identity == content(block).identity) return twin;
  }
  return std::nullopt;
}

void PrefixIndex::prefetch(std::uint64_t hash) const {
  const std::int32_t block = first_[bucket(hash)];
  if (block == kNone) return;
  __builtin_prefetch(&entries_[static_cast<std::size_t>(block)]);
  __builtin_prefetch(token_ids(block).data());
}

}  // namespace kvcache
