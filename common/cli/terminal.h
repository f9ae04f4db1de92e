/// @file
/// Colours for drawings on a terminal, and plain text for output that goes to a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache {

/// `text` on the background of the sequence's colour, one of six in turn; unchanged if stdout is no terminal.
std::string paint(std::string_view text, std::int64_t sequence);

/// The letter of a sequence in a drawing, 'A' to 'Z' in turn.
char letter_of(std::int64_t sequence);

}  // namespace kvcache
