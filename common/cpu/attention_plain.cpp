/// @file
/// See attention_plain.h.
#include "common/cpu/attention_plain.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/stored_number.h"

namespace kvcache::cpu {
namespace {

/// One query head of one row. @param query, out  [head_dim]  @param visible  positions that the row sees
void attend(const AttentionShape& shape, const KvRows& rows, const SlotMap& slots, std::int64_t visible,
            std::int64_t kv_head, const float* query, float* out) {
  // Number d of the key (rows.k) or the value (rows.v) at a position.
  const auto number = [&](const std::byte* kv, std::int64_t position, std::int64_t d) -> double {
    const std::int64_t at = (slots.slot(position) * shape.kv_heads + kv_head) * shape.head_dim + d;
    return read_number(rows.dtype, kv + at * size_of(rows.dtype));
  };

  // 1. Scores: how well the query fits the key of each position that it sees.
  std::vector<double> scores;
  for (std::int64_t position = 0; position < visible; ++position) {
    double dot = 0;
    for (std::int64_t d = 0; d < shape.head_dim; ++d) dot += query[d] * number(rows.k, position, d);
    scores.push_back(dot / std::sqrt(static_cast<double>(shape.head_dim)));
  }

  // 2. Softmax: attention weights that sum to 1. Without "- top_score" a large score would overflow.
  const double top_score = *std::max_element(scores.begin(), scores.end());
  std::vector<double> attention_weights;
  double weight_sum = 0;
  for (const double score : scores) {
    attention_weights.push_back(std::exp(score - top_score));
    weight_sum += attention_weights.back();
  }
  for (double& weight : attention_weights) weight /= weight_sum;

  // 3. Weighted sum of the values.
  for (std::int64_t d = 0; d < shape.head_dim; ++d) {
    double total = 0;
    for (std::int64_t position = 0; position < visible; ++position)
      total += attention_weights[static_cast<std::size_t>(position)] * number(rows.v, position, d);
    out[d] = static_cast<float>(total);
  }
}

}  // namespace

void attention_plain(const AttentionShape& shape, const KvRows& rows, const AttentionSequence& sequence,
                     const float* q, float* out, std::int64_t stride) {
  for (std::int64_t row = sequence.row_begin; row < sequence.row_end; ++row) {
    const std::int64_t visible = sequence.context - (sequence.row_end - 1 - row);
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
      const std::int64_t at = row * stride + head * shape.head_dim;
      attend(shape, rows, sequence.slots, visible, kv_head, q + at, out + at);
    }
  }
}

}  // namespace kvcache::cpu
