/// @file
/// See terminal.h.
#include "common/cli/terminal.h"

#include <unistd.h>

#include "fmt/format.h"

namespace kvcache {

std::string paint(std::string_view text, std::int64_t sequence) {
  static const bool on_terminal = isatty(STDOUT_FILENO) == 1;
  if (!on_terminal) return std::string(text);
  // Blue, orange, green, purple, ochre and teal of the 256-colour table; they also differ in brightness, for
  // colour-blind readers.
  constexpr int kBackgrounds[] = {27, 208, 34, 93, 178, 37};
  return fmt::format("\033[30;48;5;{}m{}\033[0m", kBackgrounds[sequence % 6], text);
}

char letter_of(std::int64_t sequence) {
  return static_cast<char>('A' + sequence % 26);
}

}  // namespace kvcache
