/// @file
/// See scatter.h.
#include "common/cpu/scatter.h"

#include "common/cpu/dot_tile.h"
#include "common/cpu/rows.h"

namespace kvcache::cpu {
namespace {

void scatter_row(const Matrix& rows, std::int64_t row, std::span<const std::int64_t> slots, DType dtype,
                 std::byte* to) {
  const std::int64_t slot = slots[static_cast<std::size_t>(row)];
  if (slot < 0) return;
  const float* from = rows.row(row);
  with_dtype(dtype, [&]<DType stored>() {
    std::byte* at = to + slot * rows.cols * size_of(stored);
    std::int64_t col = 0;
    for (; col + 16 <= rows.cols; col += 16)
      Vec16::load(from + col).store<stored>(at + col * size_of(stored));
    for (; col < rows.cols; ++col) write_number(stored, from[col], at + col * size_of(stored));
  });
}

}  // namespace

void scatter_rows(const Matrix& rows, std::span<const std::int64_t> slots, DType dtype, std::byte* to,
                  ThreadPool& threads) {
  for_each_row(rows.rows, rows.cols, threads,
               [&](std::int64_t row) { scatter_row(rows, row, slots, dtype, to); });
}

void rotate_and_store(const HeadSettings& heads, std::int64_t head_dim, const NewRows& rows,
                      std::span<const std::int64_t> slots, DType dtype, std::byte* k_store,
                      std::byte* v_store, ThreadPool& threads) {
  for_each_row(rows.q.rows, rows.q.cols + rows.k.cols + rows.v.cols, threads, [&](std::int64_t row) {
    norm_and_rotate_row(rows.q, row, head_dim, heads.q_norm, heads.rotation, dtype);
    norm_and_rotate_row(rows.k, row, head_dim, heads.k_norm, heads.rotation, dtype);
    scatter_row(rows.k, row, slots, dtype, k_store);
    scatter_row(rows.v, row, slots, dtype, v_store);
  });
}

}  // namespace kvcache::cpu
