/// @file
/// See kernels.h. These kernels move memory and compute little. Where rows are aligned to 16 bytes, a thread
/// takes 16 bytes at a time.
#include "common/cuda/kernels.h"
#include "common/cuda/launch.cuh"

namespace kvcache::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

/// N numbers that one thread moves at once.
template <typename T, int N>
struct alignas(N * sizeof(T)) Lanes {
  T numbers[N];
};

template <int N, typename T>
__device__ Lanes<T, N>& lanes_at(T* row, std::int64_t col) {
  return *reinterpret_cast<Lanes<T, N>*>(row + col);
}
template <int N, typename T>
__device__ const Lanes<T, N>& lanes_at(const T* row, std::int64_t col) {
  return *reinterpret_cast<const Lanes<T, N>*>(row + col);
}

/// Calls `function.operator()<T, N>()` with the number type. N numbers are moved at a time: 16 bytes' worth
/// if all of `all` are aligned for it, else 1.
template <typename Function>
void with_lanes(DType dtype, std::initializer_list<Rows> all, Function function) {
  with_number_type(dtype, [&]<typename T>() {
    constexpr int kPack = Pack<T>::size;
    bool packs = true;
    for (const Rows& rows : all) {
      packs = packs && reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.cols % kPack == 0 &&
              rows.stride % kPack == 0;
    }
    packs ? function.template operator()<T, kPack>() : function.template operator()<T, 1>();
  });
}

/// One thread block per row and stretch of `numbers` columns.
LaunchShape grid_of(const Rows& out, std::int64_t numbers) {
  return {dim3(static_cast<unsigned>(out.rows), static_cast<unsigned>(ceil_div(out.cols, numbers))),
          kThreads};
}

/// The sum over the threads of a block, in a fixed order; every thread gets it.
__device__ float block_sum(float value) {
  __shared__ float of_warp[kThreads / kWarp];
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < kThreads / kWarp; ++warp) total += of_warp[warp];
  return total;
}

template <typename T>
__global__ void embed_kernel(const T* table, const std::int32_t* ids, std::int64_t cols, T* out,
                             std::int64_t stride) {
  const std::int64_t col = blockIdx.y * std::int64_t{kThreads} + threadIdx.x;
  if (col < cols) out[blockIdx.x * stride + col] = table[ids[blockIdx.x] * cols + col];
}

template <typename T, int N>
__global__ void norm_rows_kernel(const T* x, std::int64_t x_stride, const T* weight, float eps,
                                 std::int64_t cols, T* out, std::int64_t out_stride) {
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;
  start_next_kernel();
  wait_for_earlier_kernels();
  float squares = 0;
  for (std::int64_t col = threadIdx.x * N; col < cols; col += kThreads * N) {
    const Lanes<T, N> numbers = lanes_at<N>(x, col);
    for (int n = 0; n < N; ++n)
      squares = fmaf(to_float(numbers.numbers[n]), to_float(numbers.numbers[n]), squares);
  }
  const float scale = 1.0F / sqrtf(block_sum(squares) / static_cast<float>(cols) + eps);
  // Each thread reads what it has read before, which the first-level cache still holds.
  for (std::int64_t col = threadIdx.x * N; col < cols; col += kThreads * N) {
    const Lanes<T, N> numbers = lanes_at<N>(x, col), gain = lanes_at<N>(weight, col);
    Lanes<T, N> normed;
    for (int n = 0; n < N; ++n)
      normed.numbers[n] = from_float<T>(to_float(numbers.numbers[n]) * scale * to_float(gain.numbers[n]));
    lanes_at<N>(out, col) = normed;
  }
}

template <typename T, int N>
__global__ void add_rows_kernel(const T* delta, std::int64_t delta_stride, std::int64_t cols, T* x,
                                std::int64_t stride) {
  const std::int64_t col = (blockIdx.y * std::int64_t{kThreads} + threadIdx.x) * N;
  if (col >= cols) return;
  const Lanes<T, N> added = lanes_at<N>(delta + blockIdx.x * delta_stride, col);
  Lanes<T, N>& sum = lanes_at<N>(x + blockIdx.x * stride, col);
  for (int n = 0; n < N; ++n)
    sum.numbers[n] = from_float<T>(to_float(sum.numbers[n]) + to_float(added.numbers[n]));
}

