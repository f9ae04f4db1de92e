/// @file
/// Drawing on a terminal: colours where they are seen, plain text where the output goes to a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache {

/// `text` on the background of the sequence's colour (six of them, in turn), or unchanged if stdout is no
/// terminal.
std::string paint(std::string_view text, std::int64_t sequence);

/// "A" to "Z" for the sequences of a drawing, in turn.
char letter_of(std::int64_t sequence);

}  // namespace kvcache
