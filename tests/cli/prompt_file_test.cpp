// Prompts from files: their bytes, without the newline that editors put at the end.
#include "common/cli/prompt_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "common/base/error.h"
#include "tests/support/files.h"

namespace kvcache {
namespace {

std::string text_of(const std::string& bytes) {
  const TemporaryFolder folder;
  write_file(folder / "prompt", bytes);
  return read_prompt_file(folder / "prompt");
}

TEST(PromptFile, KeepsItsBytesButForOneNewlineAtItsEnd) {
  EXPECT_EQ(text_of("Once"), "Once");
  EXPECT_EQ(text_of("Once\n"), "Once");
  EXPECT_EQ(text_of("Once\r\n"), "Once");
  EXPECT_EQ(text_of("Once\n\n"), "Once\n");
  EXPECT_EQ(text_of("Once\r"), "Once\r");
  EXPECT_EQ(text_of(" \tOnce\r\nupon \n a \n"), " \tOnce\r\nupon \n a ");
  EXPECT_EQ(text_of("\n"), "");
  EXPECT_EQ(text_of(""), "");
}

TEST(PromptFile, MayBeLongerThanACommandLineAndThanABuffer) {
  std::string text;
  for (int n = 0; n < 30'000; ++n) text += "the \xC3\xA9t\xC3\xA9 ";  // 300 KB
  EXPECT_EQ(text_of(text), text);
}

TEST(PromptFile, IsNotReadAgainForAStdinThatIsClosed) {
  const int kept = dup(STDIN_FILENO);
  close(STDIN_FILENO);
  EXPECT_EQ(text_of("Once"), "Once");
  std::string refusal = "nothing";
  try {
    refusal = "read as " + read_prompt_file("-");
  } catch (const InputError& error) {
    refusal = error.what();
  }
  EXPECT_EQ(refusal, "--prompt-file - (stdin): Bad file descriptor");
  if (kept >= 0) {
    dup2(kept, STDIN_FILENO);
    close(kept);
  }
}

}  // namespace
}  // namespace kvcache
