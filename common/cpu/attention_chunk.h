/// @file
/// The arithmetic of one chunk of attention: 64 positions, counted from position 0. A lone new token takes
/// all its heads at once and reads K and V as they lie; several new tokens take one KV head at a time and
/// share a copy of its rows. attention.cpp says who computes which chunks.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "common/cpu/attention.h"
#include "common/cpu/dot_tile.h"

namespace kvcache::cpu {

/// Positions per chunk. Another value gives other bits: the value is part of what the result is.
inline constexpr std::int64_t kChunk = 64;

/// One query row: one head of one new token.
struct Query {
  const float* q;        ///< [head_dim]
  float* out;            ///< [head_dim]
  std::int64_t visible;  ///< positions it sees: its own and all earlier ones
};

/// The running softmax of one query row. After the last chunk, out = sum of weighted values / weight.
struct Running {
  float largest = -std::numeric_limits<float>::infinity();  ///< of the scores so far
  float weight = 0;                                         ///< sum of e^(score - largest)
};

/// head_dim, rounded up to whole vectors.
inline std::int64_t padded(std::int64_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}

/// Keys that are taken at a time, head after head: so many that their scores fill a vector, and few enough to
/// read memory nearly in order.
inline constexpr std::int64_t kKeysAtATime = 16;

/// Values that one multiply-add takes: a lane of bf16 holds the numbers of two keys.
constexpr std::int64_t values_at_once(LineKind kind) {
  return numbers_in(kind) / 16;
}

/// Where the rows of K and V of a chunk lie, in the order in which they are read: all keys, all values, and
/// the first keys of what comes next.
struct Chunk {
  /// Rows behind the values: one more than are asked for ahead, since values are read by twos and `count` may
  /// be odd.
  static constexpr std::int64_t kNext = kKeysAtATime + 1;
  std::int64_t count = 0;                              ///< positions, at most kChunk
  const std::byte* rows[2 * kChunk + kNext];           ///< [2 * count + kNext]
  const std::byte** keys() { return rows; }            ///< [count]
  const std::byte** values() { return rows + count; }  ///< [count]
};

/// Memory of a thread for a chunk.
struct ChunkScratch {
  std::vector<float> scores;  ///< [queries, kChunk]
  std::vector<Line> keys;     ///< [kChunk / kTileOutputs, lines, kTileOutputs]: one head's rows of K
  std::vector<Line> values;   ///< [kChunk / values_at_once, padded_dim / 16]: its rows of V
};

/// Turns one row of scores into weights: e^(score - largest) for the first `visible` of them, 0 for the
/// others of the chunk. They are as the lines' numbers are: floats, or bf16 in the row's first half. The
/// running weight adds them as they are stored, so rounding does not make the result smaller or larger.
template <LineKind kind>
Running softmax_chunk(float* scores, std::int64_t visible) {
  std::fill(scores + visible, scores + kChunk, -std::numeric_limits<float>::infinity());
  Vec16 tops = Vec16::load(scores);
  for (std::int64_t key = 16; key < kChunk; key += 16) tops = max(Vec16::load(scores + key), tops);
  Running chunk;
  chunk.largest = largest(tops);
  Vec16 weights = Vec16::all(0.0F);
  for (std::int64_t key = 0; key < kChunk; key += 16) {
    const Vec16 weight = exp(Vec16::load(scores + key) - Vec16::all(chunk.largest));
    std::byte* const stored = reinterpret_cast<std::byte*>(scores) + key * size_of(dtype_in(kind));
    weights = weights + Lanes<kind>::store_rounded(weight, stored);
  }
  chunk.weight = sum(weights);
  return chunk;
}

/// sums[r][...] += weight[r][key] * v[key][...] for the keys [begin, end) in order, for R query rows and S
/// vectors of 16 numbers at once. `load(key, s)` gives vector s of a key's row of V, with bf16 of two keys'.
/// @param weights  [R, kChunk] as softmax_chunk leaves them
/// @param begin    with bf16 it is even
template <LineKind kind, int R, int S, typename Load>
void add_vectors(const float* weights, std::int64_t begin, std::int64_t end, float* sums, std::int64_t stride,
                 const Load& load) {
  Vec16 totals[R][S];
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) totals[r][s] = Vec16::load(sums + r * stride + s * 16);
  }
  const auto add = [&](std::int64_t key, const auto& load_here) {
    Lanes<kind> numbers[S];
    for (int s = 0; s < S; ++s) {
      numbers[s] = load_here(key, s);
      hold(numbers[s]);
    }
    for (int r = 0; r < R; ++r) {
      const auto weight = Lanes<kind>::all(reinterpret_cast<const std::byte*>(weights + r * kChunk), key);
      for (int s = 0; s < S; ++s) totals[r][s] = multiply_add(weight, numbers[s], totals[r][s]);
    }
  };
  std::int64_t key = begin;
  for (; key + values_at_once(kind) <= end; key += values_at_once(kind)) add(key, load);
  if constexpr (values_at_once(kind) > 1) {
    if (key < end) add(key, [&](std::int64_t last, int s) { return first_of_each(load(last, s)); });
  }
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) totals[r][s].store(sums + r * stride + s * 16);
  }
}

