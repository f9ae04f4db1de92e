/// @file
/// See formulas.h.
#include "docs/numbers/formulas.h"

namespace kvcache {
namespace {

/// Numbers in the matrices of one layer.
std::int64_t matrix_numbers_per_layer(const ModelConfig& config) {
  const std::int64_t output = config.heads * config.head_dim * config.hidden_size;
  const std::int64_t gate_up_down = 3 * config.hidden_size * config.intermediate_size;
  const MatmulShape qkv = qkv_projection(config, 1);
  return qkv.inner * qkv.columns + output + gate_up_down;
}

/// Numbers in the biases and norms of one layer.
std::int64_t vector_numbers_per_layer(const ModelConfig& config) {
  std::int64_t numbers = 2 * config.hidden_size;
  if (config.qk_norm) numbers += 2 * config.head_dim;
  if (config.qkv_bias) numbers += qkv_projection(config, 1).columns;
  if (config.output_bias) numbers += config.hidden_size;
  if (config.mlp_bias) numbers += 2 * config.intermediate_size + config.hidden_size;
  return numbers;
}

}  // namespace

KvShape kv_shape(const ModelConfig& config, std::int64_t bytes_per_number) {
  return {config.layers, config.kv_heads, config.head_dim, bytes_per_number};
}

std::int64_t kv_bytes_per_token_and_layer(const KvShape& shape) {
  constexpr std::int64_t k_and_v = 2;
  return k_and_v * shape.kv_heads * shape.head_dim * shape.bytes_per_number;
}

std::int64_t kv_bytes_per_token(const KvShape& shape) {
  return shape.layers * kv_bytes_per_token_and_layer(shape);
}

std::int64_t kv_bytes_per_block(const KvShape& shape, std::int64_t block_size) {
  return kv_bytes(shape, block_size);
}

std::int64_t kv_bytes(const KvShape& shape, std::int64_t tokens) {
  return tokens * kv_bytes_per_token(shape);
}

std::int64_t blocks_that_hold(std::int64_t tokens, std::int64_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

std::int64_t shareable_blocks(std::int64_t tokens, std::int64_t block_size) {
  return tokens / block_size;
}

std::int64_t slot_of(std::int64_t block, std::int64_t block_size, std::int64_t offset) {
  return block * block_size + offset;
}

double wasted_share(std::int64_t reserved, std::int64_t used) {
  return reserved == 0 ? 0.0 : static_cast<double>(reserved - used) / static_cast<double>(reserved);
}

std::int64_t sequences_that_fit(std::int64_t budget, std::int64_t each) {
  return budget / each;
}

MatmulShape qkv_projection(const ModelConfig& config, std::int64_t rows) {
  return {rows, config.hidden_size, (config.heads + 2 * config.kv_heads) * config.head_dim};
}

std::int64_t kv_rows_with_cache(std::int64_t prompt, std::int64_t outputs) {
  return prompt + outputs - 1;
}

std::int64_t kv_rows_without_cache(std::int64_t prompt, std::int64_t outputs) {
  // Passes over prompt, prompt + 1, ..., prompt + outputs - 1 tokens.
  return outputs * prompt + outputs * (outputs - 1) / 2;
}

std::int64_t parameters(const ModelConfig& config) {
  const std::int64_t tables = config.tie_word_embeddings ? 1 : 2;
  return tables * config.vocab_size * config.hidden_size + config.hidden_size +
         config.layers * (matrix_numbers_per_layer(config) + vector_numbers_per_layer(config));
}

DecodeCost decode_step(const ModelConfig& config, std::int64_t sequences, std::int64_t context,
                       std::int64_t bytes_per_number) {
  // Of the embedding a step reads a row per sequence; of the output head, which may be the same table, all
  // rows.
  const std::int64_t head = config.vocab_size * config.hidden_size;
  const std::int64_t matrices = config.layers * matrix_numbers_per_layer(config) + head;
  // Each query head: a product with every key, and a weighted sum of every value.
  const std::int64_t attention = config.layers * 4 * config.heads * config.head_dim * context;
  const std::int64_t vectors = config.layers * vector_numbers_per_layer(config) + config.hidden_size;
  return {sequences * (2 * matrices + attention), (matrices + vectors) * bytes_per_number,
          sequences * kv_bytes(kv_shape(config, bytes_per_number), context)};
}

}  // namespace kvcache
