/// @file
/// See attention.h. A task is one KV head of one sequence, for a few new tokens. It takes all query heads
/// that share the KV head, so K and V are read once for all of them.
#include "common/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/cpu/dot_tile.h"

namespace kvcache::cpu {
namespace {

/// Positions per chunk. Another value gives other bits: the value is part of what the result is.
constexpr std::int64_t kChunk = 64;
/// The most query rows (tokens x heads of a group) of a task: they and a chunk fit the first-level cache.
constexpr std::int64_t kTaskQueries = 32;

/// One query row of a task.
struct Query {
  const float* q;        ///< [head_dim]
  float* out;            ///< [head_dim]
  std::int64_t visible;  ///< positions it sees: its own and all earlier ones
};

/// The running softmax of one query row. After the last chunk, out = sum of weighted values / weight.
struct Running {
  float largest = -std::numeric_limits<float>::infinity();
  float weight = 0;
};

/// Scratch of one thread, for `queries` rows.
struct Scratch {
  std::vector<float> scores;      // [queries, kChunk]
  std::vector<float> chunk_sums;  // [queries, padded_dim]
  std::vector<float> sums;        // [queries, padded_dim]
  std::vector<Running> parts;     // [queries], of one chunk
  std::vector<Running> running;   // [queries]
};

std::int64_t padded(std::int64_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}

/// scores[query][key] = q . k / sqrt(head_dim) for all keys of a chunk, tile by tile. `keys` [count] points
/// to the rows of K.
template <DType dtype>
void score_chunk(std::span<const Query> queries, std::span<const std::byte* const> keys,
                 std::int64_t head_dim, float* scores) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  const auto count = static_cast<std::int64_t>(keys.size());
  in_tiles<kTileRows>(0, static_cast<std::int64_t>(queries.size()), [&]<int R>(std::int64_t query) {
    constexpr int O = R == 1 ? kSingleRowOutputs : std::min(8, kTileRows * kTileOutputs / R);
    const float* q_rows[R];
    for (int r = 0; r < R; ++r) q_rows[r] = queries[static_cast<std::size_t>(query + r)].q;
    for (std::int64_t key = 0; key < count; key += O) {
      const std::byte* k_rows[O];
      float dots[R][O];
      // Behind the last key the tile repeats that key; the repeated scores are not used.
      for (int o = 0; o < O; ++o) k_rows[o] = keys[static_cast<std::size_t>(std::min(key + o, count - 1))];
      dot_tile<dtype, R, O>(q_rows, k_rows, head_dim, dots);
      for (int r = 0; r < R; ++r) {
        for (int o = 0; o < O && key + o < count; ++o)
          scores[(query + r) * kChunk + key + o] = dots[r][o] * scale;
      }
    }
  });
}

/// Turns one row of scores into weights: e^(score - largest) for the first `visible` of them, 0 for the
/// others of the chunk.
Running softmax_chunk(float* scores, std::int64_t visible) {
  std::fill(scores + visible, scores + kChunk, -std::numeric_limits<float>::infinity());
  Vec16 tops = Vec16::load(scores);
  for (std::int64_t key = 16; key < kChunk; key += 16) tops = max(Vec16::load(scores + key), tops);
  Running chunk;
  chunk.largest = largest(tops);
  Vec16 weights = Vec16::all(0.0F);
  for (std::int64_t key = 0; key < kChunk; key += 16) {
    const Vec16 weight = exp(Vec16::load(scores + key) - Vec16::all(chunk.largest));
    weight.store(scores + key);
    weights = weights + weight;
  }
  chunk.weight = sum(weights);
  return chunk;
}

/// sums[r] += weight[r][key] * v[key] for the keys [begin, end) in order, for R query rows at once.
template <DType dtype, int R>
void add_values(const float* weights, std::span<const std::byte* const> values, std::int64_t begin,
                std::int64_t end, std::int64_t head_dim, float* sums) {
  constexpr int kStrips = 4;  // strips of 16 numbers held in registers at a time
  const std::int64_t stride = padded(head_dim);
  const auto strips = [&]<int S>(std::int64_t at) {
    Vec16 totals[R][S];
    for (int r = 0; r < R; ++r) {
      for (int s = 0; s < S; ++s) totals[r][s] = Vec16::load(sums + r * stride + at + s * 16);
    }
    for (std::int64_t key = begin; key < end; ++key) {
      const std::byte* v = values[static_cast<std::size_t>(key)] + at * size_of(dtype);
      Vec16 lanes[S];
      for (int s = 0; s < S; ++s) {
        const std::int64_t left = head_dim - at - s * 16;
        lanes[s] = left >= 16 ? Vec16::load<dtype>(v + s * 16 * size_of(dtype))
                              : load_tail<dtype>(v + s * 16 * size_of(dtype), left);
      }
      for (int r = 0; r < R; ++r) {
        const Vec16 weight = Vec16::all(weights[r * kChunk + key]);
        for (int s = 0; s < S; ++s) totals[r][s] = fma(weight, lanes[s], totals[r][s]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int s = 0; s < S; ++s) totals[r][s].store(sums + r * stride + at + s * 16);
    }
  };
  std::int64_t at = 0;
  for (; at + kStrips * 16 <= head_dim; at += kStrips * 16) strips.template operator()<kStrips>(at);
  for (; at < head_dim; at += 16) strips.template operator()<1>(at);
}

/// Adds a chunk's part to the running softmax of one row, after scaling both to the larger of their maxima.
void merge(Running& running, float* sums, const Running& chunk, const float* chunk_sums, std::int64_t width) {
  const float top = std::max(running.largest, chunk.largest);
  float factors[16];
  Vec16 exponents = Vec16::all(0.0F);
  exponents.store(factors);
  factors[0] = running.largest - top;
  factors[1] = chunk.largest - top;
  exp(Vec16::load(factors)).store(factors);
  running.largest = top;
  running.weight = std::fma(running.weight, factors[0], chunk.weight * factors[1]);
  for (std::int64_t at = 0; at < width; at += 16) {
    const Vec16 part = Vec16::load(chunk_sums + at) * Vec16::all(factors[1]);
    fma(Vec16::load(sums + at), Vec16::all(factors[0]), part).store(sums + at);
  }
}

/// Runs one task: all chunks that any of `queries` sees, for one KV head.
template <DType dtype>
void attend(std::span<const Query> queries, const KvRows& rows, const SlotMap& slots,
            const AttentionShape& shape, std::int64_t kv_head, DType store_as, Scratch& scratch) {
  const std::int64_t head_dim = shape.head_dim, width = padded(head_dim);
  const std::int64_t slot_bytes = shape.kv_heads * head_dim * size_of(dtype);
  const std::int64_t head_bytes = kv_head * head_dim * size_of(dtype);
  const auto query_count = static_cast<std::int64_t>(queries.size());
  scratch.scores.resize(queries.size() * kChunk);
  scratch.chunk_sums.resize(static_cast<std::size_t>(query_count * width));
  scratch.sums.assign(static_cast<std::size_t>(query_count * width), 0.0F);
  scratch.running.assign(queries.size(), Running{});

  const std::int64_t context = queries.back().visible;  // queries come in order of position
  const std::byte* keys[kChunk];
  const std::byte* values[kChunk];
  for (std::int64_t first = 0; first < context; first += kChunk) {
    const std::int64_t count = std::min(kChunk, context - first);
    for (std::int64_t key = 0; key < count; ++key) {
      const std::int64_t offset = slots.slot(first + key) * slot_bytes + head_bytes;
      keys[key] = rows.k + offset;
      values[key] = rows.v + offset;
    }
    const auto used = static_cast<std::size_t>(count);
    score_chunk<dtype>(queries, {keys, used}, head_dim, scratch.scores.data());
    std::fill(scratch.chunk_sums.begin(), scratch.chunk_sums.end(), 0.0F);

    const auto seen = [&](std::int64_t query) {
      return std::clamp<std::int64_t>(queries[static_cast<std::size_t>(query)].visible - first, 0, count);
    };
    scratch.parts.resize(queries.size());
    for (std::int64_t query = 0; query < query_count; ++query) {
      if (seen(query) == 0) continue;
      scratch.parts[static_cast<std::size_t>(query)] =
          softmax_chunk(&scratch.scores[static_cast<std::size_t>(query * kChunk)], seen(query));
    }
    const auto weights = [&](std::int64_t row) {
      return &scratch.scores[static_cast<std::size_t>(row * kChunk)];
    };
    const auto sums = [&](std::int64_t row) {
      return &scratch.chunk_sums[static_cast<std::size_t>(row * width)];
    };
    in_tiles<kTileRows>(0, query_count, [&]<int R>(std::int64_t query) {
      // All rows of the tile see the keys that its first row sees. Each row then adds the few keys that it
      // alone sees.
      const std::int64_t common = seen(query);
      add_values<dtype, R>(weights(query), {values, used}, 0, common, head_dim, sums(query));
      for (int r = 1; r < R; ++r) {
        add_values<dtype, 1>(weights(query + r), {values, used}, common, seen(query + r), head_dim,
                             sums(query + r));
      }
    });
    for (std::int64_t query = 0; query < query_count; ++query) {
      if (seen(query) == 0) continue;
      merge(scratch.running[static_cast<std::size_t>(query)],
            &scratch.sums[static_cast<std::size_t>(query * width)],
            scratch.parts[static_cast<std::size_t>(query)], sums(query), width);
    }
  }
  for (std::int64_t query = 0; query < query_count; ++query) {
    const float weight = scratch.running[static_cast<std::size_t>(query)].weight;
    const float* total = &scratch.sums[static_cast<std::size_t>(query * width)];
    float* out = queries[static_cast<std::size_t>(query)].out;
    for (std::int64_t d = 0; d < head_dim; ++d) {
      out[d] = store_as == DType::f32 ? total[d] / weight : round_to(store_as, total[d] / weight);
    }
  }
}

/// A few new tokens of one sequence and one KV head.
struct Task {
  const AttentionSequence* sequence;
  std::int64_t first_row, last_row;
  std::int64_t kv_head;
};

}  // namespace

void attention(const AttentionShape& shape, const KvRows& rows, std::span<const AttentionSequence> sequences,
               const float* q, float* out, std::int64_t stride, DType store_as, ThreadPool& pool) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  const std::int64_t task_rows = std::max<std::int64_t>(1, kTaskQueries / group);
  std::vector<Task> tasks;
  for (const AttentionSequence& sequence : sequences) {
    // The last rows see the most positions. Starting with them leaves short tasks to fill the gaps at the
    // end.
    for (std::int64_t last = sequence.row_end; last > sequence.row_begin; last -= task_rows) {
      const std::int64_t first = std::max(sequence.row_begin, last - task_rows);
      for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head)
        tasks.push_back({&sequence, first, last, kv_head});
    }
  }
  pool.run(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
    const Task& task = tasks[static_cast<std::size_t>(index)];
    thread_local Scratch scratch;
    thread_local std::vector<Query> queries;
    queries.clear();
    for (std::int64_t row = task.first_row; row < task.last_row; ++row) {
      const std::int64_t visible = task.sequence->context - (task.sequence->row_end - row) + 1;
      for (std::int64_t head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
        const std::int64_t at = row * stride + head * shape.head_dim;
        queries.push_back({q + at, out + at, visible});
      }
    }
    with_dtype(rows.dtype, [&]<DType dtype>() {
      attend<dtype>(queries, rows, task.sequence->slots, shape, task.kv_head, store_as, scratch);
    });
  });
}

}  // namespace kvcache::cpu