/// Sixteen neighbours of a key's row of V, and with bf16 of the next key's.
template <LineKind kind, DType dtype>
Lanes<kind> neighbours(const std::byte* key, [[maybe_unused]] const std::byte* next) {
  if constexpr (kind == LineKind::floats)
    return {Vec16::load<dtype>(key)};
  else
    return Lanes<kind>::of_both(key, next);
}

/// The same for the last `count` < 16 numbers of the rows; zeros follow. Reads nothing past them.
template <LineKind kind, DType dtype>
Lanes<kind> last_neighbours(const std::byte* key, const std::byte* next, std::int64_t count) {
  std::byte rows[2][16 * size_of(dtype)] = {};
  std::memcpy(rows[0], key, static_cast<std::size_t>(count * size_of(dtype)));
  if (values_at_once(kind) > 1) std::memcpy(rows[1], next, static_cast<std::size_t>(count * size_of(dtype)));
  return neighbours<kind, dtype>(rows[0], rows[1]);
}

/// Every other one of 32 numbers of bf16 of a key's row of V, and with lines of bf16 of the next key's. It
/// takes fewer instructions than neighbours.
template <LineKind kind, int offset>
Lanes<kind> every_other(const std::byte* key, [[maybe_unused]] const std::byte* next) {
  if constexpr (kind == LineKind::floats)
    return {Vec16::load_every_other<offset>(key)};
  else
    return Lanes<kind>::template every_other_of_both<offset>(key, next);
}

/// add_vectors for whole rows of V as they lie. Of bf16, each 32 sums are those of the even numbers, then of
/// the odd ones.
/// @param values  [end + kNext]: `skip` bytes before rows of `cols` numbers; memory is asked for the rows
/// that are kKeysAtATime further
template <LineKind kind, DType dtype, int R>
void add_values(const float* weights, const std::byte* const* values, std::int64_t skip, std::int64_t begin,
                std::int64_t end, std::int64_t cols, float* sums) {
  const std::int64_t stride = padded(cols);
  std::int64_t at = 0;
  // Where vector `s` of a row's numbers from `at` on lies; where a line begins, a later row's is asked for.
  const auto row = [&](std::int64_t key, int s) {
    const std::int64_t offset = skip + (at + s * 16) * size_of(dtype);
    if (s * 16 * size_of(dtype) % kLineBytes == 0)
      __builtin_prefetch(values[key + kKeysAtATime] + offset, 0, 2);
    return values[key] + offset;
  };
  // Of the next key, where it is read together with this one.
  const auto next_row = [&](std::int64_t key, int s, const std::byte* here) {
    return values_at_once(kind) > 1 ? row(key + 1, s) : here;
  };
  const auto load = [&](std::int64_t key, int s) {
    const std::byte* here = row(key, s);
    return neighbours<kind, dtype>(here, next_row(key, s, here));
  };
  if constexpr (dtype == DType::bf16) {
    const auto load_every_other = [&](std::int64_t key, int s) {
      const std::byte *here = row(key, s), *next = next_row(key, s, here);
      return s % 2 == 0 ? every_other<kind, 0>(here, next) : every_other<kind, 1>(here - 32, next - 32);
    };
    for (; at + 64 <= cols; at += 64)
      add_vectors<kind, R, 4>(weights, begin, end, sums + at, stride, load_every_other);
    for (; at + 32 <= cols; at += 32)
      add_vectors<kind, R, 2>(weights, begin, end, sums + at, stride, load_every_other);
  }
  for (; at + 64 <= cols; at += 64) add_vectors<kind, R, 4>(weights, begin, end, sums + at, stride, load);
  for (; at + 16 <= cols; at += 16) add_vectors<kind, R, 1>(weights, begin, end, sums + at, stride, load);
  if (at == cols) return;
  add_vectors<kind, R, 1>(weights, begin, end, sums + at, stride, [&](std::int64_t key, int s) {
    const std::byte* here = row(key, s);
    return last_neighbours<kind, dtype>(here, next_row(key, s, here), cols - at);
  });
}

