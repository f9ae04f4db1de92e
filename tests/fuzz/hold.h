/// @file
/// Shared by the fuzz targets. A target fails if the sanitizers find a fault, if it throws an unexpected
/// exception, or if `hold` is false.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

/// The target: libFuzzer calls it with each input, feed_files.cpp with each file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace kvcache {

/// What must be true; else the input is a finding.
inline void hold(bool is_true, const char* what) {
  if (is_true) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

/// Takes an input apart.
class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  /// The next byte; 0 at the end.
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const char first = rest_.front();
    rest_.remove_prefix(1);
    return static_cast<std::uint8_t>(first);
  }
  /// What comes before `end`, which is taken too, or all that is left.
  std::string_view until(char end) {
    const std::string_view part = rest_.substr(0, rest_.find(end));
    rest_.remove_prefix(std::min(part.size() + 1, rest_.size()));
    return part;
  }
  std::string_view rest() { return std::exchange(rest_, {}); }

 private:
  std::string_view rest_;
};

}  // namespace kvcache
