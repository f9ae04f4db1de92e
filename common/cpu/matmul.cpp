/// @file
/// See matmul.h. A lone row reads the weights from memory straight into registers. Several rows share the
/// weights: a unit's weights are copied into lines, widened where they must be, and multiplied with all rows
/// of the unit, tile by tile. Matrix tiles take the weights of up to 32 rows as they lie in memory, and
/// copies for more.
#include "common/cpu/matmul.h"

#include <algorithm>
#include <vector>

#include "common/cpu/dot_tile.h"
#include "common/cpu/matrix_tiles.h"
#include "common/cpu/rows.h"

namespace kvcache {
namespace {

using cpu::Line;
using cpu::LineKind;

/// Outputs in a unit of work; a multiple of every tile's width and of the sixteen that are summed at a time.
constexpr std::int64_t kUnitOutputs = 48;
/// Rows of x in a unit; a multiple of a tile's.
constexpr std::int64_t kUnitRows = 22 * kTileRows;
/// Up to so many rows a product is bound by reading its weights.
constexpr std::int64_t kFewRows = 4 * kTileRows;
/// The most lines of each row that a tile takes before it turns to the next weights: 3 KiB a row, so that a
/// tile's rows of x stay in the first-level cache.
constexpr std::int64_t kBlockLines = 48;

/// Rows of weights that a lone row of x takes side by side. A Zen foresees one stream best; the Xeon has more
/// of 16 rows on their way at a time (record: docs/results/2026-11-30-cpu-products.md).
#if defined(KVCACHE_ZEN_AVX512)
constexpr int kSideBySide = 1;
#elif defined(KVCACHE_AVX512)
constexpr int kSideBySide = 16;
#else
constexpr int kSideBySide = 4;
#endif

/// Rows of x as lines.
struct Rows {
  const std::byte* data = nullptr;
  std::int64_t row_bytes = 0;  ///< from one row to the next
  const std::byte* line(std::int64_t row, std::int64_t line) const {
    return data + row * row_bytes + line * cpu::kLineBytes;
  }
};

/// Some rows of x times some outputs of one product.
struct Unit {
  const MatmulOutput* to;
  std::int64_t first_row, last_row;
  std::int64_t first_output, last_output;
};

/// Writes inner products of one row of x to the outputs from `output` on, with bias, sum and rounding as
/// MatmulOutput says. @param products  [count], and room for whole vectors
void put(const float* products, std::int64_t count, std::int64_t row, std::int64_t output,
         const MatmulOutput& to, DType store_as) {
  const Weight& bias = to.projection->bias;
  float* out = to.data + row * to.stride + output;
  with_dtype(store_as, [&]<DType stored>() {
    for (std::int64_t n = 0; n < count; n += 16, out += 16) {
      const std::int64_t here = std::min<std::int64_t>(16, count - n);
      Vec16 y = Vec16::load(products + n);
      if (bias.present()) {
        float numbers[16] = {};
        for (std::int64_t i = 0; i < here; ++i) {
          numbers[i] = read_number(bias.dtype, bias.data + (output + n + i) * size_of(bias.dtype));
        }
        y = y + Vec16::load(numbers);
        if (to.add) y = round_to<stored>(y);
      }
      auto* bytes = reinterpret_cast<std::byte*>(out);
      if (to.add) y = (here == 16 ? Vec16::load(out) : load_tail<DType::f32>(bytes, here)) + y;
      y = round_to<stored>(y);
      here == 16 ? y.store(out) : store_head<DType::f32>(y, bytes, here);
    }
  });
}

/// The sums of one row of x with S rows of weights, read side by side. @param w  the first; the others follow
template <LineKind kind, DType stored, int S>
void multiply_side_by_side(const std::byte* x, const std::byte* w, std::int64_t cols, Vec16 (&sums)[S]) {
  using cpu::Lanes;
  constexpr DType in_line = cpu::dtype_in(kind);
  constexpr std::int64_t kNumbers = cpu::numbers_in(kind);
  const std::int64_t row_bytes = cols * size_of(stored);
  Vec16 totals[S];
  std::fill(std::begin(totals), std::end(totals), Vec16::all(0.0F));
  for (; cols >= kNumbers; cols -= kNumbers, x += cpu::kLineBytes, w += kNumbers * size_of(stored)) {
    const auto numbers = Lanes<kind>::template load<in_line>(x);
    for (int n = 0; n < S; ++n)
      totals[n] = multiply_add(numbers, Lanes<kind>::template load<stored>(w + n * row_bytes), totals[n]);
  }
  for (int n = 0; n < S && cols > 0; ++n) {
    const Line tail = cpu::tail_line<kind, stored>(w + n * row_bytes, cols);
    totals[n] = multiply_add(Lanes<kind>::template load<in_line>(x),
                             Lanes<kind>::template load<in_line>(tail.bytes), totals[n]);
  }
  std::copy(std::begin(totals), std::end(totals), sums);
}

/// One row times the unit's outputs, as in decoding.
template <LineKind kind, DType stored>
void lone_row(const Rows& x, const Unit& unit, DType store_as) {
  const Weight& weight = unit.to->projection->weight;
  const std::int64_t row_bytes = weight.cols * size_of(stored);
  const std::byte* x_row = x.line(unit.first_row, 0);
  for (std::int64_t output = unit.first_output; output < unit.last_output; output += 16) {
    const std::int64_t count = std::min<std::int64_t>(16, unit.last_output - output);
    Vec16 sums[16];
    std::fill(std::begin(sums), std::end(sums), Vec16::all(0.0F));
    const auto multiply = [&]<int S>(std::int64_t n) {
      multiply_side_by_side<kind, stored, S>(x_row, weight.data + (output + n) * row_bytes, weight.cols,
                                             reinterpret_cast<Vec16(&)[S]>(sums[n]));
    };
    std::int64_t n = 0;
    for (; n + kSideBySide <= count; n += kSideBySide) multiply.template operator()<kSideBySide>(n);
    for (; n < count; ++n) multiply.template operator()<1>(n);
    float products[16];
    sum_each(sums).store(products);
    put(products, count, unit.first_row, output, *unit.to, store_as);
  }
}

/// Copies kTileOutputs rows of weights from `output` on into `tile` [lines, kTileOutputs]; rows behind the
/// unit's last are zeros.
template <LineKind kind, DType stored>
void copy_weights(const Unit& unit, std::int64_t output, std::int64_t lines, Line* tile) {
  const Weight& weight = unit.to->projection->weight;
  for (std::int64_t n = 0; n < kTileOutputs; ++n) {
    if (output + n < unit.last_output) {
      const std::byte* from = weight.data + (output + n) * weight.cols * size_of(stored);
      cpu::copy_row<kind, stored>(from, weight.cols, tile + n, kTileOutputs);
    } else {
      for (std::int64_t line = 0; line < lines; ++line) tile[line * kTileOutputs + n] = Line{};
    }
  }
}

/// A few rows times the unit's outputs, as in a batch of decoding sequences: reading the weights takes as
/// long as the products. So while one tile is multiplied, memory is asked for the weights of the next.
template <LineKind kind, DType stored>
void few_rows(const Rows& x, const Unit& unit, DType store_as) {
  const Weight& weight = unit.to->projection->weight;
  const std::int64_t lines = cpu::lines_for(kind, weight.cols), row_bytes = weight.cols * size_of(stored);
  constexpr std::int64_t kStep = cpu::numbers_in(kind) * size_of(stored);
  thread_local std::vector<Line> memory;
  Line* const tile = cpu::room(memory, lines * kTileOutputs);
  float products[kFewRows][kUnitOutputs];
  for (std::int64_t output = unit.first_output; output < unit.last_output; output += kTileOutputs) {
    copy_weights<kind, stored>(unit, output, lines, tile);
    // Behind the unit lie the weights of another, which some thread takes next.
    const bool more = output + 2 * kTileOutputs <= weight.rows;
    const std::byte* next = weight.data + (output + kTileOutputs) * row_bytes;
    in_tiles<kTileRows>(unit.first_row, unit.last_row, [&]<int R>(std::int64_t row) {
      const std::byte* x_rows[R];
      float* to[R];
      for (int r = 0; r < R; ++r) {
        x_rows[r] = x.line(row + r, 0);
        to[r] = &products[row + r - unit.first_row][output - unit.first_output];
      }
      TileSums<R> sums;
      std::fill(std::begin(sums), std::end(sums), Vec16::all(0.0F));
      if (more && row == unit.first_row) {
        multiply_tile<kind, R>(x_rows, tile, lines, sums, [&](std::int64_t line) {
          for (int o = 0; o < kTileOutputs; ++o)
            __builtin_prefetch(next + o * row_bytes + line * kStep, 0, 2);
        });
      } else {
        multiply_tile<kind, R>(x_rows, tile, lines, sums);
      }
      sum_tile<R>(sums, to);
    });
  }
  for (std::int64_t row = unit.first_row; row < unit.last_row; ++row) {
    put(products[row - unit.first_row], unit.last_output - unit.first_output, row, unit.first_output,
        *unit.to, store_as);
  }
}

/// Many rows times the unit's outputs, as in prefill.
template <LineKind kind, DType stored>
void many_rows(const Rows& x, const Unit& unit, DType store_as) {
  const std::int64_t lines = cpu::lines_for(kind, unit.to->projection->weight.cols);
  const std::int64_t blocks = (lines + kBlockLines - 1) / kBlockLines;
  const std::int64_t outputs = unit.last_output - unit.first_output;
  thread_local std::vector<Line> memory;
  Line* const packed = cpu::room(memory, kUnitOutputs * lines);  // [tiles, lines, kTileOutputs]
  for (std::int64_t n = 0; n < outputs; n += kTileOutputs)
    copy_weights<kind, stored>(unit, unit.first_output + n, lines, packed + n * lines);
  in_tiles<kTileRows>(unit.first_row, unit.last_row, [&]<int R>(std::int64_t row) {
    TileSums<R> kept[kUnitOutputs / kTileOutputs];  // between the blocks
    float products[R][kUnitOutputs];
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t first = lines * block / blocks, last = lines * (block + 1) / blocks;
      const std::byte* x_lines[R];
      for (int r = 0; r < R; ++r) x_lines[r] = x.line(row + r, first);
      for (std::int64_t tile = 0; tile * kTileOutputs < outputs; ++tile) {
        TileSums<R> sums;
        Vec16 zero = Vec16::all(0.0F);
        hold(zero);  // or the compiler writes zeros to memory and reads them back
        for (int n = 0; n < R * kTileOutputs; ++n) sums[n] = block == 0 ? zero : kept[tile][n];
        multiply_tile<kind, R>(x_lines, packed + (tile * lines + first) * kTileOutputs, last - first, sums);
        if (block + 1 < blocks) {
          for (int n = 0; n < R * kTileOutputs; ++n) kept[tile][n] = sums[n];
        } else {
          float* to[R];
          for (int r = 0; r < R; ++r) to[r] = &products[r][tile * kTileOutputs];
          sum_tile<R>(sums, to);
        }
      }
    }
    for (int r = 0; r < R; ++r) put(products[r], outputs, row + r, unit.first_output, *unit.to, store_as);
  });
}

#if defined(KVCACHE_BF16_TILES)

/// x in bf16, in the order of matrix tiles: each sixteen rows lie together.
Rows in_pairs(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols,
              std::vector<Line>& memory, ThreadPool& threads) {
  constexpr std::int64_t kColsAtATime = 128;
  const std::int64_t lines = cpu::lines_for(LineKind::bf16, cols);
  const std::int64_t groups = (rows + cpu::kMatrixTile - 1) / cpu::kMatrixTile;
  const std::int64_t parts = (cols + kColsAtATime - 1) / kColsAtATime;
  Line* const copy = cpu::room(memory, rows * lines);
  const std::int64_t numbers = std::min(rows, cpu::kMatrixTile) * std::min(cols, kColsAtATime);
  cpu::for_each_row(groups * parts, numbers, threads, [&](std::int64_t index) {
    const std::int64_t row = index / parts * cpu::kMatrixTile, col = index % parts * kColsAtATime;
    const std::int64_t group_rows = std::min(cpu::kMatrixTile, rows - row);
    cpu::write_pairs(x + row * stride + col, stride, group_rows, std::min(kColsAtATime, cols - col),
                     copy + row * lines + col / cpu::numbers_in(LineKind::bf16) * group_rows);
  });
  return {copy->bytes, lines * cpu::kLineBytes};
}

/// Any number of rows times the unit's outputs.
void rows_in_tiles(const Rows& x, const Unit& unit, DType store_as) {
  const bool pack = unit.last_row - unit.first_row > 2 * cpu::kMatrixTile;
  thread_local std::vector<Line> memory;
  const cpu::TileWeights weights =
      cpu::tile_weights(unit.to->projection->weight, unit.first_output, unit.last_output, pack, memory);
  for (std::int64_t row = unit.first_row; row < unit.last_row; row += 2 * cpu::kMatrixTile) {
    const std::int64_t rows = std::min(2 * cpu::kMatrixTile, unit.last_row - row);
    float products[2 * cpu::kMatrixTile][2 * cpu::kMatrixTile];
    cpu::multiply_in_tiles(weights, x.line(row, 0), rows, products);
    for (std::int64_t r = 0; r < rows; ++r)
      put(products[r], weights.outputs, row + r, unit.first_output, *unit.to, store_as);
  }
}

#endif

/// x in lines of `kind`: as it lies where it fits, else a copy.
template <LineKind kind>
Rows in_lines(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols,
              std::vector<Line>& memory, ThreadPool& threads) {
  if (kind == LineKind::floats && cols % 16 == 0) {
    return {reinterpret_cast<const std::byte*>(x), stride * static_cast<std::int64_t>(sizeof(float))};
  }
  // An odd number of lines: rows that are a multiple of 4 KiB apart compete for the same lines of the cache.
  const std::int64_t lines = cpu::lines_for(kind, cols) | 1;
  Line* const copy = cpu::room(memory, rows * lines);
  cpu::for_each_row(rows, cols, threads, [&](std::int64_t row) {
    cpu::write_lines<kind>(x + row * stride, cols, copy + row * lines);
  });
  return {copy->bytes, lines * cpu::kLineBytes};
}

/// How a product is computed.
enum class Way {
  floats,  ///< in lines of floats
  bf16,    ///< in lines of bf16
  tiles,   ///< in matrix tiles
};

/// The way for x, rounded to `activations`, and W in `weights`.
Way way_of(DType activations, DType weights) {
#if defined(KVCACHE_BF16_TILES)
  if (activations == DType::bf16 && weights == DType::bf16 && cpu::tiles_allowed()) return Way::tiles;
#endif
  return cpu::line_kind(activations, weights) == LineKind::bf16 ? Way::bf16 : Way::floats;
}

/// The rows of x times the unit's outputs. @param rows  of the whole product
template <LineKind kind, DType stored>
void multiply(const Rows& x, const Unit& unit, std::int64_t rows, DType store_as) {
  if (rows == 1) {
    lone_row<kind, stored>(x, unit, store_as);
  } else if (rows <= kFewRows) {
    few_rows<kind, stored>(x, unit, store_as);
  } else {
    many_rows<kind, stored>(x, unit, store_as);
  }
}

/// The most outputs and rows in a unit of work.
struct UnitSize {
  std::int64_t outputs, rows;
};

UnitSize unit_size([[maybe_unused]] Way way, [[maybe_unused]] std::int64_t rows) {
#if defined(KVCACHE_BF16_TILES)
  // Up to a tile of rows waits for its weights, and reads 16 streams of them faster than 32.
  if (way == Way::tiles)
    return {(rows <= cpu::kMatrixTile ? 1 : 2) * cpu::kMatrixTile, 16 * cpu::kMatrixTile};
#endif
  return {kUnitOutputs, kUnitRows};
}

/// One product of a call.
struct Part {
  const MatmulOutput* to;
  Way way;
  UnitSize size;
  std::int64_t row_blocks;
  std::int64_t first_unit;  ///< the units of all products are counted one after the other