/// The same for rows of V that copy_chunk has copied. @param cols  a multiple of 16
template <LineKind kind, int R>
void add_copied(const float* weights, const Line* values, std::int64_t begin, std::int64_t end,
                std::int64_t cols, float* sums) {
  std::int64_t at = 0;
  const auto load = [&](std::int64_t key, int s) {
    const Line& line = values[(key / values_at_once(kind) * cols + at) / 16 + s];
    return Lanes<kind>::template load<dtype_in(kind)>(line.bytes);
  };
  for (; at + 64 <= cols; at += 64) add_vectors<kind, R, 4>(weights, begin, end, sums + at, cols, load);
  for (; at < cols; at += 16) add_vectors<kind, R, 1>(weights, begin, end, sums + at, cols, load);
}

/// The factors of merges. A merge adds a chunk's part to what was before it, after scaling both to the larger
/// of their maxima. Sixteen powers of e cost as much as one, so many merges are prepared at a time.
class Factors {
 public:
  /// Makes room for the factors of `merges` merges.
  void reset(std::int64_t merges) {
    own_ = padded(merges);
    numbers_.assign(static_cast<std::size_t>(2 * own_), 0.0F);
  }
  /// Raises `running`, the largest score before a chunk, to that of the chunk where it is larger.
  void raise(std::int64_t merge, float& running, float chunk) {
    const float top = std::max(running, chunk);
    numbers_[static_cast<std::size_t>(merge)] = running - top;
    numbers_[static_cast<std::size_t>(own_ + merge)] = chunk - top;
    running = top;
  }
  /// Once all are raised: turns differences into factors.
  void exponentiate() {
    for (std::size_t n = 0; n < numbers_.size(); n += 16) exp(Vec16::load(&numbers_[n])).store(&numbers_[n]);
  }
  /// The factor of what was before the chunk.
  float before(std::int64_t merge) const { return numbers_[static_cast<std::size_t>(merge)]; }
  /// The factor of the chunk's own part.
  float own(std::int64_t merge) const { return numbers_[static_cast<std::size_t>(own_ + merge)]; }
  /// What was before the chunk and its own part, scaled and added.
  float merged(std::int64_t merge, float running, float chunk) const {
    return std::fma(running, before(merge), chunk * own(merge));
  }
  /// The same for sixteen numbers.
  Vec16 merged(std::int64_t merge, Vec16 running, Vec16 chunk) const {
    return fma(running, Vec16::all(before(merge)), chunk * Vec16::all(own(merge)));
  }

 private:
  std::vector<float> numbers_;  // [2, merges], both padded
  std::int64_t own_ = 0;        // where the second half begins
};

/// What one chunk adds to each query row.
struct ChunkResult {
  Running* softmax;  ///< [queries]
  float* sums;       ///< [queries, padded_dim]: values, weighted and added
};

/// scores[r][key] = q[r] . key / sqrt(head_dim) for R query rows, all of one KV head, and up to kKeysAtATime
/// keys. Behind the last key they mean nothing.
/// @param q       [R, lines]
/// @param keys    [count + kKeysAtATime]: `skip` bytes before rows of head_dim numbers; memory is asked for
/// the rows that are kKeysAtATime further, since the processor does not foresee the slots of a block table
/// @param scores  [R, kChunk]
template <LineKind kind, DType dtype, int R>
void score_keys(const Line* q, const std::byte* const* keys, std::int64_t count, std::int64_t skip,
                std::int64_t head_dim, float* scores) {
  const Vec16 scale = Vec16::all(1.0F / std::sqrt(static_cast<float>(head_dim)));
  const std::int64_t lines = lines_for(kind, head_dim), whole = head_dim / numbers_in(kind);
  constexpr std::int64_t kStep = numbers_in(kind) * size_of(dtype);
  Vec16 sums[R][kKeysAtATime];
  const std::int64_t keys_here = std::min(count, kKeysAtATime);
  for (auto& row : sums) std::fill(row + keys_here, std::end(row), Vec16::all(0.0F));
  for (std::int64_t n = 0; n < keys_here; ++n) {
    const std::byte* key = keys[n] + skip;
    const std::byte* later = keys[n + kKeysAtATime] + skip;
    Vec16 totals[R];
    std::fill(std::begin(totals), std::end(totals), Vec16::all(0.0F));
    const auto add = [&](std::int64_t line, Lanes<kind> numbers) {
      hold(numbers);
      for (int r = 0; r < R; ++r) {
        const auto query = Lanes<kind>::template load<dtype_in(kind)>(q[r * lines + line].bytes);
        totals[r] = multiply_add(query, numbers, totals[r]);
      }
    };
    for (std::int64_t line = 0; line < whole; ++line, key += kStep, later += kStep) {
      if (line * kStep % kLineBytes == 0) __builtin_prefetch(later, 0, 2);
      add(line, Lanes<kind>::template load<dtype>(key));
    }
    if (whole < lines) {
      const Line tail = tail_line<kind, dtype>(key, head_dim % numbers_in(kind));
      add(whole, Lanes<kind>::template load<dtype_in(kind)>(tail.bytes));
    }
    for (int r = 0; r < R; ++r) sums[r][n] = totals[r];
  }
  for (int r = 0; r < R; ++r) (sum_each(sums[r]) * scale).store(scores + r * kChunk);
}

