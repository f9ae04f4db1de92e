/// @file
/// See few_rows.h. Fourth rung: a layer in few kernels that start early. The time of a product of few rows is
/// the time to read its weights. cuBLAS reads weights fast, but its layer has eight kernels or more. Here a
/// layer has five:
///
/// 1. norm, and q, k and v
/// 2. attention (attention_mma_decode.cu)
/// 3. output product and sum
/// 4. norm, gate, up and activation
/// 5. down product and sum
///
/// Each starts early (`LaunchShape::overlaps`): it asks for its weights while the kernel before it still
/// runs, and then waits for that kernel.
///
/// A thread block computes 8 or 16 outputs of all rows. Its warps split the inner dimension, so that all
/// weights of a kernel are on their way at once. Of the 16 x 8 tile of a matrix instruction, the rows of x
/// are the rows and eight outputs are the columns. The parts of the warps are added in the warps' order.
///
/// With attention that starts early too, a decode pass of one sequence after 128 tokens takes 0.74 ms instead
/// of 1.46. A pass of eight after 2,048 takes 1.33 ms instead of 1.97 (Qwen3-0.6B's shape, bf16, H200:
/// docs/results/2026-11-29-h200-early-kernels.md). This times them:
///
///     build/bin/bench_step3_paged --random-weights qwen3-0.6b --benchmark_filter=decode
#include <algorithm>

#include "common/cuda/attention_mma.cuh"
#include "common/cuda/attention_work.h"
#include "common/cuda/few_rows.h"
#include "common/cuda/launch.cuh"

namespace kvcache::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kPack = 8;  // numbers in 16 bytes
constexpr int kStep =
    kWarps * 4 * kPack;  // columns that the lanes of a thread block cover with one pack each
constexpr std::int64_t kMostRows = 16;
/// The most shared memory of a thread block where some thread blocks wait for others to end. On an H200 three
/// of these lie on a multiprocessor: one multiplies while the others' weights come. With larger ones memory
/// idles so long that cuBLAS is faster (docs/results/2026-11-30-h200-wide-rows.md).
constexpr std::int64_t kMostBytesInTurn = 75 << 10;

/// Tiles of 8 outputs in a thread block. `gate` has one of gate rows and one of up rows.
__host__ __device__ constexpr int tiles_of(FewRowsKind kind) {
  return kind == FewRowsKind::add ? 1 : 2;
}
/// Outputs of a thread block.
__host__ __device__ constexpr int outs_of(FewRowsKind kind) {
  return kind == FewRowsKind::store ? 16 : 8;
}

/// What a thread block keeps in shared memory.
struct Layout {
  std::int64_t x_stride;               ///< numbers: rows read together begin in different banks
  std::int64_t x, gain, parts, bytes;  ///< where they begin, in bytes; the weights begin at 0
  __host__ __device__ Layout(int tiles, std::int64_t in, std::int64_t rows, bool normed)
      : x_stride(in + 32),
        x(tiles * 8 * in * 2),
        gain(x + rows * x_stride * 2),
        parts(gain + (normed ? in * 2 : 0)),
        bytes(parts + kWarps * rows * parts_stride(tiles) * static_cast<std::int64_t>(sizeof(float))) {}
  /// Numbers of a warp's part of one row.
  __host__ __device__ static constexpr int parts_stride(int tiles) { return tiles * 8 + 1; }
};

/// A warp normalises a row: to = x / sqrt(mean(x^2) + eps) * gain. `gain` and `to` are in shared memory. Each
/// lane reads what it has written itself.
template <typename T>
__device__ void normalise(const T* x, const T* gain, int in, float eps, T* to) {
  constexpr int kAtOnce = 4, kWarpStep = 32 * kPack;
  const int own = static_cast<int>(threadIdx.x) % 32 * kPack;
  float squares = 0;
  for (int first = own; first < in; first += kAtOnce * kWarpStep) {
    Pack<T> packs[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int column = first + n * kWarpStep;
      if (column < in) packs[n] = *reinterpret_cast<const Pack<T>*>(x + column);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int column = first + n * kWarpStep;
      if (column >= in) continue;
      *reinterpret_cast<Pack<T>*>(to + column) = packs[n];
#pragma unroll
      for (const T number : packs[n].numbers) squares = fmaf(to_float(number), to_float(number), squares);
    }
  }
  const float scale = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(in) + eps);
