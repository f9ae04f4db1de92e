/// @file
/// The small transformer that all steps share: a decoder of the Llama, Mistral, Qwen2 and Qwen3 families. It
/// knows nothing of caches: the store keeps keys and values. Chapter: docs/transformer.md.
#pragma once

#include <memory>
#include <vector>

#include "common/kv/kv_store.h"
#include "common/model/backend.h"
#include "common/model/config.h"
#include "common/model/weights.h"

namespace kvcache {

/// The rotation speed of each pair of numbers in a head, [head_dim / 2], in radians per position.
/// Source: Su et al., "RoFormer" (2021); the llama3 type: the Llama 3.1 release, as in Hugging Face
/// transformers.
[[nodiscard]] std::vector<float> rope_inverse_frequencies(const ModelConfig& config);

/// Weights, a backend, and the buffers of one pass.
class Transformer {
 public:
  /// @param weights  of this configuration, in the memory of the backend's device
  Transformer(const ModelConfig& config, Weights weights, std::unique_ptr<Backend> backend);
  /// As above, with other rotation speeds than the configuration's, [head_dim / 2].
  Transformer(ModelConfig config, Weights weights, std::unique_ptr<Backend> backend,
              std::vector<float> inverse_frequencies);

  /// The configuration that the model was made from.
  const ModelConfig& config() const { return config_; }
  /// Bytes of weights that a pass reads, whatever its number of rows: all but the embedding, which counts
  /// only if it is the head too.
  std::int64_t weight_bytes_of_a_pass() const;

  /// Runs `plan` through all layers. Every row attends, through `store`, to its own position and all earlier
  /// ones of its sequence. The logits [plan.logits_rows, vocab] stay on the device until the next call.
  void forward(const PassPlan& plan, KvStore& store);
  /// Chooses token ids from the logits of the last pass; a pick's `row` is an index into the plan's
  /// logits_rows.
  [[nodiscard]] std::vector<Picked> pick(std::span<const Pick> picks) {
    return backend_->pick(logits_, picks);
  }
  /// The logits of the last pass, row by row, [plan.logits_rows * vocab].
  [[nodiscard]] std::vector<float> logits();

 private:
  void layer(std::int64_t number, KvStore& store);

  ModelConfig config_;
  Weights weights_;
  std::unique_ptr<Backend> backend_;
  std::vector<float> inverse_frequencies_;  // [head_dim / 2]
  Rotation rotation_;                       // of the pass
  Matrix hidden_;                           // [tokens, hidden] the rows that blocks add to
  Matrix q_, k_, v_, attended_;  // [tokens, heads * head_dim], k and v [tokens, kv_heads * head_dim]
  Matrix activated_;             // [tokens, intermediate]
  Matrix last_;                  // [logits_rows, hidden]
  Matrix logits_;                // [logits_rows, vocab]
};

}  // namespace kvcache
