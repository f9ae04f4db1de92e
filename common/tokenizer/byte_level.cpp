#include "common/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "common/tokenizer/utf8.h"

namespace kvcache {
namespace {

/// Every character of the alphabet is below U+0144: one or two bytes of UTF-8.
constexpr std::size_t alphabet_end = 256 + 68;

struct Alphabet {
  std::array<std::uint16_t, 256> character{};     // [byte]
  std::array<std::int16_t, alphabet_end> byte{};  // [character], -1: not in the alphabet
};

/// Bytes that are visible in Latin-1 stand for themselves; the 68 others get U+0100, U+0101, ... in order.
Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  std::uint16_t next = 256;
  for (std::uint16_t byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const std::uint16_t character = visible ? byte : next++;
    alphabet.character[byte] = character;
    alphabet.byte[character] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

const Alphabet alphabet = make_alphabet();

}  // namespace

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    const unsigned character = alphabet.character[static_cast<unsigned char>(byte)];
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xC0 | (character >> 6));
      text += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return text;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const std::size_t length = utf8_front(text).length;
    if (length > 2) return std::nullopt;
    auto character = static_cast<unsigned>(static_cast<unsigned char>(text[0]));
    if (length == 2) {
      character =
          (character & 0x1F) << 6 | (static_cast<unsigned>(static_cast<unsigned char>(text[1])) & 0x3F);
    }
    if (character >= alphabet_end || alphabet.byte[character] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet.byte[character]);
    text.remove_prefix(length);
  }
  return bytes;
}

}  // namespace kvcache