#pragma unroll 1
  for (int column = own; column < in; column += kWarpStep) {
    Pack<T> pack = *reinterpret_cast<Pack<T>*>(to + column);
    const Pack<T> gains = *reinterpret_cast<const Pack<T>*>(gain + column);
#pragma unroll
    for (int n = 0; n < kPack; ++n)
      pack.numbers[n] = from_float<T>(to_float(pack.numbers[n]) * scale * to_float(gains.numbers[n]));
    *reinterpret_cast<Pack<T>*>(to + column) = pack;
  }
}

/// `number` plus the bias of output `out`, rounded.
template <typename T>
__device__ float biased(float number, const void* bias, std::int64_t out) {
  if (bias != nullptr) number += to_float(static_cast<const T*>(bias)[out]);
  return to_float(from_float<T>(number));
}

/// @param Halves  of the 16 rows of a matrix instruction that are used: 1 for up to 8 rows, else 2
template <typename T, FewRowsKind kind, int Halves>
__global__ __launch_bounds__(kThreads, 4) void few_rows_product(const __grid_constant__ FewRowsWork work) {
#if __CUDA_ARCH__ >= 800
  constexpr int kTiles = tiles_of(kind), kOuts = outs_of(kind), kStride = Layout::parts_stride(kTiles);
  extern __shared__ __align__(16) unsigned char shared[];
  start_next_kernel();
  const int in = static_cast<int>(work.in), rows = static_cast<int>(work.rows), packs = in / kStep;
  const Layout layout(kTiles, in, rows, work.norm != nullptr);
  T* const x = reinterpret_cast<T*>(shared + layout.x);
  T* const gain = reinterpret_cast<T*>(shared + layout.gain);
  float* const parts = reinterpret_cast<float*>(shared + layout.parts);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;                                              // of x, and of a tile's weights
  const int first_column = warp * packs * 4 * kPack + lane % 4 * kPack;  // the lane's packs are 4 packs apart
  const std::int64_t first_out = static_cast<std::int64_t>(blockIdx.x) * kOuts;

  // What no kernel of the pass writes is on its way before this one waits for the others.
  if (work.norm != nullptr) {
    for (int column = static_cast<int>(threadIdx.x) * kPack; column < in; column += kThreads * kPack)
      copy_async(shared_address(gain + column), static_cast<const T*>(work.norm) + column, true);
  }
  commit_copies();
  uint4* const weights =
      reinterpret_cast<uint4*>(shared) + threadIdx.x;  // each lane reads its own packs back
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const bool is_up = kind == FewRowsKind::gate && tile == 1;
    const std::int64_t out = first_out + row + (is_up ? 0 : tile * 8);
    const T* from = static_cast<const T*>(is_up ? work.up_weight : work.weight) + out * in + first_column;
#pragma unroll 4
    for (int n = 0; n < packs; ++n)
      copy_async(shared_address(weights + (tile * packs + n) * kThreads), from + n * 4 * kPack, true);
  }
  commit_copies();
  wait_for_copies<1>();  // the gain
  __syncthreads();
  wait_for_earlier_kernels();

  const T* const x_rows = static_cast<const T*>(work.x);
  if (work.norm != nullptr) {
    for (int n = warp; n < rows; n += kWarps)
      normalise(x_rows + n * work.x_stride, gain, in, work.eps, x + n * layout.x_stride);
    __syncthreads();
  } else {  // each lane brings the packs that it multiplies itself
#pragma unroll
    for (int half = 0; half < Halves; ++half) {
      const int n = row + 8 * half;
      if (n >= rows) continue;
      for (int column = first_column; column < first_column + packs * 4 * kPack; column += 4 * kPack)
        copy_async(shared_address(x + n * layout.x_stride + column), x_rows + n * work.x_stride + column,
                   true);
    }
    commit_copies();
  }
  wait_for_copies<0>();

  // A lane's 16 bytes are the factors of two instructions: which columns they are does not matter to the sum,
  // as long as x and the weights take the same.
  float sums[kTiles][4] = {};
