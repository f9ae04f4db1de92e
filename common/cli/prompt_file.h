/// @file
/// Prompts that are too long for a command line: texts from files and from stdin.
#pragma once

#include <string>

namespace kvcache {

/// The text of the file `name`, "-" for stdin: its bytes as they are, but for one line ending (`\n` or
/// `\r\n`) at the very end, which editors and `echo` put there and nobody means as a part of a prompt.
/// @throws InputError, naming the file, if it cannot be read, is a folder, is not valid UTF-8, holds a NUL or
/// more than 256 MiB.
std::string read_prompt_file(const std::string& name);

}  // namespace kvcache
