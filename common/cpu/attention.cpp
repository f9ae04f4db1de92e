/// @file
/// See attention.h. A task is a few new tokens of one sequence and one KV head, or a lone new token and
/// several. It takes all query heads that share a KV head, so K and V are read once for all of them. Where
/// tasks are fewer than threads need, a long one is cut into ranges of chunks: each chunk's result is kept,
/// and a second run merges them in order of position. A task that is whole merges in the same order, so both
/// give the same bits.
#include "common/cpu/attention.h"

#include <algorithm>
#include <vector>

#include "common/cpu/attention_chunk.h"

namespace kvcache::cpu {
namespace {

/// The most query rows (tokens x heads of a group) of a task, which share the copy of a chunk. More of them
/// gain little and leave fewer tasks to share among the threads.
constexpr std::int64_t kTaskQueries = 64;

/// A task is cut where it holds more than a share: the pass's chunks of all KV heads, divided by the threads
/// and by this number. So a thread that comes late leaves the others little to wait for.
constexpr std::int64_t kSharesPerThread = 4;
/// The most numbers of kept results. Tasks beyond it stay whole, so that many rows of a long context do not
/// take memory that no pool counts.
constexpr std::int64_t kMostKept = 16 << 20;
/// A merge asks memory for the result of the chunk that is so many further: another thread wrote it.
constexpr std::int64_t kPartsAhead = 4;
/// The fewest chunks of one KV head in a share: shorter ones cost more to hand out than they save.
constexpr std::int64_t kLeastShare = 2;

/// What one chunk, or all chunks up to one, add to each query row.
struct Parts {
  std::vector<Running> softmax;  // [queries]
  std::vector<float> sums;       // [queries, padded_dim]: values, weighted and added
};

/// Scratch of one thread, for `queries` rows.
struct Scratch {
  std::vector<Query> queries;  // [kv heads of the task, new tokens, heads of a group]
  std::vector<Line> q;         // [queries, lines]
  ChunkScratch chunk_scratch;
  Parts chunk;    // of one chunk
  Parts running;  // of the chunks so far
  Factors factors;
};

/// out = sums / weight. @param sums  [padded_dim]
void write_out(const Query& query, const Running& softmax, const float* sums, std::int64_t head_dim,
               DType store_as) {
  with_dtype(store_as, [&]<DType stored>() {
    for (std::int64_t at = 0; at < head_dim; at += 16) {
      const Vec16 value = round_to<stored>(Vec16::load(sums + at) / Vec16::all(softmax.weight));
      auto* out = reinterpret_cast<std::byte*>(query.out + at);
      head_dim - at >= 16 ? value.store<DType::f32>(out) : store_head<DType::f32>(value, out, head_dim - at);
    }
  });
}

/// A few new tokens of one sequence and one KV head, or a lone one and one or all KV heads; and the chunks
/// [first_chunk, last_chunk) of its context.
struct Task {
  const AttentionSequence* sequence;
  std::int64_t first_row, last_row;
  std::int64_t first_head, last_head;  ///< KV heads
  std::int64_t first_chunk, last_chunk;
  std::int64_t kept = -1;  ///< where the first chunk's result is kept, in query rows; -1: the task is whole
  /// Whether it is a lone new token.
  bool alone() const { return last_row - first_row == 1; }
};

std::int64_t chunks_of(std::int64_t positions) {
  return (positions + kChunk - 1) / kChunk;
}

/// The pass that all tasks are part of.
struct Pass {
  const AttentionShape& shape;
  const KvRows& rows;
  const float* q;
  float* out;
  std::int64_t stride;
  DType store_as;
};

/// Query rows of a task.
std::int64_t queries_of(const Task& task, const AttentionShape& shape) {
  return (task.last_row - task.first_row) * (task.last_head - task.first_head) *
         (shape.heads / shape.kv_heads);
}

/// Query row `n` of a task's [KV heads, new tokens, heads of a group].
Query query_of(const Task& task, const Pass& pass, std::int64_t n) {
  const std::int64_t group = pass.shape.heads / pass.shape.kv_heads, rows = task.last_row - task.first_row;
  const std::int64_t row = task.first_row + n / group % rows;
  const std::int64_t head = (task.first_head + n / group / rows) * group + n % group;
  const std::int64_t at = row * pass.stride + head * pass.shape.head_dim;
  return {pass.q + at, pass.out + at, task.sequence->context - (task.sequence->row_end - row) + 1};
}

/// Computes one chunk of a task, for all its query rows.
template <LineKind kind, DType dtype>
void attend_chunk(const Task& task, const Pass& pass, std::int64_t chunk, Scratch& scratch,
                  const ChunkResult& result) {
  const std::int64_t head_bytes = pass.shape.head_dim * size_of(dtype), first = chunk * kChunk;
  const std::int64_t visible = scratch.queries.back().visible;  // of the last query, which sees the most
  const std::int64_t slot_bytes = pass.shape.kv_heads * head_bytes, skip = task.first_head * head_bytes;
  const SlotMap& slots = task.sequence->slots;
  Chunk rows;
  rows.count = std::min(kChunk, visible - first);
  slots.each_slot(first, rows.count, [&](std::int64_t n, std::int64_t slot) {
    rows.keys()[n] = pass.rows.k + slot * slot_bytes + skip;
    rows.values()[n] = pass.rows.v + slot * slot_bytes + skip;
  });
  const std::byte** next = rows.rows + 2 * rows.count;
  std::fill_n(next, Chunk::kNext, rows.keys()[rows.count - 1]);  // where no chunk follows
  slots.each_slot(
      first + kChunk, std::clamp<std::int64_t>(visible - first - kChunk, 0, kKeysAtATime),
      [&](std::int64_t n, std::int64_t slot) { next[n] = pass.rows.k + slot * slot_bytes + skip; });
  if (task.alone()) {
    const AttentionShape part{static_cast<std::int64_t>(scratch.queries.size()),
                              task.last_head - task.first_head, pass.shape.head_dim};
    attend_alone<kind, dtype>(part, scratch.q.data(), rows, scratch.chunk_scratch, result);
  } else {
    attend_together<kind, dtype>(scratch.queries, scratch.q.data(), pass.shape.head_dim, first, rows,
                                 scratch.chunk_scratch, result);
  }
}

/// Merges a chunk with those before it, for the query rows that see its first position, `first`.
void merge_chunk(std::int64_t first, Scratch& scratch) {
  const auto queries = static_cast<std::int64_t>(scratch.queries.size());
  const std::int64_t width = std::ssize(scratch.running.sums) / queries;
  std::int64_t seeing = 0;  // the first of them: the last rows see the most
  while (scratch.queries[static_cast<std::size_t>(seeing)].visible <= first) ++seeing;
  Running* running = scratch.running.softmax.data();
  const Running* chunk = scratch.chunk.softmax.data();
  Factors& factors = scratch.factors;
  factors.reset(queries);
  for (std::int64_t query = seeing; query < queries; ++query)
    factors.raise(query, running[query].largest, chunk[query].largest);
  factors.exponentiate();
  for (std::int64_t query = seeing; query < queries; ++query) {
    running[query].weight = factors.merged(query, running[query].weight, chunk[query].weight);
    float* sums = scratch.running.sums.data() + query * width;
    const float* chunk_sums = scratch.chunk.sums.data() + query * width;
    for (std::int64_t at = 0; at < width; at += 16)
      factors.merged(query, Vec16::load(sums + at), Vec16::load(chunk_sums + at)).store(sums + at);
  }
}

/// Runs a task: a whole one to the end, of a cut one the chunks, whose results go to `kept`.
template <LineKind kind, DType dtype>
void attend(const Task& task, const Pass& pass, Scratch& scratch, Parts& kept) {
  const std::int64_t head_dim = pass.shape.head_dim, width = padded(head_dim);
  const std::int64_t queries = queries_of(task, pass.shape);
  scratch.queries.clear();
  for (std::int64_t query = 0; query < queries; ++query)
    scratch.queries.push_back(query_of(task, pass, query));
  scratch.q.resize(static_cast<std::size_t>(queries * lines_for(kind, head_dim)));
  for (std::int64_t query = 0; query < queries; ++query) {
    write_lines<kind>(scratch.queries[static_cast<std::size_t>(query)].q, head_dim,
                      scratch.q.data() + query * lines_for(kind, head_dim));
  }
  if (task.kept >= 0) {
    std::int64_t at = task.kept;
    for (std::int64_t chunk = task.first_chunk; chunk < task.last_chunk; ++chunk, at += queries) {
      attend_chunk<kind, dtype>(task, pass, chunk, scratch,
                                {kept.softmax.data() + at, kept.sums.data() + at * width});
    }
    return;
  }
  scratch.chunk.softmax.resize(scratch.queries.size());
  scratch.chunk.sums.resize(static_cast<std::size_t>(queries * width));
  scratch.running.softmax.assign(scratch.queries.size(), Running{});
  scratch.running.sums.assign(static_cast<std::size_t>(queries * width), 0.0F);
  for (std::int64_t chunk = task.first_chunk; chunk < task.last_chunk; ++chunk) {
    attend_chunk<kind, dtype>(task, pass, chunk, scratch,
                              {scratch.chunk.softmax.data(), scratch.chunk.sums.data()});
    merge_chunk(chunk * kChunk, scratch);
  }
  for (std::int64_t query = 0; query < queries; ++query) {
    const auto n = static_cast<std::size_t>(query);
    write_out(scratch.queries[n], scratch.running.softmax[n], scratch.running.sums.data() + query * width,
              head_dim, pass.store_as);
  }
}

/// Merges the kept chunks of one query row of a task that was cut, in order.
void merge_kept(const Task& task, std::int64_t query, const Pass& pass, const Parts& kept, Scratch& scratch) {
  const std::int64_t width = padded(pass.shape.head_dim);
  const Query row = query_of(task, pass, query);
  const std::int64_t chunks = chunks_of(row.visible), queries = queries_of(task, pass.shape);
  const Running* chunk_softmax = kept.softmax.data() + task.kept + query;  // [chunks], `queries` apart
  Factors& factors = scratch.factors;
  Running softmax;
  factors.reset(chunks);
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
    factors.raise(chunk, softmax.largest, chunk_softmax[chunk * queries].largest);
  factors.exponentiate();
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
    softmax.weight = factors.merged(chunk, softmax.weight, chunk_softmax[chunk * queries].weight);
  std::vector<float>& sums = scratch.running.sums;
  sums.resize(static_cast<std::size_t>(width));
  in_tiles<8>(0, width / 16, [&]<int S>(std::int64_t vector) {
    const float* chunk_sums = kept.sums.data() + (task.kept + query) * width + vector * 16;
    Vec16 totals[S];
    std::fill(std::begin(totals), std::end(totals), Vec16::all(0.0F));
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk, chunk_sums += queries * width) {
      for (int s = 0; s < S; ++s) {
        __builtin_prefetch(chunk_sums + kPartsAhead * queries * width + s * 16);
        totals[s] = factors.merged(chunk, totals[s], Vec16::load(chunk_sums + s * 16));
      }
    }
    for (int s = 0; s < S; ++s) totals[s].store(sums.data() + (vector + s) * 16);
  });
  write_out(row, softmax, sums.data(), pass.shape.head_dim, pass.store_as);
}

/// All tasks of a pass, whole. Several new tokens are a task for each KV head and each few rows. So is a lone
/// one, unless there are chunks enough for all threads: then it takes all heads at once. The last rows see
/// the most positions: starting with them leaves short tasks to fill the gaps at the end.
std::vector<Task> whole_tasks(const AttentionShape& shape, std::span<const AttentionSequence> sequences,
                              int threads) {
  const std::int64_t task_rows = std::max<std::int64_t>(1, kTaskQueries * shape.kv_heads / shape.heads);
  std::int64_t chunks = 0;
  for (const AttentionSequence& sequence : sequences) chunks += chunks_of(sequence.context);
  const std::int64_t heads_alone = chunks >= 2 * threads ? shape.kv_heads : 1;
  std::vector<Task> tasks;
  for (const AttentionSequence& sequence : sequences) {
    for (std::int64_t last = sequence.row_end; last > sequence.row_begin; last -= task_rows) {
      const std::int64_t first = std::max(sequence.row_begin, last - task_rows);
      const std::int64_t visible = sequence.context - (sequence.row_end - last);
      const std::int64_t heads = last - first == 1 ? heads_alone : 1;
      for (std::int64_t head = 0; head < shape.kv_heads; head += heads)
        tasks.push_back({&sequence, first, last, head, head + heads, 0, chunks_of(visible)});
    }
  }
  return tasks;
}

/// One query row of a task that was cut.
struct Merge {
  std::size_t task;  ///< in Tasks::cut
  std::int64_t query;
};

/// What the threads run: pieces, then the merges of the tasks that were cut.
struct Tasks {
  std::vector<Task> pieces;    ///< whole tasks, and the pieces of the others
  std::vector<Task> cut;       ///< the tasks that were cut, as they were before
  std::vector<Merge> merges;   ///< of all their query rows
  std::int64_t kept_rows = 0;  ///< query rows of all chunks of the tasks that were cut
};

Tasks cut_tasks(const std::vector<Task>& whole, const AttentionShape& shape, int threads) {
  std::int64_t work = 0;  // chunks times KV heads
  for (const Task& task : whole) work += task.last_chunk * (task.last_head - task.first_head);
  const std::int64_t share = threads == 1 ? work : std::max(kLeastShare, work / (kSharesPerThread * threads));
  Tasks tasks;
  for (Task task : whole) {
    const std::int64_t heads = task.last_head - task.first_head;
    const std::int64_t most = std::max<std::int64_t>(1, share / heads);  // chunks of a piece
    const std::int64_t queries = queries_of(task, shape);
    const std::int64_t kept_rows = tasks.kept_rows + task.last_chunk * queries;
    if (task.last_chunk <= most || kept_rows * padded(shape.head_dim) > kMostKept) {
      tasks.pieces.push_back(task);
      continue;
    }
    task.kept = tasks.kept_rows;
    for (std::int64_t query = 0; query < queries; ++query) tasks.merges.push_back({tasks.cut.size(), query});
    tasks.cut.push_back(task);
    tasks.kept_rows = kept_rows;
    for (std::int64_t chunk = 0; chunk < task.last_chunk; chunk += most) {
      Task piece = task;
      piece.first_chunk = chunk;
      piece.last_chunk = std::min(task.last_chunk, chunk + most);
      piece.kept = task.kept + chunk * queries;
      tasks.pieces.push_back(piece);
    }
  }
  return tasks;
}

/// The calling thread's.
Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

}  // namespace

