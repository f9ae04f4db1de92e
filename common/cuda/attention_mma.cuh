/// @file
/// The tensor-core instructions of attention_mma_decode.cu, attention_mma_prefill.cu and few_rows.cu, and the
/// shared-memory layout that suits them. Compute capability 8.0 and later. Source: PTX ISA, "Matrix
/// multiply-accumulate instructions" (the layouts of mma.m16n8k16 and ldmatrix) and "Data movement and
/// conversion instructions: asynchronous copy".
///
/// Of a 16 x 8 float32 tile, lane l of a warp holds two rows and two columns. Its numbers 0 and 1 are of row
/// l / 4, its numbers 2 and 3 of row l / 4 + 8; the columns are 2 (l % 4) and 2 (l % 4) + 1.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace kvcache::cuda {

/// Rows of keys or values that a warp brings into shared memory at a time.
constexpr int kTileKeys = 16;

/// 2^x, to about 2^-22.
__device__ inline float exp2_fast(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

/// Two numbers in 32 bits, `low` first.
template <typename T>
__device__ inline std::uint32_t pack_two(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 two = __floats2half2_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(two);
  } else {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(two);
  }
}

/// An address in shared memory as the instructions below take it.
__device__ inline std::uint32_t shared_address(const void* memory) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
}

/// Starts to copy 16 bytes to shared memory; unless `valid`, they become 0 and `from` is not read.
__device__ inline void copy_async(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
/// Makes a group of the copies that this thread has started since its last group.
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until all but the last `Pending` groups of this thread have arrived.
template <int Pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// Stores 16 bytes in shared memory.
__device__ inline void store_pack(std::uint32_t to, const void* from) {
  const uint4 pack = *static_cast<const uint4*>(from);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(pack.x), "r"(pack.y), "r"(pack.z),
               "r"(pack.w)
               : "memory");
}

/// Loads four 8 x 8 matrices of 16-bit numbers. Lane l gives the address of row l % 8 of matrix l / 8, and
/// gets the numbers 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix.
__device__ inline void load_matrices(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}
/// The same for the transposed matrices: lane l gets its two numbers from column l / 4.
__device__ inline void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

/// c += a b in float32: a is 16 x 16, b 16 x 8 in the two registers b0 (its rows 0 to 7) and b1 (8 to 15).
template <typename T>
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Where pack `pack` (8 numbers, 16 bytes) of key `key` lies in a tile [keys, D], in bytes. The key's last
/// three bits permute the packs of its row, so that equal packs of eight keys lie in different banks. A tile
/// is aligned to kTileAlignment, so `place(key, pack ^ n)` is `place(key, pack) ^ 16 * n`.
template <int D>
__device__ inline std::uint32_t place(int key, int pack) {
  constexpr int kPacks = D / 8;
  return static_cast<std::uint32_t>((key * kPacks + (pack ^ (key % 8))) * 16);
}
/// Alignment of a tile in bytes, for `place`.
constexpr int kTileAlignment = 256;

/// A warp starts to copy kTileKeys rows of K or V.
/// @param to      in shared memory: [kTileKeys, D] as `place` says
/// @param offset  of key lane % kTileKeys in `from`; negative: its row becomes 0
template <typename T, int D>
__device__ inline void copy_tile(std::uint32_t to, const T* from, std::int64_t offset) {
  constexpr int kPacks = D / 8, kKeysAtOnce = 32 / kPacks;
  const int lane = static_cast<int>(threadIdx.x) % 32, key = lane / kPacks, pack = lane % kPacks;
  const std::uint32_t first_place = to + place<D>(key, pack);
#pragma unroll
  for (int first = 0; first < kTileKeys; first += kKeysAtOnce) {
    const std::int64_t row = __shfl_sync(~0U, offset, first + key);
    // place(first + key, pack): `first` and `key` have no bit in common, so their sum is first ^ key.
    const std::uint32_t to_row = (first_place ^ (first % 8 * 16)) + first * D * 2;
    copy_async(to_row, from + (row < 0 ? 0 : row) + pack * 8, row >= 0);
  }
}

/// A warp starts to copy kTileKeys rows of K or V that lie at equal distances.
/// @param to      in shared memory: [kTileKeys, D] as `place` says
/// @param offset  of key 0 in `from`
/// @param stride  from a key's row to the next, in numbers
/// @param count   rows to be copied; those behind become 0
template <typename T, int D>
__device__ inline void copy_neighbours(std::uint32_t to, const T* from, std::int64_t offset,
                                       std::int64_t stride, int count) {
  constexpr int kPacks = D / 8, kKeysAtOnce = 32 / kPacks;
  const int lane = static_cast<int>(threadIdx.x) % 32, key = lane / kPacks, pack = lane % kPacks;
  const std::uint32_t first_place = to + place<D>(key, pack);
  const T* row = from + offset + key * stride + pack * 8;
#pragma unroll
  for (int first = 0; first < kTileKeys; first += kKeysAtOnce, row += kKeysAtOnce * stride)
    copy_async((first_place ^ (first % 8 * 16)) + first * D * 2, row, first + key < count);
}

}  // namespace kvcache::cuda
