/// @file
/// Runs one of the project's programs as a user would, and returns what it printed.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/files.h"

namespace kvcache {

struct ProgramResult {
  int exit_code = -1;  ///< -1: a signal ended it
  std::string out, err;
};

/// Whether a program sees the machine's GPU. If not, --device auto is the CPU on every machine.
enum class Gpu : std::uint8_t { hidden, visible };

/// Runs `program` (a path) with `arguments` and `input` on its standard input.
inline ProgramResult run_program(const std::filesystem::path& program,
                                 const std::vector<std::string>& arguments, Gpu gpu = Gpu::hidden,
                                 std::string_view input = "") {
  const TemporaryFolder folder;
  const std::filesystem::path in = folder.path() / "in", out = folder.path() / "out",
                              err = folder.path() / "err";
  write_file(in, input);
  const pid_t child = fork();
  if (child == 0) {
    const auto redirect = [](const std::filesystem::path& to, int as) {
      dup2(open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), as);
    };
    dup2(open(in.c_str(), O_RDONLY), STDIN_FILENO);
    if (gpu == Gpu::hidden) setenv("CUDA_VISIBLE_DEVICES", "", 1);
    redirect(out, STDOUT_FILENO);
    redirect(err, STDERR_FILENO);
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

/// Runs build/bin/`name`.
inline ProgramResult run_step(const std::string& name, const std::vector<std::string>& arguments,
                              Gpu gpu = Gpu::hidden, std::string_view input = "") {
  return run_program(std::filesystem::path(BINARY_DIR) / name, arguments, gpu, input);
}

}  // namespace kvcache
