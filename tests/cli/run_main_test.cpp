/// @file
/// Each failure becomes an exit code and one line on stderr.

#include "common/cli/run_main.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "common/base/error.h"
#include "fmt/format.h"
#include "tests/support/files.h"

namespace kvcache {
namespace {

struct Outcome {
  int code;
  std::string line;  ///< on stderr
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const std::function<int()>& body) {
  testing::internal::CaptureStderr();
  const int code = run_main(body);
  return {code, testing::internal::GetCapturedStderr()};
}

TEST(RunMain, ReturnsWhatTheBodyReturns) {
  EXPECT_EQ(outcome_of([] { return 0; }), (Outcome{0, ""}));
  EXPECT_EQ(outcome_of([] { return 3; }), (Outcome{3, ""}));
}

TEST(RunMain, ExitsWithTwoForAnInputError) {
  EXPECT_EQ(outcome_of([]() -> int { throw InputError("no such option"); }),
            (Outcome{2, "error: no such option\n"}));
}

TEST(RunMain, ExitsWithOneForAnyOtherFailure) {
  EXPECT_EQ(outcome_of([]() -> int { throw RunError("logit 3 is NaN"); }),
            (Outcome{1, "error: logit 3 is NaN\n"}));
  EXPECT_EQ(outcome_of([]() -> int { throw std::length_error("too long"); }),
            (Outcome{1, "error: too long\n"}));
  EXPECT_EQ(outcome_of([]() -> int { throw std::bad_alloc(); }),
            (Outcome{1,
                     "error: out of memory: the model, its K/V memory and the sequences need more than "
                     "there is; ask for less\n"}));
  EXPECT_EQ(outcome_of([]() -> int { throw 5; }), (Outcome{1, "error: unknown failure\n"}));
}

TEST(RunMain, FoldsAMessageIntoOneLine) {
  EXPECT_EQ(outcome_of([]() -> int { throw RunError("first\nsecond\r\n\x1b[31mthird\n\n"); }),
            (Outcome{1, "error: first second   [31mthird\n"}));
}

TEST(RunMain, KeepsMessagesInUtf8) {
  EXPECT_EQ(outcome_of([]() -> int { throw InputError("caf\xC3\xA9"); }),
            (Outcome{2, "error: caf\xC3\xA9\n"}));
}

TEST(RunMainDeathTest, AShortageOfMemoryThatNothingCatchesGetsItsLineToo) {
  EXPECT_EXIT(std::exit(run_main([] {
                std::thread([] { throw std::bad_alloc(); }).join();
                return 0;
              })),
              testing::ExitedWithCode(1), "^error: out of memory: [^\n]*\n$");
}

// In a process of its own, with stdout on `file`, which cannot be written.
int run_with_stdout_on(const char* file) {
  if (std::freopen(file, "w", stdout) == nullptr) return 99;
  return run_main([] { return std::puts("some text") < 0 ? 98 : 0; });
}

TEST(RunMainDeathTest, AFullDiskIsAFailure) {
  EXPECT_EXIT(std::exit(run_with_stdout_on("/dev/full")), testing::ExitedWithCode(1),
              "^error: cannot write the output: No space left on device\n$");
}

TEST(RunMainDeathTest, AnEarlierWriteThatFailedIsNotForgotten) {
  EXPECT_EXIT(
      {
        if (std::freopen("/dev/full", "w", stdout) == nullptr) std::exit(99);
        std::exit(run_main([] {
          std::puts("some text");
          std::fflush(stdout);  // fails, and leaves nothing to flush
          return 0;
        }));
      },
      testing::ExitedWithCode(1), "^error: cannot write the output: an earlier write failed\n$");
}

// fmt reports a write that failed as an error of its own.
TEST(RunMainDeathTest, TextLongerThanTheBufferGetsTheSameLineOnAFullDisk) {
  EXPECT_EXIT(
      {
        if (std::freopen("/dev/full", "w", stdout) == nullptr) std::exit(99);
        std::exit(run_main([] {
          fmt::print("{}", std::string(1'000'000, 'a'));
          return 0;
        }));
      },
      testing::ExitedWithCode(1), "^error: cannot write the output: No space left on device\n$");
}

TEST(RunMain, AnErrorOfTheSystemThatIsNotOfTheOutputKeepsItsWords) {
  const std::system_error error(std::make_error_code(std::errc::no_space_on_device), "no socket");
  EXPECT_EQ(outcome_of([&]() -> int { throw error; }),
            (Outcome{1, "error: no socket: No space left on device\n"}));
}

// With stdout on `file`, which may hold less than is written.
int run_with_a_size_limit(const std::string& file) {
  const rlimit limit{4096, 4096};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || std::freopen(file.c_str(), "w", stdout) == nullptr) return 99;
  return run_main([] {
    std::fputs(std::string(5000, 'a').c_str(), stdout);
    return 0;
  });
}

TEST(RunMainDeathTest, AFileAtItsSizeLimitIsAFailure) {
  const TemporaryFolder folder;
  EXPECT_EXIT(std::exit(run_with_a_size_limit(folder / "out")), testing::ExitedWithCode(1),
              "^error: cannot write the output: [^\n]+\n$");
}

// With stdout on a pipe that nobody reads.
int run_without_a_reader() {
  int ends[2];
  if (pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) return 99;
  close(ends[0]);
  close(ends[1]);
  return run_main([] { return std::puts("some text") < 0 ? 98 : 0; });
}

TEST(RunMainDeathTest, AReaderThatWentAwayEndsTheProgramQuietly) {
  EXPECT_EXIT(std::exit(run_without_a_reader()), testing::KilledBySignal(SIGPIPE), "^$");
}

TEST(RunMainDeathTest, AReaderThatWentAwayIsAFailureWhereTheSignalIsIgnored) {
  EXPECT_EXIT(
      {
        std::signal(SIGPIPE, SIG_IGN);
        std::exit(run_without_a_reader());
      },
      testing::ExitedWithCode(1), "^error: cannot write the output: Broken pipe\n$");
}

}  // namespace
}  // namespace kvcache
