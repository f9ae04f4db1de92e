/// @file
/// Why a sequence ends. The run loop (run.h) and the serving engine (engine.h) ask here. "capacity", "error"
/// and "cancelled" are theirs to say. Chapter: step 1.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/model/config.h"

namespace kvcache {

/// Whether a sequence ends with the ids it has: "stop" for an end-of-sequence id, "length" for `max_tokens`
/// or the end of the context. Empty: the sequence goes on.
/// @param token_ids  [prompt_tokens + outputs]
[[nodiscard]] std::string finish_reason(const ModelConfig& config, std::span<const std::int32_t> token_ids,
                                        std::int64_t prompt_tokens, std::int64_t max_tokens, bool ignore_eos);

}  // namespace kvcache