void attention(const AttentionShape& shape, const KvRows& rows, std::span<const AttentionSequence> sequences,
               const float* q, float* out, std::int64_t stride, DType store_as, ThreadPool& pool) {
  const Pass pass{shape, rows, q, out, stride, store_as};
  const Tasks tasks = cut_tasks(whole_tasks(shape, sequences, pool.threads()), shape, pool.threads());
  thread_local Parts kept_parts;
  Parts& kept = kept_parts;  // of this thread, in the tasks of all threads
  kept.softmax.resize(static_cast<std::size_t>(tasks.kept_rows));
  kept.sums.resize(static_cast<std::size_t>(tasks.kept_rows * padded(shape.head_dim)));
  pool.run(static_cast<std::int64_t>(tasks.pieces.size()), [&](std::int64_t index) {
    with_dtype(rows.dtype, [&]<DType dtype>() {
      with_dtype(store_as, [&]<DType activations>() {
        constexpr LineKind kind = line_kind(activations, dtype);
        attend<kind, dtype>(tasks.pieces[static_cast<std::size_t>(index)], pass, scratch(), kept);
      });
    });
  });
  pool.run(std::ssize(tasks.merges), [&](std::int64_t index) {
    const Merge& merge = tasks.merges[static_cast<std::size_t>(index)];
    merge_kept(tasks.cut[merge.task], merge.query, pass, kept, scratch());
  });
}

}  // namespace kvcache::cpu
