/// @file
/// See rotate_and_store.h. One kernel in place of two, the rotation and the scatter after it. A prefill of
/// few tokens is bound by the host that starts its kernels, and of 28 layers there are 28 less to start.
#include "common/cuda/rotate_and_store.h"

#include "common/cuda/heads.cuh"
#include "common/cuda/launch.cuh"
#include "common/cuda/move_rows.cuh"
#include "common/cuda/scatter.h"

namespace kvcache::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

/// Rows of q, or of k and v.
template <typename T>
struct HeadsOf {
  T* x;                 ///< [rows, heads, head_dim], rows `stride` numbers apart
  std::int64_t stride;  ///< numbers
  unsigned heads;       ///< in a row
  const T* norm;        ///< [head_dim]; nullptr: none
  float eps;
};

/// Where the rows of k and v go.
template <typename T>
struct StoreOf {
  const T* v;                 ///< [rows, kv_heads, head_dim], rows `v_stride` numbers apart
  std::int64_t v_stride;      ///< numbers
  const std::int64_t* slots;  ///< [rows]; -1: the row is not stored
  T *k_pool, *v_pool;         ///< [slots, kv_heads, head_dim]
};

/// One warp per head of a row. First come the heads of q, which stay where they are; then those of k, each of
/// which goes to its slot with the head of v beside it.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    rotate_and_store_kernel(HeadsOf<T> q, HeadsOf<T> k, StoreOf<T> store, std::int64_t rows, int head_dim,
                            Rotation rotation) {
  start_next_kernel();
  wait_for_earlier_kernels();
  const unsigned heads = q.heads + k.heads;
  const std::int64_t row = (blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp) / heads;
  unsigned head = (blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp) % heads;
  if (row >= rows) return;
  if (head < q.heads) {
    T* const numbers = q.x + row * q.stride + head * head_dim;
    WarpHeads<T, kMostHeadDim>(head_dim, q.norm, q.eps, rotation, row).make_ready(numbers, numbers);
    return;
  }
  head -= q.heads;
  const std::int64_t slot = store.slots[row];
  if (slot < 0) return;
  const std::int64_t at = (slot * k.heads + head) * head_dim;
  WarpHeads<T, kMostHeadDim>(head_dim, k.norm, k.eps, rotation, row)
      .make_ready(k.x + row * k.stride + head * head_dim, store.k_pool + at);
  __syncwarp();  // below, a lane has other numbers than above
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  const KeepToItself<Bits> keep{kExponentBits<T>};
  const T* const v = store.v + row * store.v_stride + head * head_dim;
  for (int d = static_cast<int>(threadIdx.x) % kWarp * 2; d < head_dim; d += kWarp * 2) {
    Two<T> values = two_at(v + d);
    for (int n = 0; n < 2; ++n)
      keep(reinterpret_cast<Bits&>(store.k_pool[at + d + n]), reinterpret_cast<Bits&>(values.numbers[n]));
    two_at(store.v_pool + at + d) = values;
  }
}

}  // namespace

void rotate_and_store(DType dtype, const HeadSettings& heads, std::int64_t head_dim, const NewRows& rows,
                      const std::int64_t* slots, void* k_pool, void* v_pool, cudaStream_t stream) {
  const bool changes =
      heads.q_norm.weight.present() || heads.k_norm.weight.present() || heads.rotation.cosines != nullptr;
  if (!changes) {
    scatter_kv(dtype, {rows.k.data, rows.k.stride, rows.v.data, rows.v.stride, rows.k.rows}, rows.k.cols,
               slots, k_pool, v_pool, stream);
    return;
  }
  with_number_type(dtype, [&]<typename T>() {
    const auto heads_of = [&](const Matrix& x, const Norm& norm) {
      return HeadsOf<T>{static_cast<T*>(x.data), x.stride, static_cast<unsigned>(x.cols / head_dim),
                        reinterpret_cast<const T*>(norm.weight.data), norm.eps};
    };
    const HeadsOf<T> q = heads_of(rows.q, heads.q_norm), k = heads_of(rows.k, heads.k_norm);
    const StoreOf<T> store{static_cast<const T*>(rows.v.data), rows.v.stride, slots, static_cast<T*>(k_pool),
                           static_cast<T*>(v_pool)};
    const std::int64_t warps = rows.q.rows * (q.heads + k.heads);
    const LaunchShape shape{static_cast<unsigned>(ceil_div(warps, kThreads / kWarp)), kThreads, 0,
                            /*overlaps=*/true};
    launch("rotate_and_store", rotate_and_store_kernel<T>, shape, stream, q, k, store, rows.q.rows,
           static_cast<int>(head_dim), heads.rotation);
  });
}

}  // namespace kvcache::cuda
