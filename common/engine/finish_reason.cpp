/// @file
/// See finish_reason.h.
#include "common/engine/finish_reason.h"

#include <algorithm>

namespace kvcache {

std::string finish_reason(const ModelConfig& config, std::span<const std::int32_t> token_ids,
                          std::int64_t prompt_tokens, std::int64_t max_tokens, bool ignore_eos) {
  const std::int64_t outputs = std::ssize(token_ids) - prompt_tokens;
  if (!ignore_eos && outputs > 0 && std::ranges::binary_search(config.eos_ids, token_ids.back()))
    return "stop";
  const bool is_full = std::ssize(token_ids) >= config.max_position_embeddings;
  return outputs >= max_tokens || is_full ? "length" : "";
}

}  // namespace kvcache
