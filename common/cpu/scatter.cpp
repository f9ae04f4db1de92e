/// @file
/// See scatter.h.
#include "common/cpu/scatter.h"

#include "common/cpu/dot_tile.h"
#include "common/cpu/rows.h"

namespace kvcache::cpu {

void scatter_rows(const Matrix& rows, std::span<const std::int64_t> slots, DType dtype, std::byte* to,
                  ThreadPool& threads) {
  with_dtype(dtype, [&]<DType stored>() {
    for_each_row(rows.rows, rows.cols, threads, [&](std::int64_t row) {
      const std::int64_t slot = slots[static_cast<std::size_t>(row)];
      if (slot < 0) return;
      std::byte* at = to + slot * rows.cols * size_of(stored);
      std::int64_t col = 0;
      for (; col + 16 <= rows.cols; col += 16) {
        Vec16::load(rows.row(row) + col).store<stored>(at + col * size_of(stored));
      }
      for (; col < rows.cols; ++col) write_number(stored, rows.row(row)[col], at + col * size_of(stored));
    });
  });
}

void rotate_and_store(const HeadSettings& heads, std::int64_t head_dim, const NewRows& rows,
                      std::span<const std::int64_t> slots, DType dtype, std::byte* k_store,
                      std::byte* v_store, ThreadPool& threads) {
  norm_and_rotate(rows.q, head_dim, heads.q_norm, heads.rotation, dtype, threads);
  norm_and_rotate(rows.k, head_dim, heads.k_norm, heads.rotation, dtype, threads);
  scatter_rows(rows.k, slots, dtype, k_store, threads);
  scatter_rows(rows.v, slots, dtype, v_store, threads);
}

}  // namespace kvcache::cpu
