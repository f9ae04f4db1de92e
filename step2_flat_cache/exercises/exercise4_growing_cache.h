/// @file
/// Exercise 4, stated in exercise4_growing_cache.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache {

/// The keys of one sequence in a buffer that grows, in place of a reservation.
class GrowingCache {
 public:
  /// @param row_width  kv_heads * head_dim
  GrowingCache(std::size_t layers, std::size_t row_width) : layers_(layers), row_width_(row_width) {}

  /// Stores the next position.
  /// @param rows  [layers, row_width]
  void append(std::span<const float> rows) {
    if (length_ == capacity_) grow();
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      const auto row = rows.subspan(layer * row_width_, row_width_);
      std::copy(row.begin(), row.end(), buffer_.begin() + offset(layer, length_, capacity_));
    }
    ++length_;
  }
  /// [row_width]
  std::span<const float> row(std::size_t layer, std::size_t position) const {
    return {buffer_.begin() + offset(layer, position, capacity_), row_width_};
  }
  std::size_t length() const { return length_; }          ///< positions stored
  std::size_t capacity() const { return capacity_; }      ///< positions that fit
  std::size_t rows_moved() const { return rows_moved_; }  ///< rows that `grow` has copied, over all layers

 private:
  /// Makes room: enlarges capacity_, puts every stored row at its new place, and adds to rows_moved_.
  void grow();

  /// Where a row begins in a buffer with room for `capacity` positions.
  std::ptrdiff_t offset(std::size_t layer, std::size_t position, std::size_t capacity) const {
    return static_cast<std::ptrdiff_t>((layer * capacity + position) * row_width_);
  }

  std::size_t layers_, row_width_;
  std::size_t length_ = 0, capacity_ = 0, rows_moved_ = 0;
  std::vector<float> buffer_;  // [layers, capacity, row_width]
};

}  // namespace kvcache
