/// @file
/// The transformer that a checkpoint's config.json describes: its sizes, and the choices that change the
/// result. Chapter: step 1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvcache {

/// How positions turn into rotation angles.
struct RopeConfig {
  /// How the rotation is slowed for contexts longer than the model was first trained for.
  enum class Type : std::uint8_t {
    default_,  ///< not at all
    linear,    ///< all pairs by `factor`
    llama3,    ///< slow pairs by `factor`, fast pairs not, those between in part
  };
  Type type = Type::default_;                      ///< "rope_type" of the configuration
  double theta = 10000.0;                          ///< base of the rotation speeds
  double factor = 1.0;                             ///< linear, llama3
  double low_freq_factor = 1.0;                    ///< llama3
  double high_freq_factor = 4.0;                   ///< llama3
  double original_max_position_embeddings = 8192;  ///< llama3
};

/// The sizes of a Llama, Mistral, Qwen2 or Qwen3 transformer, all positive and consistent once parsed.
struct ModelConfig {
  std::string architecture;                  ///< as config.json has it: "LlamaForCausalLM", ...
  std::int64_t vocab_size = 0;               ///< rows of the embedding, ids that logits are computed for
  std::int64_t hidden_size = 0;              ///< numbers that stand for a token between layers
  std::int64_t intermediate_size = 0;        ///< numbers inside the MLP
  std::int64_t layers = 0;                   ///< each an attention block and an MLP block
  std::int64_t heads = 0;                    ///< query heads
  std::int64_t kv_heads = 0;                 ///< divides heads
  std::int64_t head_dim = 0;                 ///< even
  std::int64_t max_position_embeddings = 0;  ///< the context: most tokens of prompt and output together
  std::int64_t sliding_window = 0;   ///< the window that shortened the context, in tokens; 0: none did
  float rms_norm_eps = 1e-6F;        ///< added to the mean square before its root is taken
  bool tie_word_embeddings = false;  ///< the head is the embedding table
  bool qkv_bias = false;             ///< q, k and v projections have a bias
  bool output_bias = false;          ///< the attention's output projection has a bias (Llama attention_bias)
  bool mlp_bias = false;             ///< gate, up and down projections have a bias
  bool qk_norm = false;              ///< per-head RMSNorm of q and k before RoPE (Qwen3)
  RopeConfig rope;                   ///< how positions rotate q and k
  /// End-of-sequence ids, sorted: those of generation_config.json where it exists, else those of config.json.
  /// Empty: none.
  std::vector<std::int32_t> eos_ids;

  /// "the model's context is 512", and the reason if it is a sliding window.
  std::string context_sentence() const;

  /// Numbers of K, or of V, of one token in one layer.
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  /// Bytes that K and V of one token take over all layers, for numbers of `bytes_per_number`.
  std::int64_t kv_bytes_per_token(std::int64_t bytes_per_number) const {
    return layers * 2 * kv_width() * bytes_per_number;
  }
};

/// Reads `folder`/config.json and, where it exists, `folder`/generation_config.json.
/// @throws InputError naming file, field and value: a missing or unreadable file, JSON that is not an object,
/// a missing or impossible size, or a field that asks for something this project does not do.
[[nodiscard]] ModelConfig read_config(const std::filesystem::path& folder);

/// The configuration of a named shape for `--random-weights`: "fairytale", "qwen3-0.6b", "tinyllama-1.1b",
/// "llama-3.2-1b", ...; 32,768 positions, no end-of-sequence id.
/// @throws InputError that lists the names, for an unknown one.
[[nodiscard]] ModelConfig named_config(const std::string& name);

}  // namespace kvcache
