/// @file
/// Memory on the GPU, and page-locked memory of the host, which the GPU copies from and to while both
/// compute. Chapter: step3_paged/README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "common/cuda/device.h"

namespace kvcache::cuda {

/// `bytes` of the GPU's memory, uninitialised, aligned to 256 bytes. The last owner frees it.
/// @param what  for the error's message, as "the K/V pool"
/// @throws RunError with the numbers.
std::shared_ptr<void> allocate_device(std::int64_t bytes, const char* what);

/// How often allocate_device() has given memory in this process. While this number stays the same, no buffer
/// on the GPU has moved.
std::int64_t allocations();

/// `bytes` of page-locked host memory, uninitialised. The last owner frees it.
/// @throws RunError with the number if the host does not give that much.
std::shared_ptr<void> allocate_pinned(std::int64_t bytes, const char* what);

/// An array of numbers in memory of `allocate`.
template <typename T, std::shared_ptr<void> (*allocate)(std::int64_t bytes, const char* what)>
class Buffer {
 public:
  Buffer() = default;
  /// @throws RunError with the numbers if there is not enough memory, as reserve() does.
  Buffer(std::int64_t count, const char* what) { reserve(count, what); }

  /// Makes room for `count` numbers. A buffer that grows, by half at least, loses its contents and gets
  /// another address. Queued work may still use the old memory: freeing waits for it.
  void reserve(std::int64_t count, const char* what) {
    if (count <= size_) return;
    const std::int64_t room = std::max(count, grown_from(size_));
    memory_.reset();
    size_ = 0;
    memory_ = allocate(room * static_cast<std::int64_t>(sizeof(T)), what);
    size_ = room;
  }

  /// The most numbers that there is ever room for, if reserve() is never asked for more than `count`.
  static constexpr std::int64_t most_room(std::int64_t count) { return grown_from(count); }

  T* data() const { return static_cast<T*>(memory_.get()); }  ///< [size]; nullptr if nothing was reserved
  std::int64_t size() const { return size_; }                 ///< room for so many numbers

 private:
  static constexpr std::int64_t grown_from(std::int64_t size) { return size * 3 / 2; }

  std::shared_ptr<void> memory_;
  std::int64_t size_ = 0;
};

/// Numbers in the GPU's memory.
template <typename T>
using DeviceBuffer = Buffer<T, allocate_device>;

/// Numbers in page-locked memory of the host: copies from and to the GPU run beside other work.
template <typename T>
using PinnedBuffer = Buffer<T, allocate_pinned>;

/// A small array that the host writes anew for each pass. Two page-locked buffers take turns, so the host
/// waits for the last copy but one, never for the last. The address on the GPU changes only when the array
/// outgrows its room. Some room is there from the start, since page-locked memory takes longer to get than
/// a small pass takes.
template <typename T>
class Upload {
 public:
  /// @throws RunError if there is not enough memory.
  Upload() { grow_to(kFirstRoom); }

  /// Copies `numbers` to the GPU, in the order of `stream`.
  /// @return their address on the GPU
  const T* operator()(std::span<const T> numbers, cudaStream_t stream) {
    const auto count = static_cast<std::int64_t>(numbers.size());
    if (count > device_.size()) {
      check(cudaStreamSynchronize(stream), "waiting for the GPU");
      grow_to(count * 2);
    }
    if (count == 0) return device_.data();
    std::swap(staging_[0], staging_[1]);
    Staging& staging = staging_[0];
    check(cudaEventSynchronize(staging.copied.get()), "waiting for a copy to the GPU");
    std::copy(numbers.begin(), numbers.end(), staging.buffer.data());
    check(cudaMemcpyAsync(device_.data(), staging.buffer.data(), numbers.size_bytes(), cudaMemcpyHostToDevice,
                          stream),
          "copying a table to the GPU");
    check(cudaEventRecord(staging.copied.get(), stream), "recording a CUDA event");
    return device_.data();
  }
  const T* data() const { return device_.data(); }  ///< address on the GPU of what was copied last

 private:
  static constexpr std::int64_t kFirstRoom = 4096;

  struct Staging {
    PinnedBuffer<T> buffer;
    Event copied;
  };

  void grow_to(std::int64_t room) {
    for (Staging& staging : staging_) {
      staging.buffer = PinnedBuffer<T>(room, "a table of the pass");
      staging.copied = make_event();
    }
    device_.reserve(room, "a table of the pass");  // last: its size says that all three have grown
  }

  DeviceBuffer<T> device_;
  Staging staging_[2];
};

}  // namespace kvcache::cuda
