/// @file
/// Exercise 2, stated in exercise2_running_softmax.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace kvcache {

/// The keys and values of one head, position by position from 0 on. Each position comes once; earlier ones
/// are gone.
class KvStream {
 public:
  /// @param k,v  [positions, head_dim]
  KvStream(std::span<const float> k, std::span<const float> v, std::size_t head_dim)
      : k_(k), v_(v), key_(head_dim), value_(head_dim) {}

  /// Goes on to the next position, at first to position 0.
  /// @return false if there is none
  bool next() {
    if (k_.empty()) return false;
    std::copy_n(k_.begin(), key_.size(), key_.begin());
    std::copy_n(v_.begin(), value_.size(), value_.begin());
    k_ = k_.subspan(key_.size());
    v_ = v_.subspan(value_.size());
    return true;
  }
  std::span<const float> key() const { return key_; }      ///< [head_dim]
  std::span<const float> value() const { return value_; }  ///< [head_dim]

 private:
  std::span<const float> k_, v_;  // what is still to come
  std::vector<float> key_, value_;
};

/// out = sum over j of softmax_j(q . k_j / sqrt(head_dim)) * v_j, over the positions j of the stream.
/// @param q    [head_dim]
/// @param kv   the positions up to the query's own, at least one
/// @param out  [head_dim], overwritten
/// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
void attend_to_stream(std::span<const float> q, KvStream& kv, std::span<float> out);

}  // namespace kvcache
