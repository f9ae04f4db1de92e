/// @file
/// The transformer's weights, as views into a mapped checkpoint or into memory of this process. Chapter:
/// docs/transformer.md.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/matrix.h"
#include "common/model/config.h"

namespace kvcache {

class ThreadPool;

/// The weights of one layer.
struct LayerWeights {
  Weight attention_norm;  ///< [hidden]
  Projection q;           ///< [heads * head_dim, hidden]
  Projection k;           ///< [kv_heads * head_dim, hidden]
  Projection v;           ///< [kv_heads * head_dim, hidden]
  Weight q_norm;          ///< [head_dim], Qwen3 only
  Weight k_norm;          ///< [head_dim], Qwen3 only
  Projection o;           ///< [hidden, heads * head_dim]
  Weight mlp_norm;        ///< [hidden]
  Projection gate;        ///< [intermediate, hidden]
  Projection up;          ///< [intermediate, hidden]
  Projection down;        ///< [hidden, intermediate]
};

/// All weights of a model.
struct Weights {
  Weight embedding;                   ///< [vocab, hidden]
  std::vector<LayerWeights> layers;   ///< [layers]
  Weight final_norm;                  ///< [hidden]
  Weight lm_head;                     ///< [vocab, hidden]; the embedding itself if the head is tied
  std::shared_ptr<const void> owner;  ///< keeps the mapped files or buffers alive
};

/// Called now and then while weights load, with the share that is done, in [0, 1].
using LoadProgress = std::function<void(double)>;

/// Loads `folder`/model.safetensors or, where there is none, the shards that
/// `folder`/model.safetensors.index.json names.
///
/// With dtype f32 every weight stays in its stored type (F32, F16 or BF16, also mixed), and the arithmetic
/// widens it exactly. With f16 or bf16, weights of another type are rounded once, here.
///
/// As in transformers 5:
/// - The head of a tied model is its embedding. If the files hold both, each is used as stored. If they hold
/// one, it serves as both. An untied model must have both.
/// - A checkpoint of the base model, without "model." in its names, is read too.
/// - A bias that no layer stores is zero, whatever the configuration says.
/// A tensor that the configuration has no place for is an error, except stored rotation frequencies.
/// @param threads  that round weights; nullptr: one for each processor
/// @throws InputError naming file and tensor: one missing, unexpected, duplicated between shards, of the
/// wrong shape or of a type that is not a float type; quantised weights; and, for f16, a number beyond
/// 65,504.
/// @throws RunError when there is no memory for the converted weights.
[[nodiscard]] Weights load_weights(const std::filesystem::path& folder, const ModelConfig& config,
                                   DType dtype, const LoadProgress& progress = {},
                                   ThreadPool* threads = nullptr);

/// Seeded random weights of a configuration, in `dtype` (normal, standard deviation about 1/sqrt(in); norms
/// 1). They are the same on every machine and for any number of threads.
/// @param threads  that make them; nullptr: one for each processor
/// @throws RunError when there is no memory for them.
[[nodiscard]] Weights random_weights(const ModelConfig& config, DType dtype, std::uint64_t seed = 0,
                                     const LoadProgress& progress = {}, ThreadPool* threads = nullptr);

}  // namespace kvcache