/// Computes one chunk for a lone new token, which sees all of it. K and V are read nearly in the order in
/// which they lie: a few slots after the other, and of these all heads that are given.
/// @param shape  heads and KV heads of the task
/// @param q      [heads, lines]
/// @param chunk  begins with the task's first KV head
template <LineKind kind, DType dtype>
void attend_alone(const AttentionShape& shape, const Line* q, Chunk& chunk, ChunkScratch& scratch,
                  const ChunkResult& result) {
  const std::int64_t head_dim = shape.head_dim, width = padded(head_dim), lines = lines_for(kind, head_dim);
  const std::int64_t group = shape.heads / shape.kv_heads, head_bytes = head_dim * size_of(dtype);
  scratch.scores.resize(static_cast<std::size_t>(shape.heads * kChunk));
  float* scores = scratch.scores.data();
  // Calls function.operator()<R>(first key, bytes before the KV head, head) for every few keys and every tile
  // of R heads.
  const auto in_order = [&](const auto& function) {
    for (std::int64_t key = 0; key < chunk.count; key += kKeysAtATime) {
      for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        in_tiles<4>(kv_head * group, (kv_head + 1) * group, [&]<int R>(std::int64_t head) {
          function.template operator()<R>(key, kv_head * head_bytes, head);
        });
      }
    }
  };
  in_order([&]<int R>(std::int64_t key, std::int64_t skip, std::int64_t head) {
    score_keys<kind, dtype, R>(q + head * lines, chunk.keys() + key, chunk.count - key, skip, head_dim,
                               scores + head * kChunk + key);
  });
  for (std::int64_t head = 0; head < shape.heads; ++head)
    result.softmax[head] = softmax_chunk<kind>(scores + head * kChunk, chunk.count);
  std::fill(result.sums, result.sums + shape.heads * width, 0.0F);
  in_order([&]<int R>(std::int64_t key, std::int64_t skip, std::int64_t head) {
    const std::int64_t end = std::min(key + kKeysAtATime, chunk.count);
    add_values<kind, dtype, R>(scores + head * kChunk, chunk.values(), skip, key, end, head_dim,
                               result.sums + head * width);
  });
  if (dtype != DType::bf16) return;
  // add_values left the even numbers before the odd ones.
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    for (std::int64_t at = 0; at + 32 <= head_dim; at += 32) {
      float* const sums = result.sums + head * width + at;
      Vec16 even = Vec16::load(sums), odd = Vec16::load(sums + 16);
      interleave(even, odd);
      even.store(sums);
      odd.store(sums + 16);
    }
  }
}

