/// @file
/// Reads a checkpoint's config.json as transformers does. A field that changes the result is either obeyed or
/// refused by name, never ignored. Chapter: step 1.
///
/// For an absent or null field the default is that of transformers for the family (configuration_llama.py,
/// configuration_mistral.py, configuration_qwen2.py, configuration_qwen3.py of transformers 5). Fields that
/// matter only in training (dropout, initializer_range) and fields that transformers no longer uses
/// (pretraining_tp) are not read.
#include "common/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "common/base/input_file.h"
#include "common/base/json_file.h"
#include "common/model/sampling_weight.h"

namespace kvcache {
namespace {

using nlohmann::json;

// Far above any real model, and low enough that products of these fit 64 bits.
constexpr std::int64_t max_width = std::int64_t{1} << 24;  ///< hidden, intermediate, heads * head_dim
constexpr std::int64_t max_count = std::int64_t{1} << 14;  ///< layers, heads, head_dim
constexpr std::int64_t max_int32 = std::numeric_limits<std::int32_t>::max();
constexpr std::uintmax_t max_config_bytes = 4'000'000;  ///< real ones have a few thousand

/// Reads the fields of one JSON object; its errors name the file and the field.
class Fields {
 public:
  /// `prefix` leads to the object inside the file: "" or "rope_scaling.".
  Fields(json object, std::string file, std::string prefix = "")
      : object_(std::move(object)), file_(std::move(file)), prefix_(std::move(prefix)) {
    if (!object_.is_object())
      throw InputError(fmt::format("{}: {} is {}; it must be an object", file_,
                                   prefix_.empty() ? "the content" : prefix_.substr(0, prefix_.size() - 1),
                                   shown(object_)));
  }

  const json& object() const { return object_; }

  /// The field's value; nullptr for an absent or null field, which transformers treats alike.
  const json* find(std::string_view name) const {
    const auto field = object_.find(name);
    return field == object_.end() || field->is_null() ? nullptr : &*field;
  }

  Fields nested(std::string_view name) const {
    return {*find(name), file_, fmt::format("{}{}.", prefix_, name)};
  }

  /// Throws "<file>: <field> is <value>; <what is right>".
  [[noreturn]] void refuse(std::string_view name, std::string_view what_is_right) const {
    throw InputError(fmt::format("{}: {}{} is {}; {}", file_, prefix_, name,
                                 shown(object_.at(std::string(name))), what_is_right));
  }

  /// Throws "<file>: <problem>".
  [[noreturn]] void fail(std::string_view problem) const {
    throw InputError(fmt::format("{}: {}", file_, problem));
  }

  /// A whole number from 1 to `largest`.
  std::int64_t size(std::string_view name, std::int64_t largest) const {
    const json* value = find(name);
    if (value == nullptr) fail(fmt::format("{}{} is missing", prefix_, name));
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(largest))
      refuse(name, fmt::format("it must be a whole number from 1 to {}", largest));
    return value->get<std::int64_t>();
  }
  std::int64_t size_or(std::string_view name, std::int64_t largest, std::int64_t absent) const {
    return find(name) == nullptr ? absent : size(name, largest);
  }

  /// A number above zero. JSON has no infinity or NaN; the parser refuses what double cannot hold.
  double positive(std::string_view name) const {
    const json* value = find(name);
    if (value == nullptr) fail(fmt::format("{}{} is missing", prefix_, name));
    if (!value->is_number() || !(value->get<double>() > 0.0)) refuse(name, "it must be a number above 0");
    return value->get<double>();
  }
  /// A number of RoPE. Real files have 1 to 1e9 or so; beyond the bounds here float32 does not hold the
  /// angles.
  double rope_number(std::string_view name) const {
    const double number = positive(name);
    if (number < 1e-6 || number > 1e30) refuse(name, "it must be a number from 1e-6 to 1e30");
    return number;
  }
  double rope_number_or(std::string_view name, double absent) const {
    return find(name) == nullptr ? absent : rope_number(name);
  }
  double positive_or(std::string_view name, double absent) const {
    return find(name) == nullptr ? absent : positive(name);
  }

