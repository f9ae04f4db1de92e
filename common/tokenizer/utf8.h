/// @file
/// Reads UTF-8 one character at a time: finds where a character ends, and which bytes can never become one.
/// The tokenizer checks its input with this, and cuts its output between characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvcache {

/// U+FFFD, shown for bytes that form no character.
inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

/// The front of some bytes: a character, or bytes that are none.
struct Utf8Front {
  /// Whether the front is text.
  enum class Kind : std::uint8_t {
    character,   ///< a whole character
    invalid,     ///< no further byte can make it a character
    unfinished,  ///< the beginning of a character, and no byte follows
  };
  Kind kind;           ///< of the bytes in front
  std::size_t length;  ///< bytes, at least 1; invalid bytes that share one U+FFFD
};

/// Looks at the front of `bytes`, which is not empty. Invalid bytes are grouped as the Unicode standard
/// recommends ("maximal subparts", section 3.9): a truncated character counts as one, any other byte alone.
Utf8Front utf8_front(std::string_view bytes);

/// Offset of the first byte that belongs to no character; nothing if `text` is valid UTF-8.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

/// The front of `text`: as many whole characters as fit into `most` bytes.
std::string_view front_characters(std::string_view text, std::size_t most);

/// `text` for a message: at most its first `most` bytes, cut between characters, then "..." if it was cut.
std::string shortened(std::string_view text, std::size_t most = 100);

/// Removes all finished characters from `bytes` and returns them, with U+FFFD for invalid bytes. The bytes
/// that stay, at most three, may still become a character.
std::string take_characters(std::string& bytes);

}  // namespace kvcache
