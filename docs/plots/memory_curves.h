/// @file
/// What the pictures show of memory. Every byte is from the account of a step's own manager, and the managers
/// are bookkeeping, so the curves are the same on every machine. Chapters: step 2 to step 4.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/kv_manager.h"

namespace kvcache {

/// A manager's account, moment by moment.
struct MemoryCurve {
  std::vector<std::int64_t> reserved;  ///< [moments] bytes given out
  std::vector<std::int64_t> used;      ///< [moments] bytes of tokens stored
  /// One more moment.
  void add(const KvMemoryReport& memory);
};

/// What the curves suppose of model and cache.
struct KvSizes {
  std::int64_t bytes_per_token = 0;  ///< K and V, all layers
  std::int64_t max_seq_len = 0;      ///< positions that step 2 reserves for a sequence
  std::int64_t block_size = 0;       ///< of steps 3 and 4
};

/// The curve of article 003: one sequence, from its first token until its reservation is full.
struct GrowthCurves {
  KvSizes sizes;                     ///< of the article's example
  std::vector<std::int64_t> tokens;  ///< [moments] stored
  MemoryCurve flat;                  ///< step 2
  MemoryCurve paged;                 ///< step 3
};
/// Llama 3 8B in bf16 (131,072 bytes per token), a reservation of 8,192 positions, blocks of 16. Every token
/// up to 64, then every 64th, and the article's 200.
GrowthCurves one_sequence_grows();

/// A request of a trace: it arrives, is prefilled, gets a token in every pass, and leaves.
struct Visitor {
  std::int64_t arrival = 0;              ///< the pass in which it is prefilled
  std::vector<std::int32_t> prompt_ids;  ///< at least one
  std::int64_t outputs = 0;              ///< passes that it stays, its arrival's among them
};

/// `manager` plays a trace as the run loop does: in each pass the newcomers are prefilled one after the
/// other, then all who are there get a token, and those who have theirs leave. One moment per pass, before
/// they leave.
/// @param visitors  in the order of their arrivals
/// @throws RunError if the manager refuses one: give it room for all.
MemoryCurve play(KvManager& manager, std::span<const Visitor> visitors, std::int64_t passes);

/// The most visitors at any one time.
std::int64_t most_at_once(std::span<const Visitor> visitors, std::int64_t passes);

/// One trace on three managers, each with room for all who come.
struct TraceCurves {
  KvSizes sizes;                   ///< of the trace
  std::int64_t requests = 0;       ///< of the trace
  std::int64_t most_at_once = 0;   ///< step 2 has a reservation for each of these
  std::vector<std::int64_t> pass;  ///< [moments] every fourth
  MemoryCurve flat;                ///< step 2
  MemoryCurve paged;               ///< step 3
  MemoryCurve shared;              ///< step 4
};
/// 120 requests in 1,200 passes: prompts of 16 to 143 tokens, two in three of them behind one of two system
/// prompts of 160 and 320; 32 to 351 tokens of output. Llama 3 8B, reservations of 1,024, blocks of 16.
TraceCurves requests_come_and_go();

/// How many sequences of one length a budget holds.
struct BudgetCurves {
  KvSizes sizes;                     ///< of the article's example
  std::int64_t budget_bytes = 0;     ///< for K and V
  std::vector<std::int64_t> length;  ///< [lengths] tokens of each sequence
  std::vector<std::int64_t> flat;    ///< [lengths] sequences that step 2 holds
  std::vector<std::int64_t> paged;   ///< [lengths] that step 3 holds
  std::vector<std::int64_t> shared;  ///< [lengths] that step 4 holds if all begin with the same half
};
/// The example of article 004, 4 GB and TinyLlama in float32 with reservations of 2,048, at several lengths.
/// Each manager admits sequences until it refuses one; steps 3 and 4 keep a hundredth of the pool for growth.
BudgetCurves sequences_in_a_budget();

/// What is reserved and empty in step 3, by block size.
struct BlockSizeWaste {
  std::int64_t sequences = 0;            ///< that are stored
  std::int64_t tokens = 0;               ///< of all of them
  std::vector<std::int64_t> block_size;  ///< [sizes]
  std::vector<double> waste;             ///< [sizes] share of what is reserved, 0 to 1
};
/// The 160 mixed requests of docs/articles.md in blocks of 1 to 256.
BlockSizeWaste waste_by_block_size();

/// All of these.
struct MemoryCurves {
  GrowthCurves growth;         ///< one_sequence_grows()
  TraceCurves trace;           ///< requests_come_and_go()
  BudgetCurves budget;         ///< sequences_in_a_budget()
  BlockSizeWaste block_sizes;  ///< waste_by_block_size()
};
/// Counts everything; takes seconds.
MemoryCurves memory_curves();

}  // namespace kvcache
