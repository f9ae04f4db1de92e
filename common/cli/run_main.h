/// @file
/// What all four `main` functions do around their work: every failure becomes one line on stderr and an exit
/// code.
#pragma once

#include <functional>

namespace kvcache {

/// Runs `body` and returns what it returns, or: 2 after an InputError; 1 after any other exception, and when
/// the output could not be written (a full disk, a closed stdout). Each of these prints `error: ...` on
/// stderr, as one line. A reader that goes away (`| head -1`) ends the program through SIGPIPE, quietly, as
/// it ends other command-line tools; where that signal is ignored it is a failure to write.
///
/// An exception that nothing can catch, such as a shortage of memory in a thread or a destructor, ends the
/// process with the same line and code. A model file cut short while it is in use gets its line too, see
/// explain_lost_pages.
int run_main(const std::function<int()>& body);

}  // namespace kvcache