  /// Unit `index` of them.
  Unit unit(std::int64_t index, std::int64_t rows) const {
    const std::int64_t row = (index - first_unit) % row_blocks * size.rows;
    const std::int64_t output = (index - first_unit) / row_blocks * size.outputs;
    return {to, row, std::min(rows, row + size.rows), output,
            std::min(to->projection->weight.rows, output + size.outputs)};
  }
};

}  // namespace

void matmul(const float* x, std::int64_t x_stride, std::int64_t rows, std::span<const MatmulOutput> outputs,
            DType store_as, ThreadPool& threads) {
  if (rows == 0) return;
  std::vector<Part> parts;
  std::int64_t units = 0;
  bool used[3] = {};  // by way
  for (const MatmulOutput& to : outputs) {
    const Weight& weight = to.projection->weight;
    const Way way = way_of(store_as, weight.dtype);
    used[static_cast<int>(way)] = true;
    const UnitSize size = unit_size(way, rows);
    const std::int64_t row_blocks = (rows + size.rows - 1) / size.rows;
    parts.push_back({&to, way, size, row_blocks, units});
    units += (weight.rows + size.outputs - 1) / size.outputs * row_blocks;
  }
  thread_local std::vector<Line> copies[3];
  Rows x_rows[3];  // by way
  const std::int64_t cols = outputs[0].projection->weight.cols;
  if (used[0]) x_rows[0] = in_lines<LineKind::floats>(x, x_stride, rows, cols, copies[0], threads);
  if (used[1]) x_rows[1] = in_lines<LineKind::bf16>(x, x_stride, rows, cols, copies[1], threads);
#if defined(KVCACHE_BF16_TILES)
  if (used[2]) x_rows[2] = in_pairs(x, x_stride, rows, cols, copies[2], threads);
#endif
  threads.run(units, [&](std::int64_t index) {
    std::size_t which = parts.size() - 1;
    while (index < parts[which].first_unit) --which;
    const Part& part = parts[which];
    const Unit unit = part.unit(index, rows);
    const Rows& x_lines = x_rows[static_cast<int>(part.way)];
    switch (part.way) {
      case Way::floats:
        with_dtype(unit.to->projection->weight.dtype, [&]<DType stored>() {
          multiply<LineKind::floats, stored>(x_lines, unit, rows, store_as);
        });
        break;
      case Way::bf16:
#if defined(KVCACHE_BF16_DOT)
        multiply<LineKind::bf16, DType::bf16>(x_lines, unit, rows, store_as);
#endif
        break;
      case Way::tiles:
#if defined(KVCACHE_BF16_TILES)
        rows_in_tiles(x_lines, unit, store_as);
#endif
        break;
    }
  });
}

}  // namespace kvcache