__global__ void rotation_table_kernel(const std::int32_t* positions, const float* inverse_frequencies,
                                      std::int64_t half, std::int64_t count, float* cosines, float* sines) {
  const std::int64_t at = blockIdx.x * std::int64_t{kThreads} + threadIdx.x;
  if (at >= count) return;
  // The angle is rounded to float32, as in the implementations that trained the models. Sine and cosine are
  // computed in double, so that they equal the CPU's.
  const float angle = static_cast<float>(positions[at / half]) * inverse_frequencies[at % half];
  cosines[at] = static_cast<float>(cos(static_cast<double>(angle)));
  sines[at] = static_cast<float>(sin(static_cast<double>(angle)));
}

template <typename T, int N>
__global__ void swiglu_kernel(const T* gate, std::int64_t gate_stride, const T* up, std::int64_t up_stride,
                              std::int64_t cols, T* out, std::int64_t out_stride) {
  const std::int64_t col = (blockIdx.y * std::int64_t{kThreads} + threadIdx.x) * N;
  start_next_kernel();
  wait_for_earlier_kernels();
  if (col >= cols) return;
  const Lanes<T, N> g = lanes_at<N>(gate + blockIdx.x * gate_stride, col);
  const Lanes<T, N> u = lanes_at<N>(up + blockIdx.x * up_stride, col);
  Lanes<T, N> product;
  for (int n = 0; n < N; ++n) {
    const float number = to_float(g.numbers[n]);
    product.numbers[n] = from_float<T>(number / (1.0F + expf(-number)) * to_float(u.numbers[n]));
  }
  lanes_at<N>(out + blockIdx.x * out_stride, col) = product;
}

template <typename T, int N>
__global__ void fill_rows_kernel(const T* bias, std::int64_t cols, T* out, std::int64_t stride) {
  const std::int64_t col = (blockIdx.y * std::int64_t{kThreads} + threadIdx.x) * N;
  if (col < cols) lanes_at<N>(out + blockIdx.x * stride, col) = lanes_at<N>(bias, col);
}

template <typename T, int N>
__global__ void select_rows_kernel(const T* x, std::int64_t x_stride, const std::int32_t* rows,
                                   std::int64_t cols, T* out, std::int64_t stride) {
  const std::int64_t col = (blockIdx.y * std::int64_t{kThreads} + threadIdx.x) * N;
  if (col < cols)
    lanes_at<N>(out + blockIdx.x * stride, col) = lanes_at<N>(x + rows[blockIdx.x] * x_stride, col);
}

template <typename T>
__global__ void widen_kernel(const T* x, std::int64_t stride, std::int64_t cols, float* to) {
  const std::int64_t col = blockIdx.y * std::int64_t{kThreads} + threadIdx.x;
  if (col < cols) to[blockIdx.x * cols + col] = to_float(x[blockIdx.x * stride + col]);
}

template <typename From, typename To>
__global__ void convert_kernel(const From* from, To* to, std::int64_t count) {
  const std::int64_t at = blockIdx.x * std::int64_t{kThreads} + threadIdx.x;
  if (at < count) to[at] = from_float<To>(to_float(from[at]));
}

LaunchShape grid_over(std::int64_t count) {
  return {static_cast<unsigned>(ceil_div(count, kThreads)), kThreads};
}

}  // namespace

bool kernels_are_built() {
  cudaFuncAttributes attributes{};
  const bool built = cudaFuncGetAttributes(&attributes, rotation_table_kernel) == cudaSuccess;
  cudaGetLastError();
  return built;
}

bool has_hopper_kernels() {
  static const bool can = [] {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, rotation_table_kernel), "looking for the kernels");
    return attributes.ptxVersion >= 90 && attributes.binaryVersion >= 90;
  }();
  return can;
}