  bool flag(std::string_view name) const {
    const json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse(name, "it must be true or false");
    return value->get<bool>();
  }

  /// "" where absent.
  std::string text(std::string_view name) const {
    const json* value = find(name);
    if (value == nullptr) return "";
    if (!value->is_string()) refuse(name, "it must be a string");
    return value->get<std::string>();
  }

 private:
  json object_;
  std::string file_;
  std::string prefix_;
};

/// How the families differ besides their tensors. A default applies where the file lacks the field.
struct Family {
  std::string_view architecture;
  std::string_view model_type;
  std::int64_t default_positions;  ///< max_position_embeddings
  std::int64_t default_kv_heads;   ///< num_key_value_heads; 0: as many as num_attention_heads
  std::int64_t default_window;     ///< sliding_window; 0: none
  bool has_window_switch;          ///< the window counts only with `use_sliding_window`
};
constexpr std::array<Family, 4> families{{{"LlamaForCausalLM", "llama", 2048, 0, 0, false},
                                          {"MistralForCausalLM", "mistral", 131072, 8, 4096, false},
                                          {"Qwen2ForCausalLM", "qwen2", 32768, 32, 4096, true},
                                          {"Qwen3ForCausalLM", "qwen3", 32768, 32, 4096, true}}};

bool is_gguf(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::string magic(4, '\0');
  std::ifstream(path, std::ios::binary).read(magic.data(), 4);
  std::string extension = path.extension().string();
  for (char& letter : extension) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return magic == "GGUF" || extension == ".gguf";
}

bool holds_gguf(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  return !error &&
         std::any_of(begin(entries), end(entries), [](const auto& entry) { return is_gguf(entry.path()); });
}

void require_checkpoint_folder(const std::filesystem::path& folder) {
  constexpr std::string_view advice = "give the folder of a Hugging Face checkpoint";
  constexpr std::string_view no_gguf =
      "GGUF is not read; give the folder of the Hugging Face checkpoint that it was made from, with "
      "config.json and model.safetensors";
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (!std::filesystem::exists(status))
    throw InputError(fmt::format(
        "{}: {}; {}", folder.string(),
        status.type() == std::filesystem::file_type::not_found ? "no such folder" : error.message(), advice));
  if (!std::filesystem::is_directory(status))
    throw InputError(
        fmt::format("{} is not a folder; {}", folder.string(), is_gguf(folder) ? no_gguf : advice));
  if (!has_entry(folder / "config.json"))
    throw InputError(
        fmt::format("{} holds no config.json; {}", folder.string(), holds_gguf(folder) ? no_gguf : advice));
}

/// `architectures` and `model_type` must name the same family. One of them may be absent.
const Family& family_of(const Fields& fields) {
  constexpr std::string_view supported =
      "supported are LlamaForCausalLM (llama), MistralForCausalLM (mistral), Qwen2ForCausalLM (qwen2) and "
      "Qwen3ForCausalLM (qwen3)";
  const json* architectures = fields.find("architectures");
  const std::string model_type = fields.text("model_type");
  if (architectures == nullptr && model_type.empty())
    fields.fail(fmt::format("architectures and model_type are missing; {}", supported));

  for (const Family& family : families) {
    const bool named = architectures == nullptr || *architectures == json::array({family.architecture});
    const bool typed = model_type.empty() || model_type == family.model_type;
    if (named && typed) return family;
    if (named && architectures != nullptr) fields.refuse("model_type", supported);
  }
  fields.refuse(architectures != nullptr ? "architectures" : "model_type", supported);
}

/// A field that asks for something this project does not do, unless it has one of its harmless values.
struct Foreign {
  std::string_view field;
  json harmless;  ///< a list; absent and null are always harmless
};

/// The fields by which other families, and extensions of these four, change what the transformer computes.
std::vector<Foreign> foreign_fields(const Family& family) {
  const json nothing = json::array();
  const json off = {false};
  const json none = {0};
  const json one = {1};
  std::vector<Foreign> fields = {
      // weights stored in another form; transformers refuses an empty quantization_config too
      {"quantization_config", nothing},
      {"quantization", nothing},
      {"compression_config", nothing},
      // mixture of experts
      {"num_experts", none},
      {"num_local_experts", none},
      {"n_routed_experts", none},
      {"n_shared_experts", none},
      {"num_experts_per_tok", none},
      {"moe_intermediate_size", none},
      {"moe_num_experts", none},
      {"shared_expert_intermediate_size", none},
      // factors and caps on scores, residuals and logits
      {"logits_scaling", one},
      {"logit_scale", one},
      {"final_logit_softcapping", nothing},
      {"attn_logit_softcapping", nothing},
      {"embedding_multiplier", one},
      {"residual_multiplier", one},
      {"attention_multiplier", nothing},
      {"query_pre_attn_scalar", nothing},
      {"attn_temperature_tuning", {false, 0}},
      {"scale_emb", one},
      {"scale_depth", nothing},
      {"dim_model_base", nothing},
      {"clip_qkv", nothing},
      // another position code, or rotation of only some numbers of a head
      {"partial_rotary_factor", one},
      {"rotary_pct", one},
      {"rope_local_base_freq", nothing},
      {"rope_interleaved", off},
      {"no_rope_layers", nothing},
      {"no_rope_layer_interval", nothing},
      {"use_mrope", off},
      {"mrope_section", nothing},
      {"alibi", off},
      // attention other than causal attention over all earlier tokens
      {"attention_chunk_size", nothing},
      {"is_causal", {true}},
      {"use_bidirectional_attention", off},
      {"is_encoder_decoder", off},
      {"add_cross_attention", off},
      {"cross_attention_layers", nothing},
      // other layers
      {"use_qk_norm", {family.architecture == "Qwen3ForCausalLM"}},
      {"qk_layernorm", off},
      {"block_configs", nothing},
      {"pruned_heads", json::array({json::object()})},
      {"text_config", nothing},
      {"vision_config", nothing},
      {"audio_config", nothing},
      {"hidden_act", {"silu", "swish"}},
  };
  if (family.architecture != "LlamaForCausalLM") fields.push_back({"mlp_bias", off});
  return fields;
}

void refuse_foreign_features(const Fields& fields, const Family& family) {
  for (const Foreign& foreign : foreign_fields(family)) {
    const json* value = fields.find(foreign.field);
    if (value == nullptr ||
        std::find(foreign.harmless.begin(), foreign.harmless.end(), *value) != foreign.harmless.end())
      continue;
    fields.refuse(foreign.field, foreign.harmless.empty()
                                     ? "this is not supported"
                                     : fmt::format("supported: {}", shown(foreign.harmless)));
  }
}

/// Whether any layer has Qwen's window: those from `max_window_layers` on have it.
bool window_has_layers(const Fields& fields, std::int64_t layers) {
  constexpr std::int64_t absent = 28;
  const json* full_layers = fields.find("max_window_layers");
  if (full_layers == nullptr) return layers > absent;
  return !full_layers->is_number() || full_layers->get<double>() < static_cast<double>(layers);
}

/// Whether `layer_types` has a layer with a window; nothing if the field is absent.
/// @throws InputError for layers of other kinds
std::optional<bool> windows_in_layer_types(const Fields& fields, std::int64_t layers) {
  const json* types = fields.find("layer_types");
  if (types == nullptr) return std::nullopt;
  const auto full = [](const json& type) { return type == "full_attention" || type == "attention"; };
  const auto windowed = [](const json& type) { return type == "sliding_attention"; };
  if (!types->is_array() || types->size() != static_cast<std::size_t>(layers) ||
      !std::all_of(types->begin(), types->end(),
                   [&](const json& type) { return full(type) || windowed(type); }))
    fields.refuse("layer_types",
                  fmt::format("supported: \"full_attention\" or \"sliding_attention\" for each "
                              "of the {} layers",
                              layers));
  return std::any_of(types->begin(), types->end(), windowed);
}

/// Tokens that a layer with a window attends to, the newest included; 0 if no layer has a window.
/// - Mistral: every layer has it.
/// - Qwen: only with `use_sliding_window`, the layers that `layer_types` lists, or else those from
/// `max_window_layers` on.
/// - Llama: its attention has none, but transformers' own cache obeys the field there too.
std::int64_t read_sliding_window(const Fields& fields, const Family& family, std::int64_t layers) {
  const std::optional<bool> listed = windows_in_layer_types(fields, layers);
  const bool on = !family.has_window_switch || fields.flag("use_sliding_window");
  // An absent field means the default here, and null means no window.
  const bool null = fields.object().contains("sliding_window") && fields.find("sliding_window") == nullptr;
  const std::int64_t window =
      on && !null ? fields.size_or("sliding_window", max_int32, family.default_window) : 0;
  if (listed.value_or(false) && window == 0)
    fields.refuse("layer_types", "there is no sliding_window for these layers");
  if (family.architecture == "MistralForCausalLM") return window;
  const bool has_layers = listed.value_or(!family.has_window_switch || window_has_layers(fields, layers));
  return has_layers ? window : 0;
}

/// A window of w tokens hides nothing from a sequence of w tokens. So up to w tokens the model runs as one
/// without a window, and w becomes its context: longer sequences are refused.
void shorten_context_to_window(std::int64_t window, ModelConfig& config) {
  if (window == 0 || window >= config.max_position_embeddings) return;
  config.max_position_embeddings = window;
  config.sliding_window = window;
}

/// The frequency bands of Llama 3.1. `outer` holds `inner`. Both may have `original_max_position_embeddings`,
/// and versions of transformers disagree which of them counts, so two that differ are refused.
void read_llama3_bands(const Fields& outer, const Fields& inner, std::int64_t max_positions,
                       RopeConfig& rope) {
  rope.factor = inner.rope_number("factor");
  rope.low_freq_factor = inner.rope_number("low_freq_factor");
  rope.high_freq_factor = inner.rope_number("high_freq_factor");
  if (static_cast<float>(rope.high_freq_factor) <= static_cast<float>(rope.low_freq_factor))
    inner.refuse("high_freq_factor",
                 fmt::format("it must be above low_freq_factor, {}", rope.low_freq_factor));

  constexpr std::string_view trained = "original_max_position_embeddings";
  const std::int64_t outside = outer.size_or(trained, max_int32, max_positions);
  const std::int64_t inside = inner.size_or(trained, max_int32, outside);
  if (outer.find(trained) != nullptr && inside != outside)
    inner.refuse(trained, fmt::format("next to it, outside, it is {}", outside));
  rope.original_max_position_embeddings = static_cast<double>(inside);
}

/// The value of `rope_type` or, in older files, of `type`.
std::string rope_type(const Fields& inner) {
  const bool has_new = inner.find("rope_type") != nullptr;
  const bool has_old = inner.find("type") != nullptr;
  if (has_new && has_old && inner.text("type") != inner.text("rope_type"))
    inner.refuse("type", fmt::format("rope_type is {}", shown(inner.text("rope_type"))));
  std::string type = has_new ? inner.text("rope_type") : has_old ? inner.text("type") : "default";
  if (type != "default" && type != "linear" && type != "llama3")
    inner.refuse(has_new ? "rope_type" : "type", "supported: \"default\", \"linear\", \"llama3\"");
  return type;
}

/// The rotary embedding from `rope_scaling` (transformers 4, next to `rope_theta`) or `rope_parameters`
/// (transformers 5, `rope_theta` inside). As in transformers, a filled `rope_scaling` wins over
/// `rope_parameters`, and a theta inside wins over one outside.
RopeConfig read_rope(const Fields& fields, std::int64_t max_positions) {
  RopeConfig rope;
  rope.theta = fields.rope_number_or("rope_theta", 10000.0);

  const json* scaling = fields.find("rope_scaling");
  const bool scaled = scaling != nullptr && *scaling != json::object();
  const std::string_view name = scaled ? "rope_scaling" : "rope_parameters";
  if (fields.find(name) == nullptr) return rope;
  const Fields inner = fields.nested(name);
  rope.theta = inner.rope_number_or("rope_theta", rope.theta);

  std::set<std::string_view> known = {"rope_type", "type", "rope_theta", "partial_rotary_factor",
                                      "original_max_position_embeddings"};
  const std::string type = rope_type(inner);
  if (type == "linear") {
    rope.type = RopeConfig::Type::linear;
    rope.factor = inner.rope_number("factor");
    known.insert("factor");
  } else if (type == "llama3") {
    rope.type = RopeConfig::Type::llama3;
    read_llama3_bands(fields, inner, max_positions, rope);
    known.insert({"factor", "low_freq_factor", "high_freq_factor"});
  }
  // transformers reads none of a scaling's numbers where the type is "default" by name. Without a name its
  // versions disagree whether that is an error.
  const bool by_name = inner.find("rope_type") != nullptr || inner.find("type") != nullptr;
  const bool unscaled = type == "default" && by_name;
  for (const auto& [field, value] : inner.object().items())
    if (!value.is_null() && !known.contains(field) && (!unscaled || value.is_object()))
      inner.refuse(field, fmt::format("rope type \"{}\" has no such field here", type));
  if (inner.positive_or("partial_rotary_factor", 1.0) != 1.0)
    inner.refuse("partial_rotary_factor", "only 1 is supported");
  return rope;
}

/// Whether the file exists and is empty. For a file that cannot be looked at, the answer is no, and its
/// reader reports the error.
bool has_no_byte(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && std::filesystem::file_size(path, error) == 0;
}

/// Adds the ids of one file's `eos_token_id`, a number or a list of numbers.
void add_eos_ids(const Fields& fields, std::set<std::int32_t>& ids) {
  const json* value = fields.find("eos_token_id");
  if (value == nullptr) return;
  for (const json& id : value->is_array() ? *value : json::array({*value})) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > static_cast<std::uint64_t>(max_int32))
      fields.refuse("eos_token_id",
                    fmt::format("it must be a token id, 0 to {}, or a list of token ids", max_int32));
    ids.insert(id.get<std::int32_t>());
  }
}

