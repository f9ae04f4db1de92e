/// @file
/// The report of a run: the same fields in every step, so that two steps compare line by line.
/// common/cli/print.h prints it as text or as one JSON object, whose names are a contract (schema 1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "common/kv/report.h"

namespace kvcache {

/// The part of a report about one sequence.
struct SequenceReport {
  std::vector<std::int32_t> prompt_ids;   ///< of the prompt
  std::vector<std::int32_t> output_ids;   ///< with the end-of-sequence id that ended it, if one did
  std::string text;                       ///< the output alone, without that id; "" without a tokenizer
  std::string finish_reason;              ///< "length", "stop", "capacity" or "error"
  std::string error;                      ///< with "error": what is wrong with its logits or its text
  std::int64_t cached_tokens = 0;         ///< prompt tokens not computed at the first admission
  std::vector<std::int32_t> block_table;  ///< as the sequence ended; empty in steps 1 and 2
  double ttft_ms = 0;                     ///< from the start of its prefill to its first token
  std::vector<float> logits;              ///< [vocab] after the prompt; empty unless asked for

  /// Output ids that went through the model: all except the last.
  std::int64_t outputs_fed_back() const { return std::max<std::int64_t>(0, std::ssize(output_ids) - 1); }
  /// Tokens that had K and V as the sequence ended.
  std::int64_t stored_tokens() const { return std::ssize(prompt_ids) + outputs_fed_back(); }
};

/// How long the passes of a run took, without loading the model. A rate that was not measured has no value:
/// with at most one new token per sequence there is no decode pass.
struct TimingReport {
  double prefill_ms = 0;                       ///< passes that compute prompts for the first time
  double decode_ms = 0;                        ///< decode passes, and preempted sequences computed again
  std::int64_t prefill_tokens = 0;             ///< prompt rows computed
  std::int64_t decode_tokens = 0;              ///< sum over sequences of `outputs_fed_back`
  std::optional<double> ms_per_token;          ///< decode_ms / decode passes
  std::optional<double> prefill_tokens_per_s;  ///< prefill_tokens in prefill_ms
  std::optional<double> decode_tokens_per_s;   ///< decode_tokens in decode_ms
  std::vector<double> decode_pass_ms;          ///< [decode passes] in order
};

/// The report of a whole run.
struct Report {
  std::string step;                       ///< "step3_paged"
  std::string model;                      ///< the folder, or "random:NAME"
  std::string device;                     ///< "cpu" or "cuda"
  std::string dtype;                      ///< "f32", "f16" or "bf16"
  int threads = 0;                        ///< of the CPU
  std::vector<SequenceReport> sequences;  ///< in the order of the prompts
  TimingReport timing;                    ///< of the whole run
  KvMemoryReport kv_memory;               ///< at its fullest
  KvRowsReport kv_rows;                   ///< of the whole run
  BlocksReport blocks;                    ///< at the end; zeros in steps 1 and 2
  CountersReport counters;                ///< of the whole run
};

}  // namespace kvcache
