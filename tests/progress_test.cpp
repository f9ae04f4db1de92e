/// @file
/// The progress line: only on a terminal, only after half a second, and nothing of it stays.

#include "common/cli/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>

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

void wait_until_it_shows() {
  std::this_thread::sleep_for(std::chrono::milliseconds(510));
}

TEST(ProgressLine, IsNotWrittenWhereThereIsNoTerminal) {
  testing::internal::CaptureStderr();
  {
    ProgressLine progress("Loading weights");
    wait_until_it_shows();
    progress(0.5);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ProgressLine, IsNotWrittenForWorkThatIsQuick) {
  const TerminalOnStderr terminal;
  if (!terminal.ready()) GTEST_SKIP() << "no pseudo-terminal here";
  {
    ProgressLine progress("Loading weights");
    progress(0.5);
  }
  EXPECT_EQ(terminal.written(), "");
}

TEST(ProgressLine, IsRedrawnInPlaceAndErased) {
  const TerminalOnStderr terminal;
  if (!terminal.ready()) GTEST_SKIP() << "no pseudo-terminal here";
  {
    ProgressLine progress("Loading weights");
    wait_until_it_shows();
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

}  // namespace
}  // namespace kvcache
