/// @file
/// Attention on the CPU, first rung: the formula, one number at a time. The programs run the second rung,
/// attention.h. Chapter: docs/transformer.md.
#pragma once

#include <cstdint>

#include "common/cpu/attention.h"

namespace kvcache::cpu {

/// out = softmax(q K^T / sqrt(head_dim)) V for each query head of one sequence. Each new token sees the
/// positions up to its own. The result is computed in double and rounded once, to float32, so that a
/// difference to another rung is that rung's error.
/// @param q, out  [rows, heads, head_dim], rows `stride` floats apart
void attention_plain(const AttentionShape& shape, const KvRows& rows, const AttentionSequence& sequence,
                     const float* q, float* out, std::int64_t stride);

}  // namespace kvcache::cpu
