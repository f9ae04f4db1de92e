/// @file
/// Products of bf16 in the matrix tiles (AMX) of Intel's processors from Sapphire Rapids on. A tile is a
/// register of 16 rows of 64 bytes, and one instruction multiplies 16 rows of weights with 16 rows of x, 32
/// numbers of each. Source: Intel's Software Developer's Manual, TDPBF16PS. Chapter: step 1, "The same bits".
///
/// A step of 32 numbers keeps two partial sums, of the even and of the odd elements; their sum is added to
/// the total. This order is the same for every shape of the tiles, so a lone row has the bits of 512 rows.
#pragma once

#include <algorithm>
#include <vector>

#include "common/base/matrix.h"
#include "common/cpu/lines.h"

#if defined(KVCACHE_BF16_TILES)

#include <sys/syscall.h>
#include <unistd.h>

namespace kvcache::cpu {

inline constexpr std::int64_t kMatrixTile = 16;  ///< rows of weights or of x in a tile
/// The weights of a few rows are asked for so many lines before they are multiplied.
inline constexpr std::int64_t kLinesAhead = 4;

/// Asks Linux once for the right to use tiles, for all threads. Without it their first use ends the process.
inline bool tiles_allowed() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool allowed = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return allowed;
}

/// Turns sixteen lines of sixteen pairs: pair p of line n becomes pair n of line p.
inline void transpose(__m512i (&lines)[16]) {
  // Each round doubles the size of the squares that are in place.
  __m512i one[16], two[16];
  for (int n = 0; n < 16; n += 2) {
    one[n] = _mm512_unpacklo_epi32(lines[n], lines[n + 1]);
    one[n + 1] = _mm512_unpackhi_epi32(lines[n], lines[n + 1]);
  }
  for (int n = 0; n < 16; n += 4) {
    for (int half = 0; half < 2; ++half) {
      two[n + 2 * half] = _mm512_unpacklo_epi64(one[n + half], one[n + 2 + half]);
      two[n + 2 * half + 1] = _mm512_unpackhi_epi64(one[n + half], one[n + 2 + half]);
    }
  }
  for (int n = 0; n < 16; n += 8) {
    for (int p = 0; p < 4; ++p) {
      one[n + p] = _mm512_shuffle_i32x4(two[n + p], two[n + 4 + p], 0x88);
      one[n + 4 + p] = _mm512_shuffle_i32x4(two[n + p], two[n + 4 + p], 0xDD);
    }
  }
  for (int p = 0; p < 8; ++p) {
    lines[p] = _mm512_shuffle_i32x4(one[p], one[p + 8], 0x88);
    lines[p + 8] = _mm512_shuffle_i32x4(one[p], one[p + 8], 0xDD);
  }
}

/// Rounds up to sixteen rows of x to bf16, in the order in which tiles take them.
/// @param x      the first row's first number; the others follow `stride` numbers apart
/// @param cols   numbers in a row
/// @param pairs  [lines of a row, 16 pairs, rows] pairs of numbers
inline void write_pairs(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                        Line* pairs) {
  constexpr std::int64_t kNumbers = numbers_in(LineKind::bf16), kPairBytes = 4;
  if (rows == 1) {  // its pairs follow each other
    write_lines<LineKind::bf16>(x, cols, pairs);
    return;
  }
  for (; cols > 0; cols -= kNumbers, x += kNumbers, pairs += rows) {
    Line lines[kMatrixTile];
    for (std::int64_t n = 0; n < rows; ++n)
      write_lines<LineKind::bf16>(x + n * stride, std::min(kNumbers, cols), &lines[n]);
    if (rows == kMatrixTile) {
      __m512i turned[kMatrixTile];
      for (int n = 0; n < kMatrixTile; ++n) turned[n] = _mm512_load_si512(lines[n].bytes);
      transpose(turned);
      for (int n = 0; n < kMatrixTile; ++n) _mm512_store_si512(pairs[n].bytes, turned[n]);
    } else {
      std::byte* to = pairs->bytes;
      for (std::int64_t pair = 0; pair < kNumbers / 2; ++pair) {
        for (std::int64_t n = 0; n < rows; ++n, to += kPairBytes)
          std::memcpy(to, lines[n].bytes + pair * kPairBytes, kPairBytes);
      }
    }
  }
}

/// What the instruction LDTILECFG reads: the shape of each tile.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;          ///< the only one that has tiles
  std::uint8_t start_row = 0;        ///< where an interrupted instruction goes on
  std::uint8_t reserved[14] = {};    ///< zeros
  std::uint16_t row_bytes[16] = {};  ///< of each tile
  std::uint8_t rows[16] = {};        ///< of each tile
};

/// Up to 32 rows of weights, as tiles load them.
struct TileWeights {
  std::int64_t outputs;     ///< rows
  std::int64_t lines;       ///< of a row
  std::int64_t whole;       ///< lines of a row that `first` has; a last one may be in `tail`
  const std::byte* first;   ///< the first line of the first row
  std::int64_t row_bytes;   ///< from a row to the next
  std::int64_t line_bytes;  ///< from a line of a row to the next
  const Line* tail;         ///< [outputs]
};

