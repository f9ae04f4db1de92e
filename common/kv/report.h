/// @file
/// What a run says of itself: the same fields in every step, so that steps compare line by line. Printed as
/// text or as one JSON object by common/cli/print.h; the JSON names are a contract (schema 1).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcache {

/// How one sequence went.
struct SequenceReport {
  std::vector<std::int32_t> prompt_ids;
  std::vector<std::int32_t> output_ids;   ///< with the end-of-sequence id that ended it, if one did
  std::string text;                       ///< the output alone, without that id; "" without a tokenizer
  std::string finish_reason;              ///< "length", "stop" or "capacity"
  std::int64_t cached_tokens = 0;         ///< prompt tokens not computed at first admission
  std::vector<std::int32_t> block_table;  ///< as the sequence ended; empty in steps 1 and 2
  double ttft_ms = 0;                     ///< from the run's turn to this sequence until its first token
  std::vector<float> logits;              ///< [vocab] after the prompt; empty unless asked for
};

struct TimingReport {
  double prefill_ms = 0, decode_ms = 0;
  std::int64_t prefill_tokens = 0;  ///< prompt rows computed
  std::int64_t decode_tokens = 0;   ///< sum over sequences of max(0, outputs - 1)
  double ms_per_token = 0;          ///< decode_ms / decode passes
  double prefill_tokens_per_s = 0, decode_tokens_per_s = 0;
  std::vector<double> decode_pass_ms;  ///< [decode passes] in order
};

/// At the moment of the greatest reservation.
struct KvMemoryReport {
  std::int64_t bytes_per_token = 0, reserved_bytes = 0, used_bytes = 0;
  double waste_percent = 0;  ///< of reserved; 0 of 0 is 0
  std::int64_t pool_bytes = 0;
};

struct KvRowsReport {
  std::int64_t computed = 0;    ///< K/V rows projected per layer over the run
  std::int64_t recomputed = 0;  ///< those of positions already projected before
};

/// After all sequences ended: free + cached + in_use = total.
struct BlocksReport {
  std::int64_t block_size = 0, total = 0, free = 0, cached = 0, in_use = 0;
};

struct CountersReport {
  std::int64_t prefix_hits = 0;  ///< blocks
  std::int64_t evictions = 0, preemptions = 0, copies = 0, swaps_out = 0, swaps_in = 0;
  std::int64_t gathered_bytes = 0;  ///< of K and V, copied together for attention over the run
};

struct Report {
  std::string step, model, device, dtype;
  int threads = 0;
  std::vector<SequenceReport> sequences;  ///< in the order of the prompts
  TimingReport timing;
  KvMemoryReport kv_memory;
  KvRowsReport kv_rows;
  BlocksReport blocks;
  CountersReport counters;
};

}  // namespace kvcache
