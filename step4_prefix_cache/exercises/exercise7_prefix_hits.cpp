// Exercise 7: What will the cache find?
//
// Before anybody buys memory for a prefix cache, they want to know what it would save on the prompts they
// have. That needs no model: token ids are enough.
//
// Write cached_tokens_of(prompts, block_size). The prompts come one after the other, each with at least one
// token id; block_size is at least 1. Each prompt is computed as a prefill, and nothing is generated, so only
// prompts leave blocks behind. The cache is empty at first and never runs short: what was computed once can
// be found for ever. The result has one number per prompt: how many of its tokens are taken from the cache.
// No input is an error.
//
// A prompt of n tokens leaves its n / block_size full blocks behind (integer division), for the prompts after
// it. The prompt itself is given at most (n - 1) / block_size blocks, since one token has to be computed. A
// block counts only if it is known with all that came before it, and only if all blocks before it were found.
//
// Example: block_size 2.
//
//   prompt       is given          cached tokens
//   1 2 3 4      nothing           0    it leaves the blocks 1 2 and 1 2 3 4 behind
//   1 2 3 4      1 2               2    not 4: the last token is computed
//   1 2 3 4 5    1 2 3 4           4
//   9 9 3 4 5    nothing           0    3 4 is known after 1 2 only
//
// so the result is 0 2 4 0.
//
// A block's name is block_hash(parent, ids) of step4_prefix_cache/block_hash.h, a std::uint64_t: `parent` is
// the hash of the block before it, std::nullopt for a first block, and `ids` are its block_size token ids:
// tokens_of_block(token_ids, n, block_size) of the same header cuts them out. Suppose that different blocks
// have different hashes.
//
// The test plays the same prompts with PrefixCachingManager.
#include "step4_prefix_cache/exercises/exercise7_prefix_hits.h"

#include "step4_prefix_cache/block_hash.h"

namespace kvcache {

std::vector<std::int64_t> cached_tokens_of(std::span<const std::vector<std::int32_t>> prompts,
                                           std::int64_t /*block_size*/) {
  return std::vector<std::int64_t>(prompts.size(), 0);  // as if nothing were ever found: write this
}

}  // namespace kvcache