/// The rows [first, last) of `weight`: where they lie or, if `pack`, copied into `memory`, line by line.
inline TileWeights tile_weights(const Weight& weight, std::int64_t first, std::int64_t last, bool pack,
                                std::vector<Line>& memory) {
  constexpr LineKind kKind = LineKind::bf16;
  const std::int64_t row_bytes = weight.cols * size_of(DType::bf16);
  const std::int64_t lines = lines_for(kKind, weight.cols), whole = weight.cols / numbers_in(kKind);
  const std::int64_t tail = weight.cols - whole * numbers_in(kKind), apart = 2 * kMatrixTile;
  Line* const copy = room(memory, lines * apart);
  for (std::int64_t row = first; row < last; ++row) {
    const std::byte* from = weight.data + row * row_bytes;
    Line* to = copy + row - first;
    if (pack) {
      copy_row<kKind, DType::bf16>(from, weight.cols, to, apart);
    } else if (tail > 0) {
      *to = tail_line<kKind, DType::bf16>(from + whole * kLineBytes, tail);
    }
  }
  if (pack) return {last - first, lines, lines, copy->bytes, kLineBytes, apart * kLineBytes, nullptr};
  return {last - first, lines, whole, weight.data + first * row_bytes, row_bytes, kLineBytes, copy};
}

/// products[r][o] = row r of x times row o of weights.
/// @param x         from write_pairs: the first sixteen rows, then the others
/// @param rows      up to 32
/// @param products  [rows, 32]; those behind the last output have no meaning
inline void multiply_in_tiles(const TileWeights& w, const std::byte* x, std::int64_t rows,
                              float (*products)[2 * kMatrixTile]) {
  // Tiles 0 to 3 hold the sums [outputs, rows] of both halves times both halves, 4 and 5 the halves of the
  // weights, 6 and 7 those of x.
  const std::int64_t outputs_of[2] = {std::min(w.outputs, kMatrixTile), w.outputs - kMatrixTile};
  const std::int64_t rows_of[2] = {std::min(rows, kMatrixTile), rows - kMatrixTile};
  const bool more_outputs = outputs_of[1] > 0, more_rows = rows_of[1] > 0;
  TileShapes shapes;
  for (std::size_t o = 0; o < 2; ++o) {
    for (std::size_t r = 0; r < 2; ++r) {
      if (outputs_of[o] <= 0 || rows_of[r] <= 0) continue;
      shapes.rows[2 * o + r] = shapes.rows[4 + o] = static_cast<std::uint8_t>(outputs_of[o]);
      shapes.row_bytes[2 * o + r] = shapes.row_bytes[6 + r] = static_cast<std::uint16_t>(rows_of[r] * 4);
      shapes.row_bytes[4 + o] = kLineBytes, shapes.rows[6 + r] = kLineBytes / 4;
    }
  }
  asm volatile("" ::: "memory");  // GCC does not know that the tiles' instructions read memory
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  if (more_rows) _tile_zero(1);
  if (more_outputs) _tile_zero(2);
  if (more_outputs && more_rows) _tile_zero(3);
  const std::byte* more_x = x + rows_of[0] * w.lines * kLineBytes;
  for (std::int64_t line = 0; line < w.lines; ++line) {
    const bool whole = line < w.whole;
    const std::byte* weights = whole ? w.first + line * w.line_bytes : w.tail->bytes;
    const std::int64_t row_bytes = whole ? w.row_bytes : kLineBytes;
    if (!more_rows && whole) {  // so few rows wait for their weights; behind these lie the next unit's
      const std::int64_t ahead =
          kLinesAhead * w.line_bytes + (line + kLinesAhead < w.lines ? 0 : (w.outputs - 1) * row_bytes);
      for (std::int64_t o = 0; o < w.outputs; ++o) __builtin_prefetch(weights + o * row_bytes + ahead);
    }
    _tile_loadd(4, weights, row_bytes);
    _tile_loadd(6, x + line * rows_of[0] * kLineBytes, rows_of[0] * 4);
    _tile_dpbf16ps(0, 4, 6);
    if (more_outputs) {
      _tile_loadd(5, weights + kMatrixTile * row_bytes, row_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if (more_rows) {
      _tile_loadd(7, more_x + line * rows_of[1] * kLineBytes, rows_of[1] * 4);
      _tile_dpbf16ps(1, 4, 7);
      if (more_outputs) _tile_dpbf16ps(3, 5, 7);
    }
  }
  alignas(64) static thread_local float sums[4][kMatrixTile][kMatrixTile];  // as the tiles 0 to 3
  _tile_stored(0, sums[0], kLineBytes);
  if (more_rows) _tile_stored(1, sums[1], kLineBytes);
  if (more_outputs) _tile_stored(2, sums[2], kLineBytes);
  if (more_outputs && more_rows) _tile_stored(3, sums[3], kLineBytes);
  _tile_release();
  for (std::int64_t o = 0; o < w.outputs; o += kMatrixTile) {
    for (std::int64_t r = 0; r < rows; r += kMatrixTile) {
      const auto& tile = sums[(2 * o + r) / kMatrixTile];
      __m512i turned[kMatrixTile];
      for (int n = 0; n < kMatrixTile; ++n) turned[n] = _mm512_load_si512(tile[n]);
      transpose(turned);
      for (std::int64_t n = 0; n < std::min(kMatrixTile, rows - r); ++n)
        _mm512_storeu_si512(&products[r + n][o], turned[n]);
    }
  }
}

}  // namespace kvcache::cpu

#endif
