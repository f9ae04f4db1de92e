/// @file
/// UTF-8, one character at a time: where a character ends, and what can never become one. The tokenizer needs
/// it to check its input and to cut its output between characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvcache {

/// U+FFFD, what is shown for bytes that form no character.
inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

/// What stands at the front of some bytes.
struct Utf8Front {
  /// Whether it is text.
  enum class Kind : std::uint8_t {
    character,   ///< a whole character
    invalid,     ///< bytes that no further byte can turn into a character
    unfinished,  ///< all there is, and the front of a character
  };
  Kind kind;           ///< of the bytes in front
  std::size_t length;  ///< in bytes, at least 1; of invalid ones as many as share one U+FFFD
};

/// Looks at the front of `bytes`, which is not empty. Invalid bytes are grouped as the Unicode standard
/// recommends ("maximal subparts", section 3.9): a truncated character counts as one, any other byte alone.
Utf8Front utf8_front(std::string_view bytes);

/// Offset of the first byte that belongs to no character, or nothing when `text` is valid UTF-8.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

/// The front of `text`: as many whole characters as `most` bytes hold.
std::string_view front_characters(std::string_view text, std::size_t most);

/// `text` as a message shows it: at most its first `most` bytes, cut between characters, and "..." if it is
/// cut.
std::string shortened(std::string_view text, std::size_t most = 100);

/// Removes from `bytes` all that is decided and returns it as text, U+FFFD for what is invalid. What stays,
/// at most three bytes, may still become a character.
std::string take_characters(std::string& bytes);

}  // namespace kvcache
