/// @file
/// The two kinds of failure of a program of this project, each with its own exit code; and any error in
/// words.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>

namespace kvcache {

/// The input is wrong: an option, a path, the content of a file. The message is one line that names the value
/// and says what would be right. `main` prints it on stderr and exits with 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The input is right and the work failed: no memory, no device, numbers that are not finite. `main` prints
/// the one-line message on stderr and exits with 1.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The error in words. Never empty, and needs no memory: there may be none.
inline const char* words_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  return *error.what() == '\0' ? "unknown" : error.what();
}

}  // namespace kvcache