/// Copies one head's rows of a chunk into lines: they are widened, or values laid together by twos, once for
/// all query rows. And they no longer lie a whole slot apart, where they compete for the same places in the
/// cache.
template <LineKind kind, DType dtype>
void copy_chunk(Chunk& chunk, std::int64_t head_dim, ChunkScratch& scratch) {
  const std::int64_t lines = lines_for(kind, head_dim), width = padded(head_dim) / 16;
  scratch.keys.resize(static_cast<std::size_t>(kChunk * lines));
  scratch.values.resize(static_cast<std::size_t>(kChunk / values_at_once(kind) * width));
  for (std::int64_t n = 0; n < chunk.count; ++n) {
    Line* key = scratch.keys.data() + n / kTileOutputs * kTileOutputs * lines + n % kTileOutputs;
    copy_row<kind, dtype>(chunk.keys()[n], head_dim, key, kTileOutputs);
  }
  Line* to = scratch.values.data();
  for (std::int64_t n = 0; n < chunk.count; n += values_at_once(kind)) {
    const std::byte *value = chunk.values()[n], *next = chunk.values()[n + 1];
    std::int64_t left = head_dim;
    for (; left >= 16; left -= 16, value += 16 * size_of(dtype), next += 16 * size_of(dtype))
      *to++ = neighbours<kind, dtype>(value, next).line();
    if (left > 0) *to++ = last_neighbours<kind, dtype>(value, next, left).line();
  }
}

/// scores[query][key] = q . k / sqrt(head_dim) for all keys of a copied chunk. Behind the last key they mean
/// nothing. @param q  [queries, lines]
template <LineKind kind>
void score_chunk(const Line* q, std::int64_t queries, std::int64_t keys, std::int64_t head_dim,
                 const Line* copied, float* scores) {
  const Vec16 scale = Vec16::all(1.0F / std::sqrt(static_cast<float>(head_dim)));
  const std::int64_t lines = lines_for(kind, head_dim);
  // A row has few lines, so the sums across lanes cost as much as the products: 4 x 4 of them, on AVX-512,
  // are one sum_each.
  in_tiles<std::min(4, kTileRows)>(0, queries, [&]<int R>(std::int64_t query) {
    const std::byte* rows[R];
    for (int r = 0; r < R; ++r) rows[r] = q[(query + r) * lines].bytes;
    for (std::int64_t key = 0; key < keys; key += kTileOutputs) {
      TileSums<R> sums;
      for (Vec16& sum : sums) sum = Vec16::all(0.0F);  // std::fill would put them into memory
      multiply_tile<kind, R>(rows, copied + key * lines, lines, sums);
      float* to[R];
      for (int r = 0; r < R; ++r) to[r] = scores + (query + r) * kChunk + key;
      sum_tile<R>(sums, to);
    }
    for (float *at = scores + query * kChunk, *end = at + R * kChunk; at < end; at += 16)
      (Vec16::load(at) * scale).store(at);
  });
}

/// Computes one chunk for several query rows of one KV head. @param q  [queries, lines]
/// @param first   the chunk's first position
/// @param chunk   the head's rows
/// @param result  that of a query which sees none of the chunk is not used
template <LineKind kind, DType dtype>
void attend_together(std::span<const Query> queries, const Line* q, std::int64_t head_dim, std::int64_t first,
                     Chunk& chunk, ChunkScratch& scratch, const ChunkResult& result) {
  const std::int64_t width = padded(head_dim);
  const auto query_count = static_cast<std::int64_t>(queries.size());
  scratch.scores.resize(queries.size() * kChunk);
  float* scores = scratch.scores.data();
  copy_chunk<kind, dtype>(chunk, head_dim, scratch);
  score_chunk<kind>(q, query_count, chunk.count, head_dim, scratch.keys.data(), scores);

  const auto seen = [&](std::int64_t query) {
    return std::clamp<std::int64_t>(queries[static_cast<std::size_t>(query)].visible - first, 0, chunk.count);
  };
  for (std::int64_t query = 0; query < query_count; ++query) {
    if (seen(query) > 0) result.softmax[query] = softmax_chunk<kind>(scores + query * kChunk, seen(query));
  }
  std::fill(result.sums, result.sums + query_count * width, 0.0F);
  in_tiles<kTileRows>(0, query_count, [&]<int R>(std::int64_t query) {
    const auto add = [&]<int Rows>(std::int64_t row, std::int64_t begin, std::int64_t end) {
      add_copied<kind, Rows>(scores + row * kChunk, scratch.values.data(), begin, end, width,
                             result.sums + row * width);
    };
    // All rows of the tile see the keys that its first row sees, which sees the fewest. They are added
    // together, with bf16 as far as they make pairs; each row then adds the few others that it sees.
    const std::int64_t common = seen(query) / values_at_once(kind) * values_at_once(kind);
    add.template operator()<R>(query, 0, common);
    for (int r = 0; r < R; ++r) {
      if (common < seen(query + r)) add.template operator()<1>(query + r, common, seen(query + r));
    }
  });
}

}  // namespace kvcache::cpu
