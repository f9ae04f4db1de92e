/// @file
/// The progress line appears on a terminal only, after one second, and is erased completely.

#include "common/cli/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace kvcache {
namespace {

/// Puts stderr on a terminal of its own for as long as it lives.
class TerminalOnStderr {
 public:
  TerminalOnStderr() : saved_(dup(STDERR_FILENO)), master_(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) return;
    const int terminal = open(ptsname(master_), O_RDWR | O_NOCTTY);
    if (terminal < 0) return;
    ready_ = dup2(terminal, STDERR_FILENO) == STDERR_FILENO;
    close(terminal);
  }
  ~TerminalOnStderr() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    if (master_ >= 0) close(master_);
  }
  TerminalOnStderr(const TerminalOnStderr&) = delete;
  TerminalOnStderr& operator=(const TerminalOnStderr&) = delete;

  bool ready() const { return ready_; }

  /// What has been written since the last call.
  std::string written() const {
    char bytes[4096];
    const ssize_t count = read(master_, bytes, sizeof bytes);
    return count > 0 ? std::string(bytes, static_cast<std::size_t>(count)) : "";
  }

 private:
  int saved_, master_;
  bool ready_ = false;
};

/// A clock that a test moves on.
class Clock {
 public:
  ProgressClock read() {
    return [this] { return now_; };
  }
  void advance(std::chrono::milliseconds by) { now_ += by; }

 private:
  std::chrono::steady_clock::time_point now_{};
};

using std::chrono::milliseconds;

TEST(ProgressLine, IsNotWrittenWhereThereIsNoTerminal) {
  testing::internal::CaptureStderr();
  {
    Clock clock;
    ProgressLine progress("Loading weights", stderr_is_terminal(), clock.read());
    clock.advance(milliseconds(2000));
    progress(0.5);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ProgressLine, IsNotWrittenForWorkThatIsQuick) {
  const TerminalOnStderr terminal;
  if (!terminal.ready()) GTEST_SKIP() << "no pseudo-terminal here";
  {
    Clock clock;
    ProgressLine progress("Loading weights", stderr_is_terminal(), clock.read());
    clock.advance(milliseconds(999));
    progress(0.5);
  }
  EXPECT_EQ(terminal.written(), "");
}

TEST(ProgressLine, IsRedrawnInPlaceAndErased) {
  const TerminalOnStderr terminal;
  if (!terminal.ready()) GTEST_SKIP() << "no pseudo-terminal here";
  {
    Clock clock;
    ProgressLine progress("Loading weights", stderr_is_terminal(), clock.read());
    clock.advance(milliseconds(1000));
    progress(0.42);
    EXPECT_EQ(terminal.written(), "\rLoading weights  42%");
    progress(0.421);
    EXPECT_EQ(terminal.written(), "") << "the same percent is not drawn again";
    progress(2.0);
    EXPECT_EQ(terminal.written(), "\rLoading weights 100%");
    progress(std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(terminal.written(), "\rLoading weights   0%");
  }
  EXPECT_EQ(terminal.written(), "\r\x1b[K");
}

/// A store that notes its calls.
class SilentStore final : public KvStore {
 public:
  void begin(const PassPlan&) override { calls += "begin "; }
  void store_and_attend(std::int64_t layer, const HeadSettings&, const NewRows&, Matrix&) override {
    calls += "layer " + std::to_string(layer) + " ";
  }
  void end() override { calls += "end "; }
  std::int64_t gathered_bytes() const override { return 7; }
  std::vector<std::int64_t> launch_key() const override { return {8}; }

  std::string calls;
};

/// A pass of some tokens through two layers; `between` is called before each and before the end.
void run_pass(KvStore& store, std::size_t tokens, const std::function<void()>& between) {
  PassPlan plan;
  plan.add(0, std::vector<std::int32_t>(tokens, 1), 0);
  Matrix none;
  store.begin(plan);
  for (const std::int64_t layer : {0, 1}) {
    between();
    store.store_and_attend(layer, {}, {none, none, none}, none);
  }
  between();
  store.end();
}

TEST(PassProgress, TellsOfLayersAndIsGoneWhenThePassIsOver) {
  const TerminalOnStderr terminal;
  if (!terminal.ready()) GTEST_SKIP() << "no pseudo-terminal here";
  SilentStore store;
  Clock clock;
  PassProgress progress(store, 2, stderr_is_terminal(), clock.read());
  run_pass(progress, 4800, [&] { clock.advance(milliseconds(600)); });
  EXPECT_EQ(terminal.written(), "\rPrefill, 4,800 tokens  50%\r\x1b[K") << "the first layer began too early";
  run_pass(progress, 1, [&] { clock.advance(milliseconds(400)); });
  EXPECT_EQ(terminal.written(), "") << "each pass has its own second";
}

TEST(PassProgress, IsNotDrawnOverText) {
  const TerminalOnStderr terminal;
  if (!terminal.ready()) GTEST_SKIP() << "no pseudo-terminal here";
  SilentStore store;
  Clock clock;
  PassProgress progress(store, 2, stderr_is_terminal(), clock.read());
  progress.text_begins();
  run_pass(progress, 10, [&] { clock.advance(milliseconds(2000)); });
  EXPECT_EQ(terminal.written(), "");
}

TEST(PassProgress, HandsEverythingOnToTheStoreBehindIt) {
  SilentStore store;
  PassProgress progress(store, 2, false);
  run_pass(progress, 3, [] {});
  EXPECT_EQ(store.calls, "begin layer 0 layer 1 end ");
  EXPECT_EQ(progress.gathered_bytes(), 7);
  EXPECT_EQ(progress.launch_key(), std::vector<std::int64_t>{8});
}

}  // namespace
}  // namespace kvcache
