/// @file
/// Fills the table of weights, from a checkpoint or from a seed. Both use one list of parameters: the weights
/// that the configuration asks for, with their names and shapes. Chapter: docs/transformer.md.
#include "common/model/weights.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/error.h"
#include "common/base/json_file.h"
#include "common/base/stored_number.h"
#include "common/base/thread_pool.h"
#include "common/model/checkpoint.h"

namespace kvcache {
namespace {

/// A weight that the configuration asks for.
struct Parameter {
  std::string name;  ///< as transformers stores it
  Weight* weight;
  std::vector<std::int64_t> shape;  ///< [out, in] or [n]
  std::int64_t inputs;              ///< numbers that one output is a sum over; 0 for a norm
  std::int64_t count() const { return shape.size() == 2 ? shape[0] * shape[1] : shape[0]; }
};

/// Lists every weight of the model with its place in `weights`; makes the layers of `weights`.
class Parameters {
 public:
  /// @param own_head  whether the head is a weight of its own, not the embedding
  Parameters(const ModelConfig& config, bool own_head, Weights& weights) {
    const std::int64_t hidden = config.hidden_size;
    const std::int64_t q_size = config.heads * config.head_dim;
    const std::int64_t inner = config.intermediate_size;

    parameters_.push_back(
        {"model.embed_tokens.weight", &weights.embedding, {config.vocab_size, hidden}, hidden});
    weights.layers.resize(static_cast<std::size_t>(config.layers));
    for (std::size_t index = 0; index < weights.layers.size(); ++index) {
      LayerWeights& layer = weights.layers[index];
      const std::string prefix = fmt::format("model.layers.{}.", index);
      add_norm(prefix + "input_layernorm", layer.attention_norm, hidden);
      add_projection(prefix + "self_attn.q_proj", layer.q, q_size, hidden, config.qkv_bias);
      add_projection(prefix + "self_attn.k_proj", layer.k, config.kv_width(), hidden, config.qkv_bias);
      add_projection(prefix + "self_attn.v_proj", layer.v, config.kv_width(), hidden, config.qkv_bias);
      if (config.qk_norm) {
        add_norm(prefix + "self_attn.q_norm", layer.q_norm, config.head_dim);
        add_norm(prefix + "self_attn.k_norm", layer.k_norm, config.head_dim);
      }
      add_projection(prefix + "self_attn.o_proj", layer.o, hidden, q_size, config.output_bias);
      add_norm(prefix + "post_attention_layernorm", layer.mlp_norm, hidden);
      add_projection(prefix + "mlp.gate_proj", layer.gate, inner, hidden, config.mlp_bias);
      add_projection(prefix + "mlp.up_proj", layer.up, inner, hidden, config.mlp_bias);
      add_projection(prefix + "mlp.down_proj", layer.down, hidden, inner, config.mlp_bias);
    }
    add_norm("model.norm", weights.final_norm, hidden);
    if (own_head)
      parameters_.push_back({"lm_head.weight", &weights.lm_head, {config.vocab_size, hidden}, hidden});
  }

  /// Takes out the biases that no layer stores: they are zero. transformers does the same if config.json has
  /// `attention_bias` and the files have no bias for some projection. A bias that some layers store stays in
  /// the list, so it is reported as missing in the others.
  void drop_biases_of_no_layer(const std::function<bool(const std::string& name)>& is_stored) {
    constexpr std::string_view before_layer = "model.layers.";
    const auto within_layer = [&](const Parameter& parameter) {
      return parameter.name.substr(parameter.name.find('.', before_layer.size()) + 1);
    };
    std::set<std::string> somewhere;
    for (const Parameter& parameter : parameters_)
      if (is_stored(parameter.name)) somewhere.insert(within_layer(parameter));
    std::erase_if(parameters_, [&](const Parameter& parameter) {
      return parameter.name.ends_with(".bias") && !somewhere.contains(within_layer(parameter));
    });
  }

  std::vector<Parameter>::const_iterator begin() const { return parameters_.begin(); }
  std::vector<Parameter>::const_iterator end() const { return parameters_.end(); }

 private:
  void add_norm(const std::string& name, Weight& weight, std::int64_t size) {
    parameters_.push_back({name + ".weight", &weight, {size}, 0});
  }
  void add_projection(const std::string& name, Projection& projection, std::int64_t out, std::int64_t in,
                      bool bias) {
    parameters_.push_back({name + ".weight", &projection.weight, {out, in}, in});
    if (bias) parameters_.push_back({name + ".bias", &projection.bias, {out}, in});
  }

