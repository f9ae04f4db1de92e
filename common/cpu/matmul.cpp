/// @file
/// See matmul.h. The loops are ordered for the caches. A tile of weights is read from memory once, widened to
/// float once, and multiplied with all rows of a block; a block of rows fits the second-level cache.
#include "common/cpu/matmul.h"

#include <algorithm>
#include <vector>

#include "common/cpu/dot_tile.h"

namespace kvcache {
namespace {

/// Outputs in a piece of work of a thread; a multiple of every tile width.
constexpr std::int64_t kUnitOutputs = 48;
/// Bytes of x that a block of rows may take: half of a common second-level cache.
constexpr std::int64_t kRowBlockBytes = 512 * 1024;

struct Rows {
  const float* data;
  std::int64_t stride;
  std::int64_t count;
  const float* operator[](std::int64_t row) const { return data + row * stride; }
};

void put(float value, std::int64_t row, std::int64_t output, const MatmulOutput& to, DType store_as) {
  const auto rounded = [&] { return store_as == DType::f32 ? value : round_to(store_as, value); };
  const Weight& bias = to.projection->bias;
  float& at = to.data[row * to.stride + output];
  if (bias.present()) value += read_number(bias.dtype, bias.data + output * size_of(bias.dtype));
  if (to.add) {
    if (bias.present()) value = rounded();
    value += at;
  }
  at = rounded();
}

/// Computes R rows from `row` on times O outputs from `output` on. `w` is the first of the O rows of weights,
/// which are `in` numbers apart.
template <DType dtype, int R, int O>
void tile(const Rows& x, std::int64_t row, const std::byte* w, std::int64_t in, std::int64_t output,
          const MatmulOutput& to, DType store_as) {
  const float* x_rows[R];
  const std::byte* w_rows[O];
  float values[R][O];
  for (int r = 0; r < R; ++r) x_rows[r] = x[row + r];
  for (int o = 0; o < O; ++o) w_rows[o] = w + o * in * size_of(dtype);
  dot_tile<dtype, R, O>(x_rows, w_rows, in, values);
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) put(values[r][o], row + r, output + o, to, store_as);
  }
}

/// Computes the rows [begin, end) times O outputs.
template <DType dtype, int O>
void rows_times_outputs(const Rows& x, std::int64_t begin, std::int64_t end, const std::byte* w,
                        std::int64_t in, std::int64_t output, const MatmulOutput& to, DType store_as) {
  in_tiles<kTileRows>(
      begin, end, [&]<int R>(std::int64_t row) { tile<dtype, R, O>(x, row, w, in, output, to, store_as); });
}

/// Computes one row times the outputs [begin, end), as in decoding. Weights go from memory straight into
/// registers.
template <DType dtype>
void single_row(const Rows& x, std::int64_t begin, std::int64_t end, const MatmulOutput& to, DType store_as) {
  const Weight& weight = to.projection->weight;
  const std::int64_t row_bytes = weight.cols * size_of(dtype);
  std::int64_t output = begin;
  for (; output + kSingleRowOutputs <= end; output += kSingleRowOutputs) {
    tile<dtype, 1, kSingleRowOutputs>(x, 0, weight.data + output * row_bytes, weight.cols, output, to,
                                      store_as);
  }
  for (; output < end; ++output) {
    tile<dtype, 1, 1>(x, 0, weight.data + output * row_bytes, weight.cols, output, to, store_as);
  }
}

/// A few rows of weights as floats. They begin on a cache line, because a load that straddles two lines takes
/// twice as long.
class WideWeights {
 public:
  /// Widens `numbers` numbers of type `dtype`.
  template <DType dtype>
  const std::byte* widen(const std::byte* from, std::int64_t numbers) {
    if (static_cast<std::int64_t>(lines_.size()) * 16 < numbers)
      lines_.resize(static_cast<std::size_t>(numbers + 15) / 16);
    float* to = lines_.data()->numbers;
    std::int64_t n = 0;
    for (; n + 16 <= numbers; n += 16) Vec16::load<dtype>(from + n * size_of(dtype)).store(to + n);
    for (; n < numbers; ++n) to[n] = read_number(dtype, from + n * size_of(dtype));
    return reinterpret_cast<const std::byte*>(to);
  }

 private:
  struct alignas(64) Line {
    float numbers[16];
  };
  std::vector<Line> lines_;
};

/// Computes all rows times the outputs [begin, end), as in prefill and batches.
template <DType dtype>
void many_rows(const Rows& x, std::int64_t begin, std::int64_t end, const MatmulOutput& to, DType store_as) {
  const Weight& weight = to.projection->weight;
  const std::int64_t in = weight.cols, row_bytes = in * size_of(dtype);
  const std::int64_t block =
      std::max<std::int64_t>(kTileRows, kRowBlockBytes / (in * 4) / kTileRows * kTileRows);
  thread_local WideWeights wide;
  for (std::int64_t first = 0; first < x.count; first += block) {
    const std::int64_t last = std::min(x.count, first + block);
    std::int64_t output = begin;
    for (; output + kTileOutputs <= end; output += kTileOutputs) {
      const std::byte* w = weight.data + output * row_bytes;
      if (last - first <= kTileRows) {  // each weight is used once: widening it beforehand would not pay
        rows_times_outputs<dtype, kTileOutputs>(x, first, last, w, in, output, to, store_as);
      } else {
        w = wide.widen<dtype>(w, kTileOutputs * in);
        rows_times_outputs<DType::f32, kTileOutputs>(x, first, last, w, in, output, to, store_as);
      }
    }
    for (; output < end; ++output) {
      rows_times_outputs<dtype, 1>(x, first, last, weight.data + output * row_bytes, in, output, to,
                                   store_as);
    }
  }
}

}  // namespace

void matmul(const float* x, std::int64_t x_stride, std::int64_t rows, std::span<const MatmulOutput> outputs,
            DType store_as, ThreadPool& threads) {
  if (rows == 0) return;
  const Rows x_rows{x, x_stride, rows};
  std::vector<std::int64_t> first_unit{0};  // [outputs + 1]: the units of all products, one after the other
  for (const MatmulOutput& to : outputs) {
    const std::int64_t units = (to.projection->weight.rows + kUnitOutputs - 1) / kUnitOutputs;
    first_unit.push_back(first_unit.back() + units);
  }
  threads.run(first_unit.back(), [&](std::int64_t unit) {
    std::size_t which = 0;
    while (unit >= first_unit[which + 1]) ++which;
    const MatmulOutput& to = outputs[which];
    const Weight& weight = to.projection->weight;
    const std::int64_t begin = (unit - first_unit[which]) * kUnitOutputs;
    const std::int64_t end = std::min(begin + kUnitOutputs, weight.rows);
    with_dtype(weight.dtype, [&]<DType dtype>() {
      if (rows == 1) {
        single_row<dtype>(x_rows, begin, end, to, store_as);
      } else {
        many_rows<dtype>(x_rows, begin, end, to, store_as);
      }
    });
  });
}

}  // namespace kvcache
