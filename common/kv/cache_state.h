/// @file
/// A manager's bookkeeping at one moment, in one form for steps 2 to 4. A trace lists what changes in it
/// (docs/trace.md).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace kvcache {

/// Which blocks each sequence holds, and in which order the free ones will be taken. A reservation of step 2
/// counts as a block of max_seq_len tokens that one sequence holds.
struct CacheState {
  /// One sequence.
  struct Sequence {
    std::vector<std::int32_t> blocks;  ///< its block table
    std::int64_t length = 0;           ///< tokens stored
    /// Whether all of it is the same.
    bool operator==(const Sequence&) const = default;
  };
  /// What a block is found by; identity 0: it cannot be found.
  struct Content {
    std::uint64_t hash = 0;      ///< of its tokens and all tokens before them
    std::uint64_t identity = 0;  ///< equal contents have one identity, different contents have two
    std::uint64_t parent = 0;    ///< identity of the block before it; 0 for a first block
    /// Whether all of it is the same.
    bool operator==(const Content&) const = default;
  };

  std::int64_t block_size = 0;                 ///< tokens per block
  std::map<std::int32_t, Sequence> sequences;  ///< by id
  std::vector<std::int32_t> references;        ///< [blocks] sequences that refer to each
  std::vector<std::int32_t> free;              ///< blocks without references, the next to be taken first
  std::vector<Content> contents;               ///< [blocks]; empty in steps 2 and 3
  std::vector<Content> host;                   ///< [host blocks]
};

}  // namespace kvcache