  std::vector<Parameter> parameters_;
};

void place(const Parameter& parameter, DType dtype, const std::byte* data) {
  const bool vector = parameter.shape.size() == 1;
  *parameter.weight = {dtype, vector ? 1 : parameter.shape[0], parameter.shape.back(), data};
}

/// Writable memory that many weights share; each begins at a multiple of 64 bytes.
class Buffer {
 public:
  static std::int64_t space_for(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

  /// Takes memory straight from the system, which clears a page only when it is written and reports a
  /// shortage as an error, which ends with the `remedy`.
  Buffer(std::int64_t bytes, std::string_view remedy) {
    const auto size = static_cast<std::size_t>(bytes);
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw RunError(fmt::format("no memory for the weights: {} bytes ({:.1f} GiB): {}; give {}", bytes,
                                 static_cast<double>(bytes) / (1 << 30), std::strerror(errno), remedy));
    ::madvise(memory, size, MADV_HUGEPAGE);  // a hint; with it, long rows cost fewer address translations
    owner_ = {static_cast<std::byte*>(memory), [size](std::byte* start) { ::munmap(start, size); }};
    next_ = owner_.get();
  }

  std::byte* take(std::int64_t bytes) { return std::exchange(next_, next_ + space_for(bytes)); }
  const std::shared_ptr<std::byte>& owner() const { return owner_; }

 private:
  std::shared_ptr<std::byte> owner_;
  std::byte* next_ = nullptr;
};

/// Tells the caller which share of the weights' numbers is made.
class Progress {
 public:
  Progress(const LoadProgress& report, std::int64_t total) : report_(report), total_(total) {}
  void add(std::int64_t numbers) {
    done_ += numbers;
    if (report_ && done_ < total_) report_(static_cast<double>(done_) / static_cast<double>(total_));
  }
  void finish() const {
    if (report_) report_(1.0);
  }

 private:
  const LoadProgress& report_;
  std::int64_t total_;
  std::int64_t done_ = 0;
};

// From a checkpoint.

/// Names inside a checkpoint. A checkpoint of the base model has no "model." in front of them.
class Names {
 public:
  explicit Names(const Checkpoint& checkpoint)
      : bare_(checkpoint.tensors.contains("embed_tokens.weight") &&
              !checkpoint.tensors.contains("model.embed_tokens.weight")) {}
  std::string stored(const std::string& name) const {
    return bare_ && name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  }

 private:
  static constexpr std::string_view prefix = "model.";
  bool bare_;
};

constexpr std::string_view head_name = "lm_head.weight";

/// Finds the tensor of a parameter. A tied table may be stored under the head's name alone.
const CheckpointTensor& find_tensor(const Checkpoint& checkpoint, const Parameter& parameter,
                                    const Names& names, bool tied) {
  const std::string name = names.stored(parameter.name);
  if (const auto found = checkpoint.tensors.find(name); found != checkpoint.tensors.end())
    return found->second;
  if (tied && parameter.name == "model.embed_tokens.weight")
    if (const auto head = checkpoint.tensors.find(std::string(head_name)); head != checkpoint.tensors.end())
      return head->second;
  const bool untied_head = parameter.name == head_name;
  throw InputError(fmt::format("{}: tensor {} is missing{}", checkpoint.contents.string(), shown(name),
                               untied_head ? ", and config.json does not tie it to the embedding" : ""));
}

/// Whether the head is a weight of its own: in an untied model, and in a tied model stored with both a head
/// and an embedding. In that case the file wins over config.json, as in transformers 5.
bool has_own_head(const Checkpoint& checkpoint, const Names& names, const ModelConfig& config) {
  return !config.tie_word_embeddings ||
         (checkpoint.tensors.contains(std::string(head_name)) &&
          checkpoint.tensors.contains(names.stored("model.embed_tokens.weight")));
}

/// Refuses a tensor that no parameter asks for, because leaving out a bias or a layer changes the result. Two
/// are harmless: rotation frequencies, which are computed from config.json, and the only table of a tied
/// model under the head's name.
void refuse_unexpected(const Checkpoint& checkpoint, const Parameters& parameters, const Names& names,
                       const ModelConfig& config) {
  std::vector<std::string> expected;
  for (const Parameter& parameter : parameters) expected.push_back(names.stored(parameter.name));
  std::sort(expected.begin(), expected.end());
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (std::binary_search(expected.begin(), expected.end(), name) || name.ends_with("rotary_emb.inv_freq") ||
        (config.tie_word_embeddings && name == head_name))
      continue;
    throw InputError(
        fmt::format("{}: tensor {} has no place in a {} of {} layers as config.json describes it; "
                    "ignoring it would change the result",
                    tensor.file.string(), shown(name), config.architecture, config.layers));
  }
}

DType stored_type(const CheckpointTensor& tensor, const std::string& name) {
  if (tensor.stored.dtype == "F32") return DType::f32;
  if (tensor.stored.dtype == "F16") return DType::f16;
  if (tensor.stored.dtype == "BF16") return DType::bf16;
  throw InputError(fmt::format("{}: tensor {} is stored as {}; weights must be F32, F16 or BF16",
                               tensor.file.string(), shown(name), tensor.stored.dtype));
}

void check_shape(const CheckpointTensor& tensor, const Parameter& parameter, const std::string& name) {
  if (tensor.stored.shape != parameter.shape)
    throw InputError(fmt::format("{}: tensor {} has shape {}, config.json asks for {}", tensor.file.string(),
                                 shown(name), shown(tensor.stored.shape), shown(parameter.shape)));
}

constexpr float largest(DType dtype) {
  return dtype == DType::f16 ? 65504.0F : dtype == DType::bf16 ? 0x1.FEp127F : 0x1.FFFFFEp127F;
}

/// Numbers that one task of the thread pool handles.
constexpr std::int64_t piece = std::int64_t{1} << 16;

/// Rounds `count` numbers. Returns the index of the first number beyond the target's range; `count` if there
/// is none.
std::int64_t convert(ThreadPool& threads, DType from, const std::byte* source, DType to, std::byte* target,
                     std::int64_t count) {
  const std::int64_t from_size = size_of(from);
  const std::int64_t to_size = size_of(to);
  const float limit = largest(to);
  std::atomic<std::int64_t> first_beyond = count;
  threads.run_pieces(count, piece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) {
      const float value = read_number(from, source + index * from_size);
      write_number(to, value, target + index * to_size);
      if (std::abs(value) <= limit || std::isnan(value)) continue;
      std::int64_t first = first_beyond;
      while (index < first && !first_beyond.compare_exchange_weak(first, index)) {
      }
    }
  });
  return first_beyond;
}

