/// @file
/// The batch run of the four programs: a loop of prefill, decode and finish that takes a list of requests to
/// their ends. All steps share it. Chapter: step 1.
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
  /// How many of the next requests in the list are samples of this prompt: they fork after its prefill.
  std::int64_t forks = 0;
  std::string salt = {};  ///< sequences of equal salt share blocks (Work::salt)
};

/// Checks that a prompt can be computed.
/// @param name  of the prompt, for the message
/// @throws InputError for a prompt that is empty, has an id outside the vocabulary, or leaves no room in the
/// context.
void check_prompt(const std::string& name, std::span<const std::int32_t> ids, const ModelConfig& config);

/// Computes a prefix as `sequence` and pins it, for the prompts that begin with it; only with a manager that
/// can share.
/// @return the pass that computed it
/// @throws RunError if the pool is too small, or the logits after the prefix are not finite: then nothing of
/// the prefix stays.
PassPlan pin_prefix(Transformer& model, KvManager& manager, KvStore& store,
                    std::span<const std::int32_t> token_ids, std::int32_t sequence);

/// Called with the index of a request and a token id as soon as it is chosen.
using OnToken = std::function<void(std::size_t request, std::int32_t id)>;
/// Called with the index of a request and its finish reason, before its memory goes back.
using OnEnd = std::function<void(std::size_t request, const std::string& reason)>;

/// How to run.
struct RunSettings {
  bool keep_logits = false;  ///< report each sequence's logits after its prompt
  /// For tests: preempt the youngest sequence at every n-th pass; 0: only when memory runs out.
  std::int64_t preempt_every = 0;
  /// Computed first and pinned, for the prompts that begin with it; only with a manager that can share.
  std::vector<std::int32_t> pinned_prefix = {};
  OnToken on_token = {};  ///< may be empty
  OnEnd on_end = {};      ///< may be empty
  /// For measurements: called before a forward pass is queued.
  std::function<void()> before_pass = {};
  /// For measurements: called when a forward pass is queued. A GPU may still be computing it, so a clock that
  /// is read here measures the queueing.
  std::function<void()> after_pass = {};
};

/// Takes the requests to their ends. Each prompt is prefilled in a pass of its own, in order; then the
/// sequences decode together, one token each per pass. A request that does not fit waits. When a running
/// sequence cannot grow, the youngest is preempted: its memory goes back, and it is admitted again later with
/// all its ids.
///
/// A sequence ends
///
/// - with "stop" at an end-of-sequence id,
/// - with "length" at its number of tokens or the end of the context,
/// - with "capacity" when it cannot grow although it is alone,
/// - with "error" when its logits are not finite: nothing that it stored can be found, and the others go on.
///
/// @param requests  every prompt must fit the manager's capacity
/// @return the report without step, model, device, dtype, threads and texts.
[[nodiscard]] Report run(Transformer& model, KvManager& manager, KvStore& store,
                         std::span<const Request> requests, const RunSettings& settings = {});

/// For runs of which every sequence must succeed.
/// @throws RunError with the error of the first sequence that ended with "error".
void expect_no_error(const Report& report);

}  // namespace kvcache
