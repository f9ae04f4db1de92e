/// @file
/// What takes a list of sequences to their ends: the loop of prefill, decode and finish that all steps share.
/// Chapter: step 1.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/engine/report.h"
#include "common/kv/kv_manager.h"
#include "common/kv/kv_store.h"
#include "common/model/sampler.h"
#include "common/model/transformer.h"

namespace kvcache {

/// One sequence to generate.
struct Request {
  std::vector<std::int32_t> prompt_ids;  ///< at least one, each in [0, vocab), fewer than the context
  std::int64_t max_tokens = 64;          ///< new tokens; 0: prefill only
  bool ignore_eos = false;               ///< go on after an end-of-sequence id
  SamplingParams sampling;               ///< how its ids are chosen
  /// Samples of this prompt that follow in the list: they fork from this sequence after its prefill.
  std::int64_t forks = 0;
  std::string salt = {};  ///< it shares blocks with those of equal salt (Work::salt)
};

/// @param name  of the prompt, for the message
/// @throws InputError for a prompt that is empty, has an id outside the vocabulary, or leaves no room in the
/// context.
void check_prompt(const std::string& name, std::span<const std::int32_t> ids, const ModelConfig& config);

/// Computes a prefix that is to stay, for the prompts that begin with it, as `sequence`; only with a manager
/// that can share.
/// @return the pass
/// @throws RunError if the pool is too small, or the logits after the prefix are not finite: then nothing of
/// it stays.
PassPlan pin_prefix(Transformer& model, KvManager& manager, KvStore& store,
                    std::span<const std::int32_t> token_ids, std::int32_t sequence);

/// Called with the index of a request and a token id as soon as it is chosen.
using OnToken = std::function<void(std::size_t request, std::int32_t id)>;
/// Called with the index of a request and its finish reason, before its memory goes back.
using OnEnd = std::function<void(std::size_t request, const std::string& reason)>;

/// How to run.
struct RunSettings {
  bool keep_logits = false;  ///< report each sequence's logits after its prompt
  /// For tests: preempt the youngest every so many passes; 0: only when needed.
  std::int64_t preempt_every = 0;
  /// Computed first and pinned, for the prompts that begin with it; only with a manager that can share.
  std::vector<std::int32_t> pinned_prefix = {};
  OnToken on_token = {};  ///< empty: nobody is told
  OnEnd on_end = {};      ///< empty: nobody is told
  /// For measurements: called before a forward pass is handed to the device.
  std::function<void()> before_pass = {};
  /// For measurements: called when all of a forward pass has been handed to the device. A GPU may then still
  /// be at work.
  std::function<void()> after_pass = {};
};

/// Takes the requests to their ends. They are admitted in order, each after the prefill of the one before it,
/// and then decode together, one token each per pass. A request that does not fit waits; when a running
/// sequence cannot grow, the youngest is preempted: its memory goes back, and it is admitted again later with
/// all its ids. A sequence ends by an end-of-sequence id ("stop"), by its number of tokens or the end of the
/// context ("length"), when it could not grow even if it were alone ("capacity"), or when its logits are not
/// finite ("error"): then the others go on, and nothing that it stored can be found.
/// @param requests  every prompt must fit the manager's capacity
/// @return the report, but for step, model, device, dtype, threads and texts.
[[nodiscard]] Report run(Transformer& model, KvManager& manager, KvStore& store,
                         std::span<const Request> requests, const RunSettings& settings = {});

/// For runs that count as a whole.
/// @throws RunError saying what is wrong with the first sequence that ended with "error", if there is one.
void expect_no_error(const Report& report);

}  // namespace kvcache