/// A parameter and the tensor that fills it.
struct Match {
  const Parameter* parameter;
  const CheckpointTensor* tensor;
  std::string name;  ///< of the tensor in its file
  DType stored;
};

void convert_into(ThreadPool& threads, Buffer& buffer, const Match& match, DType dtype) {
  const std::int64_t count = match.parameter->count();
  const std::byte* const source = match.tensor->stored.data;
  std::byte* const target = buffer.take(count * size_of(dtype));
  const std::int64_t beyond = convert(threads, match.stored, source, dtype, target, count);
  if (beyond < count)
    throw InputError(
        fmt::format("{}: tensor {} holds {} at index {}, beyond {}'s {}; use {}", match.tensor->file.string(),
                    shown(match.name), read_number(match.stored, source + beyond * size_of(match.stored)),
                    beyond, name_of(dtype), largest(dtype), dtype == DType::f16 ? "bf16 or f32" : "f32"));
  place(*match.parameter, dtype, target);
}

/// The memory that a loaded model keeps alive.
struct Owners {
  std::vector<SafetensorsFile> files;
  std::shared_ptr<std::byte> converted;
};

// From a seed.

/// The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// 2014).
constexpr std::uint64_t mix(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31);
}
constexpr std::uint64_t golden_gamma = 0x9E3779B97F4A7C15U;  ///< the step between states of SplitMix64

/// A nearly normal number: the sum of four uniform 16-bit numbers, shifted to mean 0. It is whole, so it is
/// exact on every machine.
constexpr std::int32_t bell(std::uint64_t bits) {
  constexpr std::int32_t mean = 2 * 65535;
  return static_cast<std::int32_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) +
                                   (bits >> 48)) -
         mean;
}

/// Numbers [begin, end) of one tensor. Number `index` depends on `key` and `index` alone, so threads may
/// share the work in any way.
void fill(ThreadPool& threads, std::uint64_t key, float scale, DType dtype, std::byte* target,
          std::int64_t begin, std::int64_t end) {
  const std::int64_t size = size_of(dtype);
  threads.run_pieces(end - begin, piece, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t index = begin + first; index < begin + last; ++index) {
      const std::uint64_t bits = mix(key + (static_cast<std::uint64_t>(index) + 1) * golden_gamma);
      write_number(dtype, static_cast<float>(bell(bits)) * scale, target + index * size);
    }
  });
}

