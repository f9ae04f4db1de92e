/// @file
/// See attention.h. The host's half: it cuts a pass into tiles, long rows into parts (`add_decode_tiles`),
/// and chooses the rung. The kernels are in attention_plain.cu, attention_tiles.cu and
/// attention_mma_*.cu.
#include "common/cuda/attention.h"

#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "common/base/error.h"
#include "common/cuda/attention_work.h"
#include "common/cuda/rotate_and_store.h"
#include "fmt/format.h"

namespace kvcache::cuda {
namespace {

/// One rung of the ladder.
struct Rung {
  std::int32_t prefill_queries;  ///< queries per thread block, for a sequence with several rows
  bool splits;                   ///< several thread blocks share a long row in decode
  AttentionLaunch decode, prefill;
};

Rung rung_of(AttentionKernels kernels) {
  switch (kernels) {
    case AttentionKernels::plain:
      return {kTileQueries, false, attend_plain, attend_plain};
    case AttentionKernels::tiles:
      return {kTileQueries, true, attend_in_tiles, attend_in_tiles};
    default:
      return {kTensorCorePrefillQueries, true, decode_on_tensor_cores, prefill_on_tensor_cores};
  }
}

AttentionKernels choose(AttentionKernels wanted, const Device& device, std::int64_t head_dim, DType dtype) {
  if (wanted == AttentionKernels::plain || wanted == AttentionKernels::tiles) return wanted;
  const bool fits_tensor_cores = device.compute_capability() >= 80 && tensor_core_kernels_are_built() &&
                                 dtype != DType::f32 && (head_dim == 64 || head_dim == 128);
  return fits_tensor_cores ? AttentionKernels::tensor_cores : AttentionKernels::tiles;
}

/// Appends the tiles of a decoding sequence, which has one row. Here long rows are cut: each part of
/// `split_length` positions, for at most kTileQueries query heads, becomes one tile.
/// @param row     sequence, row and visible are set
/// @param parts   counts the parts of all rows
void add_decode_tiles(std::vector<AttentionTile>& tiles, AttentionTile row, std::int32_t group, bool splits,
                      std::int32_t& parts) {
  const std::int32_t length = splits ? split_length(row.visible) : row.visible;
  row.parts = (row.visible - 1) / length + 1;
  for (row.first_query = 0; row.first_query < group; row.first_query += kTileQueries) {
    row.queries = std::min(kTileQueries, group - row.first_query);
    if (row.parts > 1) {
      row.first_part = parts;
      parts += row.parts;
    }
    for (row.part = 0; row.part < row.parts; ++row.part) {
      row.begin = row.part * length;
      row.end = row.part + 1 < row.parts ? row.begin + length : row.visible;
      tiles.push_back(row);
    }
  }
}

/// Appends the tiles of a sequence that has `rows` rows. Their positions are not cut.
/// @param first   the first row: sequence, row and visible are set
void add_prefill_tiles(std::vector<AttentionTile>& tiles, AttentionTile first, std::int32_t rows,
                       std::int32_t group, std::int32_t tile_queries) {
  const std::int32_t queries = rows * group;
  for (first.first_query = 0; first.first_query < queries; first.first_query += tile_queries) {
    first.queries = std::min(tile_queries, queries - first.first_query);
    first.end = first.visible + (first.first_query + first.queries - 1) / group;
    tiles.push_back(first);
  }
}

/// The number of tiles with padding, at most a quarter more. It seldom changes as sequences grow, so that a
/// recorded pass can be played again (recorded_passes.h). A thread block that finds a tile of padding ends.
std::size_t rounded_up(std::size_t tiles) {
  const std::size_t step = std::max<std::size_t>(1, std::bit_floor(tiles) / 4);
  return (tiles + step - 1) / step * step;
}

bool aligned(const void* rows, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(rows) % 16 == 0 && stride % 8 == 0;
}

}  // namespace

Attention::Attention(const Device& device, const AttentionShape& shape, DType dtype, AttentionKernels kernels)
    : shape_(shape),
      dtype_(dtype),
      kernels_(choose(kernels, device, shape.head_dim, dtype)),
      stream_(device.stream()),
      part_room_(PartRoom::of(shape, 0)) {
  if (shape.head_dim < 8 || shape.head_dim > kMostHeadDim || shape.head_dim % 8 != 0) {
    throw InputError(fmt::format(
        "head_dim {} is not a multiple of 8 up to {}, which --device cuda needs; use --device cpu",
        shape.head_dim, kMostHeadDim));
  }
}

void Attention::begin(std::span<const std::int32_t> row_begin, std::span<const std::int32_t> context_len) {
  row_begin_.assign(row_begin.begin(), row_begin.end());
  context_len_.assign(context_len.begin(), context_len.end());
  list_work(kernels_);
}

void Attention::list_work(AttentionKernels kernels) {
  const Rung rung = rung_of(kernels);
  const auto group = static_cast<std::int32_t>(shape_.heads / shape_.kv_heads);
  std::vector<AttentionTile> decode, prefill;
  std::int32_t parts = 0;
  for (std::size_t s = 0; s < context_len_.size(); ++s) {
    const std::int32_t rows = row_begin_[s + 1] - row_begin_[s];
    AttentionTile first;
    first.sequence = static_cast<std::int32_t>(s);
    first.row = row_begin_[s];
    first.visible = context_len_[s] - rows + 1;
    if (rows == 1) add_decode_tiles(decode, first, group, rung.splits, parts);
    if (rows > 1) add_prefill_tiles(prefill, first, rows, group, rung.prefill_queries);
  }
  // The longest tiles start first, so that short ones fill the gaps at the end.
  std::ranges::stable_sort(prefill, std::ranges::greater{}, &AttentionTile::end);

  has_long_parts_ =
      std::ranges::any_of(decode, [](const AttentionTile& tile) { return tile.end - tile.begin > kSpan; });
  if (prefill.empty()) decode.resize(rounded_up(decode.size()));

  reserve_parts(parts);
  decode_tiles_(decode, stream_);
  prefill_tiles_(prefill, stream_);
  decode_count_ = std::ssize(decode);
  prefill_count_ = std::ssize(prefill);
  longest_prefill_ = prefill.empty() ? 0 : prefill.front().end;
  listed_for_ = kernels;
}

std::vector<std::int64_t> Attention::launch_key() const {
  if (prefill_count_ > 0) return {};
  return {decode_count_, has_long_parts_ ? 1 : 0};
}

void Attention::reserve_parts(std::int64_t parts) {
  if (parts <= part_room_.parts) return;
  check(cudaStreamSynchronize(stream_), "waiting for the GPU");
  const PartRoom room = PartRoom::of(shape_, parts);
  part_sums_.reserve(room.sums, "attention over long contexts");
  part_softmax_.reserve(room.softmax, "attention over long contexts");
  arrived_.reserve(room.arrived, "attention over long contexts");
  check(cudaMemsetAsync(arrived_.data(), 0, static_cast<std::size_t>(arrived_.size()) * sizeof(std::uint32_t),
                        stream_),
        "clearing counters on the GPU");
  part_room_ = room;
}

void Attention::run(const KvRows& rows, const SlotMap& slots, const void* q, std::int64_t q_stride, void* out,
                    std::int64_t out_stride) {
  AttentionPass pass;
  pass.rows = rows;
  pass.slots = slots;
  pass.q = q;
  pass.q_stride = q_stride;
  pass.out = out;
  pass.out_stride = out_stride;
  const bool vectors = aligned(q, q_stride) && aligned(out, out_stride);
  start(pass, vectors ? kernels_ : AttentionKernels::plain);
}

void Attention::store_and_run(const HeadSettings& heads, const NewRows& rows,
                              const std::int64_t* slots_of_rows, void* k, void* v, const SlotMap& slots,
                              Matrix& out) {
  const bool early = !std::exchange(next_waits_, false);
  const Matrix& q = rows.q;
  const bool one_kernel = kernels_ == AttentionKernels::tensor_cores && prefill_count_ == 0 &&
                          aligned(q.data, q.stride) && aligned(out.data, out.stride);
  if (!one_kernel) {
    rotate_and_store(dtype_, heads, shape_.head_dim, rows, slots_of_rows, k, v, stream_);
    run({k, v}, slots, q.data, q.stride, out.data, out.stride);
    return;
  }
  AttentionPass pass;
  pass.rows = {k, v};
  pass.slots = slots;
  pass.q = q.data;
  pass.q_stride = q.stride;
  pass.out = out.data;
  pass.out_stride = out.stride;
  pass.fresh = {.k = rows.k.data,
                .k_stride = rows.k.stride,
                .v = rows.v.data,
                .v_stride = rows.v.stride,
                .q_norm = heads.q_norm.weight.data,
                .k_norm = heads.k_norm.weight.data,
                .q_eps = heads.q_norm.eps,
                .k_eps = heads.k_norm.eps,
                .rotation = heads.rotation,
                .slots = slots_of_rows,
                .k_store = k,
                .v_store = v,
                .early = early};
  start(pass, kernels_);
}

void Attention::start(AttentionPass& pass, AttentionKernels kernels) {
  if (listed_for_ != kernels) list_work(kernels);
  pass.kv_heads = static_cast<std::int32_t>(shape_.kv_heads);
  pass.group = static_cast<std::int32_t>(shape_.heads / shape_.kv_heads);
  pass.head_dim = static_cast<std::int32_t>(shape_.head_dim);
  pass.part_queries = static_cast<std::int32_t>(part_room_.queries);
  pass.has_long_parts = has_long_parts_;
  pass.longest = longest_prefill_;
  pass.scale = std::numbers::log2e_v<float> / std::sqrt(static_cast<float>(shape_.head_dim));
  pass.part_sums = part_sums_.data();
  pass.part_softmax = part_softmax_.data();
  pass.arrived = arrived_.data();

  const Rung rung = rung_of(kernels);
  pass.tiles = prefill_tiles_.data();
  rung.prefill(dtype_, pass, prefill_count_, stream_);
  pass.tiles = decode_tiles_.data();
  rung.decode(dtype_, pass, decode_count_, stream_);
}

}  // namespace kvcache::cuda
