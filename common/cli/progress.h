/// @file
/// A progress line on stderr for long work, shown on a terminal after one second.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/kv_store.h"

namespace kvcache {

/// Gives the time now. Tests have a clock of their own.
using ProgressClock = std::function<std::chrono::steady_clock::time_point()>;

/// Whether stderr is a terminal, where a line can be redrawn.
bool stderr_is_terminal();

/// `progress(fraction)` redraws "Loading weights  42%" in place; the destructor erases the line.
class ProgressLine {
 public:
  /// @param what   the words before the per cent, "Loading weights"
  /// @param shown  false: nothing is ever written
  explicit ProgressLine(std::string what, bool shown = stderr_is_terminal(),
                        ProgressClock now = std::chrono::steady_clock::now);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Fraction done in [0, 1].
  void operator()(double fraction);

 private:
  std::string what_;
  bool shown_;
  ProgressClock now_;
  std::chrono::steady_clock::time_point begin_;
  int last_percent_ = -1;  // that the terminal shows; -1: none
};

/// A store that draws a progress line for each pass, "Prefill, 4,800 tokens  42%", until the text begins.
/// Keys and values go on to another store. The line counts layers: all rows go through a layer before any row
/// goes through the next.
class PassProgress final : public KvStore {
 public:
  /// @param store   the store that keeps K and V, on a CPU: a GPU gets all layers before it has computed one
  /// @param layers  of the model
  /// @param shown   as of ProgressLine
  PassProgress(KvStore& store, std::int64_t layers, bool shown,
               ProgressClock now = std::chrono::steady_clock::now)
      : store_(store), layers_(layers), shown_(shown), now_(std::move(now)) {}

  /// Text is on the terminal, and a line would be drawn over it: no line from now on.
  void text_begins() { shown_ = false; }

  void begin(const PassPlan& plan) override;
  void store_and_attend(std::int64_t layer, const HeadSettings& heads, const NewRows& rows,
                        Matrix& out) override;
  void end() override;
  std::int64_t gathered_bytes() const override { return store_.gathered_bytes(); }
  std::vector<std::int64_t> launch_key() const override { return store_.launch_key(); }

 private:
  KvStore& store_;
  std::int64_t layers_;
  bool shown_;
  ProgressClock now_;
  std::optional<ProgressLine> line_;  // of the pass that is being computed
};

}  // namespace kvcache
