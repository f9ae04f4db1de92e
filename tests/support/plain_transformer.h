/// @file
/// The transformer once more, as plain as its formulas: double precision, whole matrices, one head at a time,
/// no cache and nothing fast. It shares no arithmetic with the code under test, which must agree with it.
/// Chapter: step 1.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

#include "common/base/stored_number.h"
#include "common/model/config.h"
#include "common/model/weights.h"

namespace kvcache::test {

/// Rows are tokens, or the outputs of a projection.
using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

inline Rows numbers(const Weight& weight) {
  Rows result(weight.rows, weight.cols);
  for (std::int64_t at = 0; at < result.size(); ++at)
    result.data()[at] =
        static_cast<double>(read_number(weight.dtype, weight.data + at * size_of(weight.dtype)));
  return result;
}

/// y = x W^T + b
inline Rows linear(const Rows& x, const Projection& projection) {
  Rows y = x * numbers(projection.weight).transpose();
  if (projection.bias.present()) y.rowwise() += numbers(projection.bias).row(0);
  return y;
}

/// y = x / sqrt(mean(x^2) + epsilon) * weight
inline Rows rms_norm(const Rows& x, const Weight& weight, double epsilon) {
  const Eigen::VectorXd scale = (x.rowwise().squaredNorm() / static_cast<double>(x.cols())).array() + epsilon;
  return scale.array().rsqrt().matrix().asDiagonal() * x * numbers(weight).row(0).asDiagonal();
}

/// Radians per position of the pair (d, d + head_dim / 2).
inline double rope_speed(const RopeConfig& rope, std::int64_t d, std::int64_t head_dim) {
  const double speed = std::pow(rope.theta, -2.0 * static_cast<double>(d) / static_cast<double>(head_dim));
  if (rope.type == RopeConfig::Type::default_) return speed;
  if (rope.type == RopeConfig::Type::linear) return speed / rope.factor;
  const double turns = rope.original_max_position_embeddings * speed / (2 * std::numbers::pi);
  const double kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return speed * std::lerp(1 / rope.factor, 1.0, std::clamp(kept, 0.0, 1.0));
}

/// Turns the pairs (d, d + head_dim / 2) of one head, one row per token.
inline Rows rotate(const Rows& x, const RopeConfig& rope, std::span<const std::int32_t> positions) {
  Rows turned(x.rows(), x.cols());
  const std::int64_t half = x.cols() / 2;
  for (std::int64_t token = 0; token < x.rows(); ++token) {
    for (std::int64_t d = 0; d < half; ++d) {
      const double angle = positions[static_cast<std::size_t>(token)] * rope_speed(rope, d, x.cols());
      turned(token, d) = x(token, d) * std::cos(angle) - x(token, d + half) * std::sin(angle);
      turned(token, d + half) = x(token, d + half) * std::cos(angle) + x(token, d) * std::sin(angle);
    }
  }
  return turned;
}

/// softmax(q k^T / sqrt(head_dim)) v, where a token sees itself and the tokens before it.
inline Rows causal_attention(const Rows& q, const Rows& k, const Rows& v) {
  Rows weights = q * k.transpose() / std::sqrt(static_cast<double>(q.cols()));
  for (std::int64_t token = 0; token < q.rows(); ++token) {
    auto seen = weights.row(token).head(token + 1);
    seen = (seen.array() - seen.maxCoeff()).exp().matrix().eval();
    seen /= seen.sum();
    weights.row(token).tail(q.rows() - token - 1).setZero();
  }
  return weights * v;
}

/// Attention of all heads, side by side; each query head reads its KV head.
inline Rows attention_block(const ModelConfig& config, const LayerWeights& weights, const Rows& x,
                            std::span<const std::int32_t> positions) {
  const Rows q = linear(x, weights.q), k = linear(x, weights.k), v = linear(x, weights.v);
  const auto head_of = [&](const Rows& all, std::int64_t head) -> Rows {
    return all.middleCols(head * config.head_dim, config.head_dim);
  };
  const auto prepared = [&](Rows head, const Weight& norm) {
    if (config.qk_norm) head = rms_norm(head, norm, static_cast<double>(config.rms_norm_eps));
    return rotate(head, config.rope, positions);
  };
  Rows attended(x.rows(), config.heads * config.head_dim);
  for (std::int64_t head = 0; head < config.heads; ++head) {
    const std::int64_t kv_head = head * config.kv_heads / config.heads;
    attended.middleCols(head * config.head_dim, config.head_dim) =
        causal_attention(prepared(head_of(q, head), weights.q_norm),
                         prepared(head_of(k, kv_head), weights.k_norm), head_of(v, kv_head));
  }
  return linear(attended, weights.o);
}

/// down(silu(gate) * up), silu(g) = g / (1 + e^-g)
inline Rows mlp_block(const LayerWeights& weights, const Rows& x) {
  const Rows gate = linear(x, weights.gate), up = linear(x, weights.up);
  const Rows activated = gate.array() / (1 + (-gate.array()).exp()) * up.array();
  return linear(activated, weights.down);
}

/// The logits after every token of one sequence, [tokens, vocab].
inline Rows plain_logits(const ModelConfig& config, const Weights& weights, std::span<const std::int32_t> ids,
                         std::span<const std::int32_t> positions) {
  const auto epsilon = static_cast<double>(config.rms_norm_eps);
  const Rows embedding = numbers(weights.embedding);
  Rows x(static_cast<std::int64_t>(ids.size()), config.hidden_size);
  for (std::size_t token = 0; token < ids.size(); ++token)
    x.row(static_cast<std::int64_t>(token)) = embedding.row(ids[token]);
  for (const LayerWeights& layer : weights.layers) {
    x += attention_block(config, layer, rms_norm(x, layer.attention_norm, epsilon), positions);
    x += mlp_block(layer, rms_norm(x, layer.mlp_norm, epsilon));
  }
  return linear(rms_norm(x, weights.final_norm, epsilon), {weights.lm_head, {}});
}

}  // namespace kvcache::test