void embed(DType dtype, const void* table, const std::int32_t* ids, const Rows& out, cudaStream_t stream) {
  with_number_type(dtype, [&]<typename T>() {
    launch("embed", embed_kernel<T>, grid_of(out, kThreads), stream, static_cast<const T*>(table), ids,
           out.cols, static_cast<T*>(out.data), out.stride);
  });
}

void norm_rows(DType dtype, const Rows& x, const void* weight, float eps, const Rows& out,
               cudaStream_t stream) {
  const Rows gain{const_cast<void*>(weight), 1, x.cols, x.cols};
  with_lanes(dtype, {x, gain, out}, [&]<typename T, int N>() {
    const LaunchShape shape{static_cast<unsigned>(x.rows), kThreads, 0, /*overlaps=*/true};
    launch("norm_rows", norm_rows_kernel<T, N>, shape, stream, static_cast<const T*>(x.data), x.stride,
           static_cast<const T*>(weight), eps, x.cols, static_cast<T*>(out.data), out.stride);
  });
}

void add_rows(DType dtype, const Rows& delta, const Rows& x, cudaStream_t stream) {
  with_lanes(dtype, {delta, x}, [&]<typename T, int N>() {
    launch("add_rows", add_rows_kernel<T, N>, grid_of(x, kThreads * N), stream,
           static_cast<const T*>(delta.data), delta.stride, x.cols, static_cast<T*>(x.data), x.stride);
  });
}

void rotation_table(const std::int32_t* positions, const float* inverse_frequencies, std::int64_t rows,
                    std::int64_t half, float* cosines, float* sines, cudaStream_t stream) {
  launch("rotation_table", rotation_table_kernel, grid_over(rows * half), stream, positions,
         inverse_frequencies, half, rows * half, cosines, sines);
}

void swiglu(DType dtype, const Rows& gate, const Rows& up, const Rows& out, cudaStream_t stream) {
  with_lanes(dtype, {gate, up, out}, [&]<typename T, int N>() {
    LaunchShape shape = grid_of(out, kThreads * N);
    shape.overlaps = true;
    launch("swiglu", swiglu_kernel<T, N>, shape, stream, static_cast<const T*>(gate.data), gate.stride,
           static_cast<const T*>(up.data), up.stride, out.cols, static_cast<T*>(out.data), out.stride);
  });
}

void fill_rows(DType dtype, const void* bias, const Rows& out, cudaStream_t stream) {
  const Rows one{const_cast<void*>(bias), 1, out.cols, out.cols};
  with_lanes(dtype, {one, out}, [&]<typename T, int N>() {
    launch("fill_rows", fill_rows_kernel<T, N>, grid_of(out, kThreads * N), stream,
           static_cast<const T*>(bias), out.cols, static_cast<T*>(out.data), out.stride);
  });
}

void select_rows(DType dtype, const Rows& x, const std::int32_t* rows, const Rows& out, cudaStream_t stream) {
  with_lanes(dtype, {x, out}, [&]<typename T, int N>() {
    launch("select_rows", select_rows_kernel<T, N>, grid_of(out, kThreads * N), stream,
           static_cast<const T*>(x.data), x.stride, rows, out.cols, static_cast<T*>(out.data), out.stride);
  });
}

void widen(DType dtype, const Rows& x, float* to, cudaStream_t stream) {
  with_number_type(dtype, [&]<typename T>() {
    launch("widen", widen_kernel<T>, grid_of(x, kThreads), stream, static_cast<const T*>(x.data), x.stride,
           x.cols, to);
  });
}

void convert(DType from_dtype, const void* from, DType to_dtype, void* to, std::int64_t count,
             cudaStream_t stream) {
  with_number_type(from_dtype, [&]<typename From>() {
    with_number_type(to_dtype, [&]<typename To>() {
      launch("convert", convert_kernel<From, To>, grid_over(count), stream, static_cast<const From*>(from),
             static_cast<To*>(to), count);
    });
  });
}

}  // namespace kvcache::cuda