/// The end-of-sequence ids of generation_config.json where it exists, even if it names none, as in
/// transformers' `generate`; else those of config.json. A generation_config.json without a byte counts as
/// absent. transformers takes a damaged one for absent; here it is refused, because it may have held the only
/// end id.
std::vector<std::int32_t> read_eos_ids(const std::filesystem::path& folder, const Fields& config,
                                       const Family& family) {
  std::set<std::int32_t> ids;
  add_eos_ids(config, ids);
  const bool has_default =
      family.architecture == "LlamaForCausalLM" || family.architecture == "MistralForCausalLM";
  if (has_default && !config.object().contains("eos_token_id"))
    ids.insert(2);  // LlamaConfig's and MistralConfig's
  const std::filesystem::path path = folder / "generation_config.json";
  if (has_entry(path) && !has_no_byte(path)) {
    ids.clear();
    add_eos_ids(Fields(read_json_file(path, max_config_bytes), path.string()), ids);
  }
  return {ids.begin(), ids.end()};
}

void read_sizes(const Fields& fields, const Family& family, ModelConfig& config) {
  config.vocab_size = fields.size("vocab_size", max_vocab_size);
  config.hidden_size = fields.size("hidden_size", max_width);
  config.intermediate_size = fields.size("intermediate_size", max_width);
  config.layers = fields.size("num_hidden_layers", max_count);
  config.heads = fields.size("num_attention_heads", max_count);
  // An absent field means the family's default, and null means one KV head for each query head.
  const bool absent = !fields.object().contains("num_key_value_heads");
  const std::int64_t default_kv_heads =
      absent && family.default_kv_heads > 0 ? family.default_kv_heads : config.heads;
  config.kv_heads = fields.size_or("num_key_value_heads", max_count, default_kv_heads);
  config.max_position_embeddings =
      fields.size_or("max_position_embeddings", max_int32, family.default_positions);

  if (absent && config.heads % config.kv_heads != 0)
    fields.fail(fmt::format(
        "num_key_value_heads is missing; its default, {}, does not divide num_attention_heads, {}",
        config.kv_heads, config.heads));
  if (config.heads % config.kv_heads != 0)
    fields.refuse("num_key_value_heads", fmt::format("it must divide num_attention_heads, {}", config.heads));
  // Qwen3Config does not derive head_dim: its own default is 128.
  const bool derived = family.architecture != "Qwen3ForCausalLM" || fields.object().contains("head_dim");
  if (fields.find("head_dim") == nullptr && derived && config.hidden_size % config.heads != 0)
    fields.refuse(
        "hidden_size",
        fmt::format("without head_dim it must be a multiple of num_attention_heads, {}", config.heads));
  config.head_dim = fields.size_or("head_dim", max_count, derived ? config.hidden_size / config.heads : 128);
  if (config.head_dim % 2 != 0)
    fields.fail(
        fmt::format("head_dim is {}; it must be even, rotary embedding turns pairs", config.head_dim));
  if (config.heads * config.head_dim > max_width)
    fields.fail(fmt::format("num_attention_heads {} times head_dim {} is more than {}", config.heads,
                            config.head_dim, max_width));
  constexpr std::int64_t largest_number = 4;
  if (config.max_position_embeddings >
      std::numeric_limits<std::int64_t>::max() / config.kv_bytes_per_token(largest_number))
    fields.fail(
        fmt::format("the keys and values of max_position_embeddings {} tokens are more than 2^63 bytes",
                    config.max_position_embeddings));
}

