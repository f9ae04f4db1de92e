/// @file
/// See fragmentation.h.
#include "docs/numbers/fragmentation.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <random>
#include <utility>

#include "docs/numbers/formulas.h"
#include "step3_paged/block_pool.h"

namespace kvcache {
namespace {

/// Memory in contiguous pieces.
class Pieces {
 public:
  using Held = std::int64_t;  // the first slot
  Pieces(std::int64_t slots, Fit fit) : allocator_(slots, fit) {}

  std::optional<Held> take(std::int64_t tokens) { return allocator_.allocate(tokens); }
  void give_back(Held first, std::int64_t tokens) { allocator_.free(first, tokens); }
  std::int64_t free_slots() const { return allocator_.free_slots(); }
  std::int64_t slots_for(std::int64_t tokens) const { return tokens; }
  std::int64_t holes() const { return allocator_.holes(); }

 private:
  ContiguousAllocator allocator_;
};

/// Memory in blocks.
class Blocks {
 public:
  using Held = std::vector<std::int32_t>;  // the block table
  Blocks(std::int64_t slots, std::int64_t block_size) : pool_(slots / block_size), block_size_(block_size) {}

  std::optional<Held> take(std::int64_t tokens) {
    const std::int64_t needed = blocks_that_hold(tokens, block_size_);
    if (needed > pool_.free_count()) return std::nullopt;
    Held table;
    while (static_cast<std::int64_t>(table.size()) < needed) table.push_back(pool_.allocate().value());
    return table;
  }
  void give_back(const Held& table, std::int64_t) {
    for (const std::int32_t block : table) pool_.free(block);
  }
  std::int64_t free_slots() const { return pool_.free_count() * block_size_; }
  std::int64_t slots_for(std::int64_t tokens) const {
    return blocks_that_hold(tokens, block_size_) * block_size_;
  }
  std::int64_t holes() const { return 0; }

 private:
  BlockPool pool_;
  std::int64_t block_size_;
};

template <typename Memory>
ReplayResult replay(std::span<const Visit> visits, Memory memory) {
  struct Guest {
    Visit visit;
    typename Memory::Held held;
    bool operator>(const Guest& other) const { return visit.departure > other.visit.departure; }
  };
  std::priority_queue<Guest, std::vector<Guest>, std::greater<>> guests;  // the next to leave on top
  ReplayResult result;
  std::int64_t tokens = 0, reserved = 0;
  for (const Visit& visit : visits) {
    for (; !guests.empty() && guests.top().visit.departure <= visit.arrival; guests.pop()) {
      const auto& [leaving, held] = guests.top();
      memory.give_back(held, leaving.tokens);
      tokens -= leaving.tokens;
      reserved -= memory.slots_for(leaving.tokens);
    }
    if (auto held = memory.take(visit.tokens)) {
      guests.push({visit, std::move(*held)});
      tokens += visit.tokens;
      reserved += memory.slots_for(visit.tokens);
    } else {
      ++result.refused;
      result.refused_tokens += visit.tokens;
      if (memory.free_slots() >= visit.tokens) {
        ++result.refused_in_spite_of_room;
        result.most_free_when_refused = std::max(result.most_free_when_refused, memory.free_slots());
      }
    }
    result.most_holes = std::max(result.most_holes, memory.holes());
    result.most_wasted = std::max(result.most_wasted, reserved - tokens);
    result.most_tokens = std::max(result.most_tokens, tokens);
  }
  return result;
}

}  // namespace

ReplayResult replay_contiguous(std::span<const Visit> visits, std::int64_t slots, Fit fit) {
  return replay(visits, Pieces(slots, fit));
}

ReplayResult replay_paged(std::span<const Visit> visits, std::int64_t slots, std::int64_t block_size) {
  return replay(visits, Blocks(slots, block_size));
}

std::vector<Visit> made_up_visits(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);  // its numbers are the same everywhere; those of the distributions are not
  const auto below = [&](std::uint64_t bound) { return static_cast<std::int64_t>(random() % bound); };
  std::vector<Visit> visits;
  for (std::int64_t arrival = 0; arrival < count; ++arrival) {
    const std::int64_t tokens = below(4) == 0 ? 512 + below(2048) : 16 + below(256);
    visits.push_back({tokens, arrival, arrival + 16 + below(64)});
  }
  return visits;
}

}  // namespace kvcache
