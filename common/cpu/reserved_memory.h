/// @file
/// Address space for a K/V cache on the CPU: reserved at once, backed by memory only where it is touched.
/// Chapter: step 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvcache {

/// A zero-filled buffer whose pages appear when they are first written.
class ReservedMemory {
 public:
  /// @throws RunError naming the size when the system does not give the address space.
  explicit ReservedMemory(std::int64_t bytes);

  std::byte* data() const { return data_.get(); }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_;
  std::shared_ptr<std::byte> data_;
};

}  // namespace kvcache