/// The factor that gives the standard deviation 1/sqrt(inputs), with which outputs are about as large as
/// inputs. IEEE 754 rounds every operation here correctly, so the bits are the same on every machine.
float random_scale(std::int64_t inputs) {
  const double bell_deviation = std::sqrt((65536.0 * 65536.0 - 1.0) / 3.0);
  return static_cast<float>(1.0 / (std::sqrt(static_cast<double>(inputs)) * bell_deviation));
}

void fill_parameter(ThreadPool& threads, const Parameter& parameter, std::uint64_t key, DType dtype,
                    std::byte* target, Progress& progress) {
  if (parameter.inputs == 0) {
    for (std::int64_t index = 0; index < parameter.count(); ++index)
      write_number(dtype, 1.0F, target + index * size_of(dtype));
    progress.add(parameter.count());
    return;
  }
  constexpr std::int64_t between_reports = std::int64_t{1} << 24;
  for (std::int64_t begin = 0; begin < parameter.count(); begin += between_reports) {
    const std::int64_t end = std::min(begin + between_reports, parameter.count());
    fill(threads, key, random_scale(parameter.inputs), dtype, target, begin, end);
    progress.add(end - begin);
  }
}

}  // namespace

Weights load_weights(const std::filesystem::path& folder, const ModelConfig& config, DType dtype,
                     const LoadProgress& progress, ThreadPool* threads) {
  Checkpoint checkpoint = open_checkpoint(folder);
  const Names names(checkpoint);
  Weights weights;
  const bool own_head = has_own_head(checkpoint, names, config);
  Parameters parameters(config, own_head, weights);
  parameters.drop_biases_of_no_layer(
      [&](const std::string& name) { return checkpoint.tensors.contains(names.stored(name)); });
  refuse_unexpected(checkpoint, parameters, names, config);

  std::vector<Match> to_convert;
  std::int64_t numbers = 0;
  std::int64_t bytes = 0;
  bool any_in_place = false;
  for (const Parameter& parameter : parameters) {
    const CheckpointTensor& tensor = find_tensor(checkpoint, parameter, names, config.tie_word_embeddings);
    const std::string name = names.stored(parameter.name);
    const DType stored = stored_type(tensor, name);
    check_shape(tensor, parameter, name);
    if (dtype == DType::f32 || stored == dtype) {
      place(parameter, stored, tensor.stored.data);
      any_in_place = true;
    } else {
      to_convert.push_back({&parameter, &tensor, name, stored});
      numbers += parameter.count();
      bytes += Buffer::space_for(parameter.count() * size_of(dtype));
    }
  }

  auto owners = std::make_shared<Owners>();
  Progress done(progress, numbers);
  if (!to_convert.empty()) {
    Buffer buffer(bytes, "--dtype f32, which takes the file's numbers as they are");
    std::optional<ThreadPool> own;
    ThreadPool& pool = threads != nullptr ? *threads : own.emplace(ThreadPool::all_threads());
    for (const Match& match : to_convert) {
      convert_into(pool, buffer, match, dtype);
      done.add(match.parameter->count());
    }
    owners->converted = buffer.owner();
  }
  if (any_in_place) owners->files = std::move(checkpoint.files);
  if (!own_head) weights.lm_head = weights.embedding;
  weights.owner = std::move(owners);
  done.finish();
  return weights;
}

Weights random_weights(const ModelConfig& config, DType dtype, std::uint64_t seed,
                       const LoadProgress& progress, ThreadPool* threads) {
  Weights weights;
  const Parameters parameters(config, !config.tie_word_embeddings, weights);
  std::int64_t numbers = 0;
  std::int64_t bytes = 0;
  for (const Parameter& parameter : parameters) {
    numbers += parameter.count();
    bytes += Buffer::space_for(parameter.count() * size_of(dtype));
  }

  Buffer buffer(
      bytes, dtype == DType::f32 ? "--dtype bf16, which halves that, or a smaller model" : "a smaller model");
  std::optional<ThreadPool> own;
  ThreadPool& pool = threads != nullptr ? *threads : own.emplace(ThreadPool::all_threads());
  Progress done(progress, numbers);
  std::uint64_t tensor = 0;
  for (const Parameter& parameter : parameters) {
    std::byte* const target = buffer.take(parameter.count() * size_of(dtype));
    fill_parameter(pool, parameter, mix(mix(seed) + ++tensor * golden_gamma), dtype, target, done);
    place(parameter, dtype, target);
  }
  if (config.tie_word_embeddings) weights.lm_head = weights.embedding;
  weights.owner = buffer.owner();
  done.finish();
  return weights;
}

}  // namespace kvcache
