/// @file
/// Prompts from files and from stdin, for texts that are too long for a command line.
#pragma once

#include <string>

namespace kvcache {

/// The text of the file `name`, "-" for stdin: its bytes without one line ending (`\n` or `\r\n`) at the very
/// end, which editors and `echo` add.
/// @throws InputError that names the file, if it cannot be read, is a folder, is not valid UTF-8, or holds a
/// NUL or more than 256 MiB.
std::string read_prompt_file(const std::string& name);

}  // namespace kvcache
