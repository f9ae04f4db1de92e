/// @file
/// The progress line. It is written past the end of the visible text and erased with the terminal's own
/// sequence, so that nothing of it stays.

#include "common/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvcache {

ProgressLine::ProgressLine(std::string what)
    : what_(std::move(what)),
      begin_(std::chrono::steady_clock::now()),
      on_terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (shown_) std::fputs("\r\x1b[K", stderr);  // back to the first column, erase to the end of the line
}

void ProgressLine::operator()(double fraction) {
  if (!on_terminal_) return;
  const int percent = fraction > 0 ? static_cast<int>(std::min(fraction, 1.0) * 100) : 0;  // NaN is 0
  if (percent == last_percent_) return;
  if (std::chrono::steady_clock::now() - begin_ < std::chrono::milliseconds(500)) return;
  last_percent_ = percent;
  shown_ = true;
  std::fprintf(stderr, "\r%s %3d%%", what_.c_str(), percent);
}

}  // namespace kvcache
