/// @file
/// The arithmetic of a KV cache: how many bytes, blocks, rows and floating-point operations. Nothing here
/// looks at a cache, so what a formula gives can be held against what a program reports (docs/numbers). Sizes
/// are bytes; MB is 10^6 bytes and MiB 2^20, and they differ by 4.9%. Chapters: step 1 to step 4.
#pragma once

#include <cstdint>

#include "common/model/config.h"

namespace kvcache {

inline constexpr double kKB = 1e3;             ///< bytes of a kB
inline constexpr double kMB = 1e6;             ///< bytes of a MB
inline constexpr double kGB = 1e9;             ///< bytes of a GB
inline constexpr double kKiB = 1024.0;         ///< bytes of a KiB
inline constexpr double kMiB = 1024.0 * kKiB;  ///< bytes of a MiB
inline constexpr double kGiB = 1024.0 * kMiB;  ///< bytes of a GiB

/// What the size of K and V depends on. Query heads, vocabulary and the width of the model play no part.
struct KvShape {
  std::int64_t layers = 0;            ///< each keeps K and V of its own
  std::int64_t kv_heads = 0;          ///< of grouped-query attention; not the query heads
  std::int64_t head_dim = 0;          ///< numbers per head
  std::int64_t bytes_per_number = 0;  ///< 4 in float32, 2 in float16 and bfloat16
};

/// The part of a model's configuration that decides the size of K and V.
KvShape kv_shape(const ModelConfig& config, std::int64_t bytes_per_number);

/// Bytes of K and V of one token in one layer.
std::int64_t kv_bytes_per_token_and_layer(const KvShape& shape);
/// Bytes of K and V of one token in all layers.
std::int64_t kv_bytes_per_token(const KvShape& shape);
/// Bytes of one block of `block_size` tokens, all layers.
std::int64_t kv_bytes_per_block(const KvShape& shape, std::int64_t block_size);
/// Bytes of `tokens` tokens; also those of a flat reservation of as many positions.
std::int64_t kv_bytes(const KvShape& shape, std::int64_t tokens);

/// Blocks that hold `tokens` tokens: rounded up.
std::int64_t blocks_that_hold(std::int64_t tokens, std::int64_t block_size);
/// Full blocks of a prefix of `tokens` tokens, which are those that sequences can share: rounded down.
std::int64_t shareable_blocks(std::int64_t tokens, std::int64_t block_size);
/// Where the token at `offset` of `block` is kept.
std::int64_t slot_of(std::int64_t block, std::int64_t block_size, std::int64_t offset);

/// The part of what is reserved that holds nothing, 0 to 1, in any one unit. 0 of 0 is 0.
double wasted_share(std::int64_t reserved, std::int64_t used);
/// Sequences of `each` that a budget holds, in any one unit: rounded down, since a part of a sequence is
/// none.
std::int64_t sequences_that_fit(std::int64_t budget, std::int64_t each);

/// A matrix product [rows, inner] x [inner, columns].
struct MatmulShape {
  std::int64_t rows = 0;     ///< tokens
  std::int64_t inner = 0;    ///< input features
  std::int64_t columns = 0;  ///< output features
  /// A multiplication and an addition for each of rows * inner * columns.
  std::int64_t flops() const { return 2 * rows * inner * columns; }
};

/// The projection to Q, K and V as one product, for `rows` tokens: all of the sequence without a cache, the
/// new ones with it. columns = (heads + 2 kv_heads) * head_dim.
MatmulShape qkv_projection(const ModelConfig& config, std::int64_t rows);

/// K/V rows projected per layer until `outputs` >= 1 tokens have followed a prompt of `prompt` tokens. The
/// last of them is never fed back, so prompt + outputs - 1 tokens go through the model.
std::int64_t kv_rows_with_cache(std::int64_t prompt, std::int64_t outputs);
/// The same where every pass computes the rows of all tokens so far, as step 1 does.
std::int64_t kv_rows_without_cache(std::int64_t prompt, std::int64_t outputs);

/// Parameters of the model: the embedding, once if the output head is the same table, all layers, the norms.
std::int64_t parameters(const ModelConfig& config);

/// One decode step: one new token for each sequence.
struct DecodeCost {
  std::int64_t flops = 0;         ///< matrix products and attention; norms and softmax are left out
  std::int64_t weight_bytes = 0;  ///< read once, however many sequences
  std::int64_t kv_bytes = 0;      ///< read, of all tokens up to the new one
  /// Below what a machine computes per byte it reads, reading bounds the step.
  double flops_per_byte() const {
    return static_cast<double>(flops) / static_cast<double>(weight_bytes + kv_bytes);
  }
};
/// @param context  tokens of each sequence, the new one among them
DecodeCost decode_step(const ModelConfig& config, std::int64_t sequences, std::int64_t context,
                       std::int64_t bytes_per_number);

}  // namespace kvcache