#pragma unroll 1  // unrolled, its instructions would take longer to fetch than to run
  for (int n = 0; n < packs; ++n) {
    uint4 left[2] = {};
#pragma unroll
    for (int half = 0; half < Halves; ++half) {
      if (row + 8 * half < rows)
        left[half] = *reinterpret_cast<const uint4*>(x + (row + 8 * half) * layout.x_stride + first_column +
                                                     n * 4 * kPack);
    }
    const std::uint32_t first[4] = {left[0].x, left[1].x, left[0].y, left[1].y};
    const std::uint32_t second[4] = {left[0].z, left[1].z, left[0].w, left[1].w};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 right = weights[(tile * packs + n) * kThreads];
      multiply_add<T>(sums[tile], first, right.x, right.y);
      multiply_add<T>(sums[tile], second, right.z, right.w);
    }
  }
#pragma unroll
  for (int n = 0; n < 2 * Halves; ++n) {
    if (row + n / 2 * 8 >= rows) continue;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      parts[(warp * rows + row + n / 2 * 8) * kStride + tile * 8 + lane % 4 * 2 + n % 2] = sums[tile][n];
  }
  __syncthreads();

  const int result = static_cast<int>(threadIdx.x);  // one for each thread, or none
  if (result >= rows * kOuts) return;
  const int result_row = result / kOuts;
  const std::int64_t out = first_out + result % kOuts;
  const auto total = [&](int column) {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kWarps; ++n) sum += parts[(n * rows + result_row) * kStride + column];
    return sum;
  };
  T& to = static_cast<T*>(work.out)[result_row * work.out_stride + out];
  float number = total(result % kOuts);
  if constexpr (kind == FewRowsKind::store) {
    number = biased<T>(number, work.bias, out);
  } else if constexpr (kind == FewRowsKind::add) {
    if (work.bias != nullptr) number = biased<T>(number, work.bias, out);
    number += to_float(to);
  } else {
    const float gate = biased<T>(number, work.bias, out);
    number = gate / (1.0F + expf(-gate)) * biased<T>(total(8 + result % kOuts), work.up_bias, out);
  }
  to = from_float<T>(number);
#endif
}

}  // namespace

bool few_rows_fit(DType dtype, FewRowsKind kind, const FewRowsWork& work) {
  const std::int64_t bytes = Layout(tiles_of(kind), work.in, work.rows, work.norm != nullptr).bytes;
  const std::int64_t at_once = GpuLimits::get().shared_bytes / bytes * GpuLimits::get().multiprocessors;
  const auto aligned = [](const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
  };
  return dtype != DType::f32 && work.rows >= 1 && work.rows <= kMostRows && work.in % kStep == 0 &&
         work.outs % outs_of(kind) == 0 && work.x_stride % kPack == 0 && aligned(work.x) &&
         aligned(work.norm) && aligned(work.weight) && aligned(work.up_weight) &&
         (bytes <= kMostBytesInTurn ? at_once > 0 : work.outs / outs_of(kind) <= at_once) &&
         tensor_core_kernels_are_built();
}

void few_rows(DType dtype, FewRowsKind kind, const FewRowsWork& work, cudaStream_t stream) {
  const auto start = [&]<typename T, FewRowsKind Kind>() {
    const Layout layout(tiles_of(Kind), work.in, work.rows, work.norm != nullptr);
    const LaunchShape shape{static_cast<unsigned>(work.outs / outs_of(Kind)), kThreads,
                            static_cast<std::size_t>(layout.bytes), /*overlaps=*/true};
    launch("few_rows_product", work.rows <= 8 ? few_rows_product<T, Kind, 1> : few_rows_product<T, Kind, 2>,
           shape, stream, work);
  };
  const auto with_kind = [&]<typename T>() {
    if (kind == FewRowsKind::store) return start.template operator()<T, FewRowsKind::store>();
    if (kind == FewRowsKind::add) return start.template operator()<T, FewRowsKind::add>();
    start.template operator()<T, FewRowsKind::gate>();
  };
  dtype == DType::f16 ? with_kind.template operator()<__half>()
                      : with_kind.template operator()<__nv_bfloat16>();
}

}  // namespace kvcache::cuda
