/// @file
/// A step's program with --serve, as a user runs it.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/http_client.h"
#include "tests/support/run_program.h"

namespace kvcache {

/// A running server. The end of this object kills it, if it still runs.
class ServerProgram {
 public:
  explicit ServerProgram(const std::string& step, std::vector<std::string> arguments = {},
                         Gpu gpu = Gpu::hidden) {
    arguments.insert(arguments.begin(), {"--serve", "--port", "0"});
    int out[2];
    if (pipe(out) != 0) throw std::runtime_error("no pipe");
    process_ = fork();
    if (process_ == 0) {
      if (gpu == Gpu::hidden) setenv("CUDA_VISIBLE_DEVICES", "", 1);
      dup2(out[1], STDOUT_FILENO);
      ::close(out[0]);
      const std::string program = std::string(BINARY_DIR) + "/" + step;
      std::vector<char*> argv{const_cast<char*>(program.c_str())};
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(program.c_str(), argv.data());
      _exit(127);
    }
    ::close(out[1]);
    out_ = fdopen(out[0], "r");
  }
  ~ServerProgram() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
    fclose(out_);
  }
  ServerProgram(const ServerProgram&) = delete;

  /// Waits for the next line on stdout; "" at the end.
  std::string read_line() {
    char line[200];
    return fgets(line, sizeof(line), out_) != nullptr ? line : "";
  }
  int wait_for_port() { return port_of(read_line()); }
  void send(int signal) { kill(process_, signal); }
  /// Waits for the end. Returns the status of waitpid.
  int wait_for_end() {
    int status = 0;
    waitpid(std::exchange(process_, 0), &status, 0);
    return status;
  }

 private:
  pid_t process_ = 0;
  FILE* out_ = nullptr;
};

}  // namespace kvcache
