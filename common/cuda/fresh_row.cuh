/// @file
/// A decoded row is made ready inside attention: `Preparation` normalises and rotates its queries and its
/// key, and stores the key and the value. For attention_mma_decode.cu. Chapter: step3_paged/README.md.
#pragma once

#include "common/cuda/attention_merge.cuh"
#include "common/cuda/attention_mma_launch.cuh"
#include "common/cuda/heads.cuh"
#include "common/cuda/move_rows.cuh"

namespace kvcache::cuda {

/// A row's queries of one KV head, and its own key and value, made ready.
template <typename T, int D>
struct FreshRow {
  alignas(16) T q[kTileQueries][D + 8];  ///< + 8: rows that are read together lie in different banks
  alignas(16) T k[D];                    ///< the row's own key
  alignas(16) T v[D];                    ///< and value
};

/// Normalises and rotates the tile's queries. The thread block that attends to the row's own position also
/// makes the row's key ready, and stores it and the value.
template <typename T, int D>
class Preparation {
 public:
  /// Loads what is complete before the first layer starts: norm weights, angles and the row's slot.
  __device__ Preparation(const AttentionPass& pass, const AttentionTile& tile, int kv_head)
      : pass_(pass),
        tile_(tile),
        kv_head_(kv_head),
        has_own_(warp() == kMmaWarps - 1 && tile.end == tile.visible),
        q_(D, static_cast<const T*>(pass.fresh.q_norm), pass.fresh.q_eps, pass.fresh.rotation, tile.row),
        k_(D, static_cast<const T*>(pass.fresh.k_norm), pass.fresh.k_eps, pass.fresh.rotation, tile.row),
        slot_(has_own_ ? pass.fresh.slots[tile.row] : -1) {}

  /// Called once the kernel that computes q, k and v is done.
  __device__ void run(FreshRow<T, D>& fresh) const {
    if (has_own_) store_own(fresh);
    for (int n = warp(); n < tile_.queries; n += kMmaWarps) {
      q_.make_ready(static_cast<const T*>(pass_.q) + query_offset(pass_, tile_, kv_head_, n, pass_.q_stride),
                    fresh.q[n]);
    }
  }

 private:
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }

  __device__ void store_own(FreshRow<T, D>& fresh) const {
    const NewHeads& heads = pass_.fresh;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const T* from = static_cast<const T*>(heads.v) + tile_.row * heads.v_stride + kv_head_ * D;
    T value[D / 32];  // on its way while the key is made ready
#pragma unroll
    for (int n = 0; n < D / 32; ++n) value[n] = from[n * 32 + lane];
    k_.make_ready(static_cast<const T*>(heads.k) + tile_.row * heads.k_stride + kv_head_ * D, fresh.k);
    __syncwarp();
    const std::int64_t at = (slot_ * pass_.kv_heads + kv_head_) * D;
    const KeepToItself<std::uint16_t> keep{kExponentBits<T>};
#pragma unroll
    for (int n = 0; n < D / 32; ++n) {
      const int d = n * 32 + lane;
      T key = fresh.k[d];
      keep(reinterpret_cast<std::uint16_t&>(key), reinterpret_cast<std::uint16_t&>(value[n]));
      fresh.k[d] = key;
      fresh.v[d] = value[n];
      if (slot_ < 0) continue;
      static_cast<T*>(heads.k_store)[at + d] = key;
      static_cast<T*>(heads.v_store)[at + d] = value[n];
    }
  }

  const AttentionPass& pass_;
  const AttentionTile& tile_;
  int kv_head_;
  bool has_own_;  // this warp makes the row's own key and value ready
  WarpHeads<T, D> q_, k_;
  std::int64_t slot_;
};

}  // namespace kvcache::cuda
