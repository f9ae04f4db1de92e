/// @file
/// See progress.h. The terminal's own sequence erases the line, so that nothing of it stays.

#include "common/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/cli/print.h"
#include "fmt/format.h"

namespace kvcache {

bool stderr_is_terminal() {
  return isatty(STDERR_FILENO) != 0;
}

ProgressLine::ProgressLine(std::string what, bool shown, ProgressClock now)
    : what_(std::move(what)), shown_(shown), now_(std::move(now)), begin_(now_()) {}

ProgressLine::~ProgressLine() {
  if (last_percent_ >= 0)
    std::fputs("\r\x1b[K", stderr);  // back to the first column, erase to the end of the line
}

void ProgressLine::operator()(double fraction) {
  if (!shown_) return;
  const int percent = fraction > 0 ? static_cast<int>(std::min(fraction, 1.0) * 100) : 0;  // NaN is 0
  if (percent == last_percent_ || now_() - begin_ < std::chrono::seconds(1)) return;
  last_percent_ = percent;
  std::fprintf(stderr, "\r%s %3d%%", what_.c_str(), percent);
}

void PassProgress::begin(const PassPlan& plan) {
  if (shown_) {
    const std::int64_t tokens = plan.tokens();
    line_.emplace(fmt::format("Prefill, {} {}", grouped(tokens), tokens == 1 ? "token" : "tokens"), true,
                  now_);
  }
  store_.begin(plan);
}

void PassProgress::store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                                    Matrix& out) {
  if (line_) (*line_)(static_cast<double>(layer) / static_cast<double>(layers_));
  store_.store_and_attend(layer, heads, rows, out);
}

void PassProgress::end() {
  line_.reset();
  store_.end();
}

}  // namespace kvcache
