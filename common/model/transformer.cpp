/// @file
/// See transformer.h. Read `forward` first, then `layer`.
#include "common/model/transformer.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace kvcache {

namespace {

// Speeds are computed in float32, step by step: the models were trained with these roundings.

/// The speed of one pair. A pair that turns less than low_freq_factor times in the old context is slowed by
/// `factor`. A pair that turns more than high_freq_factor times is not. Between the two, the speeds are
/// blended.
float llama3_frequency(float frequency, const RopeConfig& rope) {
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_freq_factor), high = static_cast<float>(rope.high_freq_factor);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
  const float turns = static_cast<float>(rope.original_max_position_embeddings) / wavelength;
  if (turns < low) return frequency / factor;
  if (turns > high) return frequency;
  const float kept = (turns - low) / (high - low);
  return (1 - kept) * frequency / factor + kept * frequency;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  std::vector<float> frequencies(static_cast<std::size_t>(config.head_dim / 2));
  for (std::size_t d = 0; d < frequencies.size(); ++d) {
    const float exponent = static_cast<float>(2 * d) / static_cast<float>(config.head_dim);
    const float frequency = 1.0F / static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
    switch (rope.type) {
      case RopeConfig::Type::default_:
        frequencies[d] = frequency;
        break;
      case RopeConfig::Type::linear:
        frequencies[d] = frequency / static_cast<float>(rope.factor);
        break;
      case RopeConfig::Type::llama3:
        frequencies[d] = llama3_frequency(frequency, rope);
        break;
    }
  }
  return frequencies;
}

Transformer::Transformer(const ModelConfig& config, Weights weights, std::unique_ptr<Backend> backend)
    : Transformer(config, std::move(weights), std::move(backend), rope_inverse_frequencies(config)) {}

Transformer::Transformer(ModelConfig config, Weights weights, std::unique_ptr<Backend> backend,
                         std::vector<float> inverse_frequencies)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      backend_(std::move(backend)),
      inverse_frequencies_(std::move(inverse_frequencies)) {
  std::vector<Backend::ProductWeights> in_order;
  for (const LayerWeights& layer : weights_.layers) {
    in_order.push_back({layer.q.weight, layer.k.weight, layer.v.weight});
    in_order.push_back({layer.o.weight});
    in_order.push_back({layer.gate.weight, layer.up.weight});
    in_order.push_back({layer.down.weight});
  }
  in_order.push_back({weights_.lm_head});
  backend_->expect(in_order);
}

std::int64_t Transformer::weight_bytes_of_a_pass() const {
  const auto bytes = [](const Weight& weight) {
    return weight.present() ? weight.rows * weight.cols * size_of(weight.dtype) : 0;
  };
  std::int64_t total = bytes(weights_.final_norm) + bytes(weights_.lm_head);
  for (const LayerWeights& layer : weights_.layers) {
    for (const Weight* weight : {&layer.attention_norm, &layer.q_norm, &layer.k_norm, &layer.mlp_norm})
      total += bytes(*weight);
    for (const Projection* projection :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      total += bytes(projection->weight) + bytes(projection->bias);
  }
  return total;
}

void Transformer::forward(const PassPlan& plan, KvStore& store) {
  store.begin(plan);
  rotation_ = backend_->set_positions(plan.positions, inverse_frequencies_);
  backend_->embed(weights_.embedding, plan.token_ids, hidden_);
  backend_->resize(attended_, hidden_.rows, config_.heads * config_.head_dim);
  std::vector<std::int64_t> key = store.launch_key();
  if (!key.empty()) key.push_back(hidden_.rows);
  backend_->run_layers(key, [&] {
    for (std::int64_t number = 0; number < config_.layers; ++number) layer(number, store);
  });
  store.end();

  backend_->select_rows(hidden_, plan.logits_rows, last_);
  const Projection head{weights_.lm_head, {}};
  const Backend::Product product{&head, &logits_};
  backend_->norm_and_project(last_, {weights_.final_norm, config_.rms_norm_eps}, {&product, 1});
}

std::vector<float> Transformer::logits() {
  std::vector<float> numbers(static_cast<std::size_t>(logits_.rows * logits_.cols));
  backend_->read(logits_, numbers);
  return numbers;
}

void Transformer::layer(std::int64_t number, KvStore& store) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(number)];
  const float eps = config_.rms_norm_eps;
  const Backend::Product qkv[] = {{&weights.q, &q_}, {&weights.k, &k_}, {&weights.v, &v_}};
  // The store normalises and rotates the heads: norm_and_rotate, on the CPU in common/cpu/rows.h.
  const HeadSettings heads{{weights.q_norm, eps}, {weights.k_norm, eps}, rotation_};

  // The attention block.
  backend_->norm_and_project(hidden_, {weights.attention_norm, eps}, qkv);
  store.store_and_attend(number, heads, {q_, k_, v_}, attended_);
  backend_->project_and_add(attended_, weights.o, hidden_);
  // The MLP block.
  backend_->norm_and_gate(hidden_, {weights.mlp_norm, eps}, weights.gate, weights.up, activated_);
  backend_->project_and_add(activated_, weights.down, hidden_);
}

}  // namespace kvcache
