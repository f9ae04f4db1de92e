/// @file
/// See run_main.h.

#include "common/cli/run_main.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "common/base/error.h"
#include "common/base/mapped_file.h"

namespace kvcache {
namespace {

constexpr int failed = 1, wrong_input = 2;
constexpr const char* out_of_memory =
    "error: out of memory: the model, its K/V memory and the sequences need more than there is; ask for "
    "less\n";

/// Prints the message as one line. A library's message may have several lines, a path any byte.
void print_error(std::string message) {
  for (char& character : message) {
    if ((character >= 0 && character < ' ') || character == 0x7F) character = ' ';
  }
  message.erase(message.find_last_not_of(' ') + 1);
  std::fflush(stdout);  // what was printed before the failure comes first
  std::fputs(("error: " + message + "\n").c_str(), stderr);
}

void print_output_error(const std::string& reason) {
  print_error("cannot write the output: " + reason);
}

int exit_code_of(const std::function<int()>& body) {
  try {
    return body();
  } catch (const InputError& error) {
    print_error(error.what());
    return wrong_input;
  } catch (const std::bad_alloc&) {
    std::fflush(stdout);
    std::fputs(out_of_memory, stderr);  // a constant: there may be no memory for a new string
  } catch (const std::system_error& error) {
    // fmt::print throws one without the output's name where a write to stdout fails.
    if (std::ferror(stdout) != 0) {
      print_output_error(error.code().message());
    } else {
      print_error(error.what());
    }
  } catch (const std::exception& error) {
    print_error(error.what());
  } catch (...) {
    print_error("unknown failure");
  }
  return failed;
}

/// Ends the process on an exception that nothing can catch: in a thread, or out of a destructor. Libraries'
/// destructors allocate, too, so memory may run out a second time while the first shortage unwinds the stack.
[[noreturn]] void end_on_uncaught() {
  const std::exception_ptr exception = std::current_exception();
  if (exception == nullptr) std::abort();
  std::_Exit(exit_code_of([&]() -> int { std::rethrow_exception(exception); }));
}

/// Takes the places of standard streams that are closed: the next files to be opened would stand there, and
/// get what the program prints. Reading stdin and writing stdout fail as before; what goes to stderr is lost.
void keep_places_of_closed_streams() {
  if (fcntl(STDIN_FILENO, F_GETFD) == -1) {
    // A socket has no name, so /dev/stdin cannot be opened; behind O_PATH it cannot be read, either.
    socket(AF_UNIX, SOCK_STREAM, 0);
    const int unreadable = open("/dev/stdin", O_PATH | O_CLOEXEC);
    dup2(unreadable, STDIN_FILENO);
    close(unreadable);
  }
  if (fcntl(STDOUT_FILENO, F_GETFD) == -1) open("/dev/null", O_RDONLY);  // the wrong way round
  if (fcntl(STDERR_FILENO, F_GETFD) == -1) open("/dev/null", O_WRONLY);
}

}  // namespace

int run_main(const std::function<int()>& body) {
  keep_places_of_closed_streams();
  explain_lost_pages();
  std::set_terminate(end_on_uncaught);
  std::signal(SIGXFSZ, SIG_IGN);  // the write fails instead, as on a full disk
  const int code = exit_code_of(body);
  if (code != 0) return code;  // its line is printed already
  // Buffered output fails only when it is flushed; exit would flush it and ignore the failure.
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    print_output_error(errno != 0 ? std::strerror(errno) : "an earlier write failed");
    return failed;
  }
  return code;
}

}  // namespace kvcache
