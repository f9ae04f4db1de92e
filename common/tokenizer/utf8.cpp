#include "common/tokenizer/utf8.h"

namespace kvcache {
namespace {

struct Lead {
  std::size_t length;                    ///< of the character; 0: none starts with this byte
  unsigned char second_min, second_max;  ///< narrower than 80..BF where overlong forms, surrogates or numbers
};                                       ///< above U+10FFFF would begin

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Front utf8_front(std::string_view bytes) {
  const Lead lead = lead_of(static_cast<unsigned char>(bytes[0]));
  if (lead.length == 0) return {Utf8Front::Kind::invalid, 1};
  for (std::size_t offset = 1; offset < lead.length; ++offset) {
    if (offset == bytes.size()) return {Utf8Front::Kind::unfinished, offset};
    const auto byte = static_cast<unsigned char>(bytes[offset]);
    const unsigned char min = offset == 1 ? lead.second_min : 0x80;
    const unsigned char max = offset == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8Front::Kind::invalid, offset};
  }
  return {Utf8Front::Kind::character, lead.length};
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  std::size_t offset = 0;
  while (offset < text.size()) {
    const Utf8Front front = utf8_front(text.substr(offset));
    if (front.kind != Utf8Front::Kind::character) return offset;
    offset += front.length;
  }
  return std::nullopt;
}

std::string_view front_characters(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  std::size_t end = 0;
  while (end < most) {
    const std::size_t next = end + utf8_front(text.substr(end)).length;
    if (next > most) break;
    end = next;
  }
  return text.substr(0, end);
}

std::string shortened(std::string_view text, std::size_t most) {
  const std::string front(front_characters(text, most));
  return front.size() < text.size() ? front + "..." : front;
}

std::string take_characters(std::string& bytes) {
  std::string text;
  std::size_t offset = 0;
  while (offset < bytes.size()) {
    const Utf8Front front = utf8_front(std::string_view(bytes).substr(offset));
    if (front.kind == Utf8Front::Kind::unfinished) break;
    if (front.kind == Utf8Front::Kind::character) {
      text.append(bytes, offset, front.length);
    } else {
      text += replacement_character;
    }
    offset += front.length;
  }
  bytes.erase(0, offset);
  return text;
}

}  // namespace kvcache
