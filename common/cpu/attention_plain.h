/// @file
/// Attention on the CPU, first rung: the formula, one number at a time. The second rung, attention.h, is the
/// one that runs. Chapter: docs/transformer.md.
#pragma once

#include <cstdint>

#include "common/cpu/attention.h"

namespace kvcache::cpu {

/// out = softmax(q K^T / sqrt(head_dim)) V per query head of one sequence, each new token seeing the
/// positions up to its own. Computed in double and rounded once, to float32, so that the error of another
/// rung is that rung's own.
/// @param q, out  [rows, heads, head_dim], rows `stride` floats apart
void attention_plain(const AttentionShape& shape, const KvRows& rows, const AttentionSequence& sequence,
                     const float* q, float* out, std::int64_t stride);

}  // namespace kvcache::cpu
