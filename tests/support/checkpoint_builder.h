/// @file
/// Makes small checkpoints for tests: a configuration, random tensors under the names that transformers uses,
/// and the files. It shares no code with the loader, so the two must agree on names, shapes and layout. A
/// test changes what it wants (`config["head_dim"] = 32`, `tensors.erase(...)`) between making and saving.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/stored_number.h"
#include "tests/support/files.h"

namespace kvcache::test {

/// A safetensors file with any header and data, right or wrong.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes.append(header).append(data);
}

/// A tensor to be stored: `values` rounded to `dtype` ("F32", "F16", "BF16"), or `raw` for other types.
struct TestTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
  std::string raw;

  std::string bytes() const {
    if (!raw.empty()) return raw;
    const DType type = dtype == "F32" ? DType::f32 : dtype == "F16" ? DType::f16 : DType::bf16;
    const auto size = static_cast<std::size_t>(size_of(type));
    std::string stored(values.size() * size, '\0');
    for (std::size_t index = 0; index < values.size(); ++index)
      write_number(type, values[index], reinterpret_cast<std::byte*>(stored.data() + index * size));
    return stored;
  }
};

using TestTensors = std::map<std::string, TestTensor>;

/// A valid file of `tensors`, in the order of their names. `padding` spaces after the header give the data
/// any alignment.
inline std::string safetensors_bytes(const TestTensors& tensors, std::size_t padding = 0,
                                     const nlohmann::json& metadata = {{"format", "pt"}}) {
  nlohmann::json header = {{"__metadata__", metadata}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = data.size();
    data += tensor.bytes();
    header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  return safetensors_bytes(header.dump() + std::string(padding, ' '), data);
}

/// A whole checkpoint in memory.
class TestCheckpoint {
 public:
  nlohmann::json config;             ///< config.json
  nlohmann::json generation_config;  ///< generation_config.json; null: none is written
  TestTensors tensors;

  /// Two small layers of the family: 4 query heads, 2 K/V heads of 8, hidden 32. `changes` are merged into
  /// the configuration before tensors are made, so `{{"head_dim", 16}}` or `{{"tie_word_embeddings", true}}`
  /// give a consistent checkpoint. Numbers have a standard deviation of 1/sqrt(in), norms lie around 1.
  explicit TestCheckpoint(const std::string& architecture, const nlohmann::json& changes = {},
                          const std::string& dtype = "F32", std::uint64_t seed = 1)
      : dtype_(dtype), random_(seed) {
    config = {{"architectures", {architecture}},
              {"model_type", architecture == "LlamaForCausalLM"     ? "llama"
                             : architecture == "MistralForCausalLM" ? "mistral"
                             : architecture == "Qwen2ForCausalLM"   ? "qwen2"
                                                                    : "qwen3"},
              {"vocab_size", 96},
              {"hidden_size", 32},
              {"intermediate_size", 48},
              {"num_hidden_layers", 2},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"head_dim", 8},
              {"max_position_embeddings", 128},
              {"rms_norm_eps", 1e-6},
              {"rope_theta", 10000.0},
              {"tie_word_embeddings", false},
              {"eos_token_id", nullptr}};
    if (!changes.is_null()) config.update(changes);
    make_tensors(architecture);
  }

  /// Stores every tensor as `dtype` from now on, or only those whose name contains `part`.
  void store_as(const std::string& dtype, std::string_view part = "") {
    for (auto& [name, tensor] : tensors)
      if (name.find(part) != std::string::npos) tensor.dtype = dtype;
  }

  /// Writes config.json, generation_config.json and model.safetensors.
  void save(const std::filesystem::path& folder, std::size_t padding = 0) const {
    save_configs(folder);
    write_file(folder / "model.safetensors", safetensors_bytes(tensors, padding));
  }

  static std::string shard_name(std::size_t shard, std::size_t shards) {
    const auto five = [](std::size_t number) { return std::to_string(100000 + number).substr(1); };
    return "model-" + five(shard + 1) + "-of-" + five(shards) + ".safetensors";
  }

  /// Writes the checkpoint as `shards` files with an index. In the order of their names, the tensors go to
  /// the files in turn. Returns the index.
  nlohmann::json save_sharded(const std::filesystem::path& folder, std::size_t shards) const {
    save_configs(folder);
    std::vector<TestTensors> parts(shards);
    nlohmann::json map = nlohmann::json::object();
    std::size_t shard = 0;
    for (const auto& [name, tensor] : tensors) {
      map[name] = shard_name(shard, shards);
      parts[shard][name] = tensor;
      shard = (shard + 1) % shards;
    }
    for (shard = 0; shard < shards; ++shard)
      write_file(folder / shard_name(shard, shards), safetensors_bytes(parts[shard]));
    nlohmann::json index = {{"metadata", nlohmann::json::object()}, {"weight_map", map}};
    write_file(folder / "model.safetensors.index.json", index.dump(1));
    return index;
  }

 private:
  void save_configs(const std::filesystem::path& folder) const {
    write_file(folder / "config.json", config.dump(1));
    if (!generation_config.is_null())
      write_file(folder / "generation_config.json", generation_config.dump(1));
  }

  std::int64_t size(const char* field) const { return config.at(field).get<std::int64_t>(); }
  bool flag(const char* field) const { return config.value(field, false); }

  void add(const std::string& name, const std::vector<std::int64_t>& shape, float mean, double deviation) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    std::uniform_real_distribution<double> uniform(-1.732, 1.732);
    TestTensor tensor{dtype_, shape, {}, {}};
    for (std::int64_t index = 0; index < count; ++index)
      tensor.values.push_back(mean + static_cast<float>(deviation * uniform(random_)));
    tensors[name] = std::move(tensor);
  }
  void add_norm(const std::string& name, std::int64_t n) { add(name + ".weight", {n}, 1.0F, 0.2); }
  void add_linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(in));
    add(name + ".weight", {out, in}, 0.0F, deviation);
    if (bias) add(name + ".bias", {out}, 0.0F, deviation);
  }

  void make_tensors(const std::string& architecture) {
    const std::int64_t hidden = size("hidden_size");
    const std::int64_t inner = size("intermediate_size");
    const std::int64_t q = size("num_attention_heads") * size("head_dim");
    const std::int64_t kv = size("num_key_value_heads") * size("head_dim");
    const bool qwen2 = architecture == "Qwen2ForCausalLM";
    const bool qwen3 = architecture == "Qwen3ForCausalLM";
    const bool qkv_bias = qwen2 || flag("attention_bias");
    const bool o_bias = !qwen2 && flag("attention_bias");

    add_linear("model.embed_tokens", size("vocab_size"), hidden, false);
    for (std::int64_t layer = 0; layer < size("num_hidden_layers"); ++layer) {
      const std::string at = "model.layers." + std::to_string(layer) + ".";
      add_norm(at + "input_layernorm", hidden);
      add_linear(at + "self_attn.q_proj", q, hidden, qkv_bias);
      add_linear(at + "self_attn.k_proj", kv, hidden, qkv_bias);
      add_linear(at + "self_attn.v_proj", kv, hidden, qkv_bias);
      add_linear(at + "self_attn.o_proj", hidden, q, o_bias);
      if (qwen3) add_norm(at + "self_attn.q_norm", size("head_dim"));
      if (qwen3) add_norm(at + "self_attn.k_norm", size("head_dim"));
      add_norm(at + "post_attention_layernorm", hidden);
      add_linear(at + "mlp.gate_proj", inner, hidden, flag("mlp_bias"));
      add_linear(at + "mlp.up_proj", inner, hidden, flag("mlp_bias"));
      add_linear(at + "mlp.down_proj", hidden, inner, flag("mlp_bias"));
    }
    add_norm("model.norm", hidden);
    if (!flag("tie_word_embeddings")) add_linear("lm_head", size("vocab_size"), hidden, false);
  }

  std::string dtype_;
  std::mt19937_64 random_;
};

/// The message of the Error that `action` throws; "" if it throws nothing. Other exceptions pass.
template <typename Error, typename Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace kvcache::test
