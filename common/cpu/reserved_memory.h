/// @file
/// Address space for a K/V cache on the CPU: reserved at once, given memory only where it is written.
/// Chapter: step 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvcache {

/// A zero-filled buffer whose pages appear when they are first written.
class ReservedMemory {
 public:
  /// @param of  the bytes of all K and V that were asked for, of which these may be a half
  /// @throws RunError naming `of` when the system does not give the address space.
  ReservedMemory(std::int64_t bytes, std::int64_t of);
  /// All that was asked for.
  explicit ReservedMemory(std::int64_t bytes) : ReservedMemory(bytes, bytes) {}

  /// Asks the system for pages of 2 MiB, which cost fewer address translations. Each begun one takes memory.
  void use_large_pages() const;

  /// The first byte, aligned to a page. What was never written reads as zero.
  std::byte* data() const { return data_.get(); }
  /// The size it was made with.
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_;
  std::shared_ptr<std::byte> data_;
};

}  // namespace kvcache