void read_biases(const Fields& fields, const Family& family, ModelConfig& config) {
  // transformers does not read this field for two families: Qwen2's q, k and v always have a bias, Mistral's
  // never.
  const bool qwen2 = family.architecture == "Qwen2ForCausalLM";
  const bool asked = fields.flag("attention_bias") && !qwen2 && family.architecture != "MistralForCausalLM";
  config.qkv_bias = qwen2 || asked;
  config.output_bias = asked;
  config.mlp_bias = fields.flag("mlp_bias");
  config.qk_norm = family.architecture == "Qwen3ForCausalLM";
}

float read_epsilon(const Fields& fields) {
  const auto epsilon = static_cast<float>(fields.positive_or("rms_norm_eps", 1e-6));
  if (!(epsilon > 0.0F) || !std::isfinite(epsilon))
    fields.refuse("rms_norm_eps", "it must be a number above 0 that float32 can hold");
  return epsilon;
}

/// The shape of a model that can be asked for by name.
struct Shape {
  std::string_view name;
  std::string_view architecture;
  std::int64_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocab;
  float epsilon;
  bool tied;
  RopeConfig rope;
};

RopeConfig plain_rope(double theta) {
  return {RopeConfig::Type::default_, theta, 1.0, 1.0, 4.0, 8192};
}
RopeConfig llama3_rope(double factor) {
  return {RopeConfig::Type::llama3, 500000.0, factor, 1.0, 4.0, 8192};
}

