/// @file
/// What every `main` function does around its work: a failure becomes one line on stderr and an exit code.
#pragma once

#include <functional>

namespace kvcache {

/// Runs `body`. Each failure prints one line `error: ...` on stderr.
///
/// A reader that goes away (`| head -1`) ends the program quietly through SIGPIPE, as it ends other
/// command-line tools. Where that signal is ignored, the output could not be written.
///
/// An exception that nothing can catch, such as a shortage of memory in a thread or a destructor, ends the
/// process with the same line and code. A model file that is cut short while it is in use gets a line, too
/// (explain_lost_pages).
/// @return what `body` returns; 2 after an InputError; 1 after any other exception, and if the output could
/// not be written (a full disk, a file at its size limit, a closed stdout).
int run_main(const std::function<int()>& body);

}  // namespace kvcache
