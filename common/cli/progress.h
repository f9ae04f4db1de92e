/// @file
/// A progress line on stderr for work that takes long, shown only on a terminal and only after half a second.
#pragma once

#include <chrono>
#include <string>

namespace kvcache {

/// `progress(fraction)` redraws "Loading weights  42%" in place; the destructor erases the line.
class ProgressLine {
 public:
  /// @param what  is shown before the per cent: "Loading weights"
  explicit ProgressLine(std::string what);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Fraction done in [0, 1].
  void operator()(double fraction);

 private:
  std::string what_;
  std::chrono::steady_clock::time_point begin_;
  bool on_terminal_;
  bool shown_ = false;
  int last_percent_ = -1;
};

}  // namespace kvcache