/// Taken from the config.json that each model was published with. "fairytale" is this project's model. "tiny"
/// is made up: one layer, for runs that test bookkeeping.
std::vector<Shape> shapes() {
  constexpr std::string_view llama = "LlamaForCausalLM";
  constexpr std::string_view qwen2 = "Qwen2ForCausalLM";
  constexpr std::string_view qwen3 = "Qwen3ForCausalLM";
  constexpr bool tied = true;
  return {
      // name, architecture, layers, hidden, heads, KV heads, head_dim, intermediate, vocab, epsilon, tied,
      // RoPE
      {"tiny", qwen3, 1, 64, 2, 1, 32, 64, 4096, 1e-6F, tied, plain_rope(65536)},
      {"fairytale", qwen3, 8, 256, 8, 4, 32, 768, 4096, 1e-6F, tied, plain_rope(65536)},
      {"qwen3-0.6b", qwen3, 28, 1024, 16, 8, 128, 3072, 151936, 1e-6F, tied, plain_rope(1e6)},
      {"qwen3-1.7b", qwen3, 28, 2048, 16, 8, 128, 6144, 151936, 1e-6F, tied, plain_rope(1e6)},
      {"qwen3-4b", qwen3, 36, 2560, 32, 8, 128, 9728, 151936, 1e-6F, tied, plain_rope(1e6)},
      {"qwen3-8b", qwen3, 36, 4096, 32, 8, 128, 12288, 151936, 1e-6F, !tied, plain_rope(1e6)},
      {"qwen2.5-0.5b", qwen2, 24, 896, 14, 2, 64, 4864, 151936, 1e-6F, tied, plain_rope(1e6)},
      {"qwen2.5-1.5b", qwen2, 28, 1536, 12, 2, 128, 8960, 151936, 1e-6F, tied, plain_rope(1e6)},
      {"smollm2-135m", llama, 30, 576, 9, 3, 64, 1536, 49152, 1e-5F, tied, plain_rope(1e5)},
      {"tinyllama-1.1b", llama, 22, 2048, 32, 4, 64, 5632, 32000, 1e-5F, !tied, plain_rope(10000)},
      {"llama-3.2-1b", llama, 16, 2048, 32, 8, 64, 8192, 128256, 1e-5F, tied, llama3_rope(32)},
      {"llama-3.2-3b", llama, 28, 3072, 24, 8, 128, 8192, 128256, 1e-5F, tied, llama3_rope(32)},
      {"llama-3.1-8b", llama, 32, 4096, 32, 8, 128, 14336, 128256, 1e-5F, !tied, llama3_rope(8)},
  };
}

}  // namespace

