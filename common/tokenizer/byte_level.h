/// @file
/// The alphabet of byte-level BPE. GPT-2 writes each of the 256 bytes as one visible character. So its
/// vocabulary is text (" the" is "Ġthe"), and it covers any input.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvcache {

/// One character of the alphabet for each byte of `bytes`.
std::string to_byte_level(std::string_view bytes);

/// The bytes that the characters of `text` (valid UTF-8) stand for; nothing if a character is not in the
/// alphabet.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace kvcache
