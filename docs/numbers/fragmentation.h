/// @file
/// External fragmentation, replayed: sequences come and go, once in contiguous pieces of exactly their size
/// and once in the blocks of step 3's pool. Chapter: step3_paged/README.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "docs/numbers/contiguous_allocator.h"

namespace kvcache {

/// A sequence that arrives, keeps its K and V for a while, and leaves.
struct Visit {
  std::int64_t tokens = 0;     ///< >= 1, known on arrival, which no real server can count on
  std::int64_t arrival = 0;    ///< visits are in the order of their arrivals
  std::int64_t departure = 0;  ///< > arrival
};

/// What became of the visits. One that is refused does not come again.
struct ReplayResult {
  std::int64_t refused = 0;                   ///< visits that found no place
  std::int64_t refused_tokens = 0;            ///< of the refused visits
  std::int64_t refused_in_spite_of_room = 0;  ///< of these: the free slots together would have been enough
  std::int64_t most_holes = 0;              ///< at any one moment; 0 in a pool, where any free block will do
  std::int64_t most_free_when_refused = 0;  ///< free slots at a refusal in spite of room
  std::int64_t most_wasted = 0;             ///< slots given out and not filled, at any one moment
  std::int64_t most_tokens = 0;             ///< stored at any one moment
};

/// `slots` slots in contiguous pieces.
ReplayResult replay_contiguous(std::span<const Visit> visits, std::int64_t slots, Fit fit = Fit::first);
/// The same slots as a pool of blocks. `slots` is a multiple of `block_size`.
ReplayResult replay_paged(std::span<const Visit> visits, std::int64_t slots, std::int64_t block_size);

/// `count` visits, the same on every machine: one arrival per unit of time; three in four are short (16 to
/// 271 tokens), the others long (512 to 2,559); a visit lasts 16 to 79 units.
std::vector<Visit> made_up_visits(std::int64_t count, std::uint64_t seed);

}  // namespace kvcache