std::string ModelConfig::context_sentence() const {
  const std::string sentence = fmt::format("the model's context is {}", max_position_embeddings);
  return sliding_window == 0 ? sentence
                             : sentence + ", its sliding_window, beyond which its attention is not supported";
}

ModelConfig read_config(const std::filesystem::path& folder) {
  require_checkpoint_folder(folder);
  const std::filesystem::path path = folder / "config.json";
  const Fields fields(read_json_file(path, max_config_bytes), path.string());
  const Family& family = family_of(fields);
  refuse_foreign_features(fields, family);

  ModelConfig config;
  config.architecture = family.architecture;
  read_sizes(fields, family, config);
  read_biases(fields, family, config);
  config.rms_norm_eps = read_epsilon(fields);
  config.tie_word_embeddings = fields.flag("tie_word_embeddings");
  config.rope = read_rope(fields, config.max_position_embeddings);
  config.eos_ids = read_eos_ids(folder, fields, family);
  shorten_context_to_window(read_sliding_window(fields, family, config.layers), config);
  return config;
}

ModelConfig named_config(const std::string& name) {
  std::string names;
  for (const Shape& shape : shapes()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", shape.name);
    if (shape.name != name) continue;
    ModelConfig config;
    config.architecture = shape.architecture;
    config.vocab_size = shape.vocab;
    config.hidden_size = shape.hidden;
    config.intermediate_size = shape.intermediate;
    config.layers = shape.layers;
    config.heads = shape.heads;
    config.kv_heads = shape.kv_heads;
    config.head_dim = shape.head_dim;
    config.max_position_embeddings = 32768;
    config.rms_norm_eps = shape.epsilon;
    config.tie_word_embeddings = shape.tied;
    config.qkv_bias = shape.architecture == "Qwen2ForCausalLM";
    config.qk_norm = shape.architecture == "Qwen3ForCausalLM";
    config.rope = shape.rope;
    return config;
  }
  throw InputError(fmt::format("no model shape is called {}; known are {}", shown(name), names));
}

}  // namespace kvcache
