#include "common/tokenizer/added_tokens.h"

#include <algorithm>

#include "common/tokenizer/utf8.h"

namespace kvcache {
namespace {

/// What \w matches in Rust: without the superscripts and fractions of Oniguruma, with the joiners.
constexpr std::string_view word_character = R"((?!\p{No})\w|[\x{200C}\x{200D}])";

/// The name of the search in the message about a spent budget.
constexpr std::string_view spender = "the search for added tokens";

/// The bytes of the character that ends at `end` > 0.
std::string_view character_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return text.substr(begin, end - begin);
}

std::string_view character_at(std::string_view text, std::size_t begin) {
  return text.substr(begin, utf8_front(text.substr(begin)).length);
}

/// The characters with the Unicode property White_Space.
bool is_white_space(std::string_view character) {
  constexpr std::string_view spaces[] = {
      "\t",     "\n",     "\v",     "\f",     "\r",     " ",      "\u0085", "\u00A0", "\u1680",
      "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008",
      "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000",
  };
  return std::find(std::begin(spaces), std::end(spaces), character) != std::end(spaces);
}

}  // namespace

AddedToken read_added_token(const JsonNode& node) {
  return {.content = node.string_at("content"),
          .id = node.at("id").token_id(),
          .single_word = node.boolean_at("single_word", false),
          .lstrip = node.boolean_at("lstrip", false),
          .rstrip = node.boolean_at("rstrip", false),
          .normalized = node.at("normalized").boolean(),
          .special = node.at("special").boolean()};
}

AddedTokenMatcher::AddedTokenMatcher() : nodes_(1), word_character_(Regex::from_pattern(word_character)) {}

void AddedTokenMatcher::add(const AddedToken& token, const std::string& form) {
  if (form.empty()) return;
  first_bytes_.set(static_cast<unsigned char>(form.front()));
  std::size_t node = 0;
  for (const char byte : form) {
    const auto [edge, is_new] = nodes_[node].next.try_emplace(byte, nodes_.size());
    node = edge->second;
    if (is_new) nodes_.emplace_back();
  }
  if (nodes_[node].token) return;
  nodes_[node].token = tokens_.size();
  tokens_.push_back(token);
}

std::optional<AddedTokenMatcher::Found> AddedTokenMatcher::longest_at(std::string_view text,
                                                                      std::size_t begin,
                                                                      TextBudget& budget) const {
  std::optional<Found> longest;
  if (!first_bytes_[static_cast<unsigned char>(text[begin])]) return longest;
  std::size_t node = 0, offset = begin;
  for (; offset < text.size(); ++offset) {
    const auto edge = nodes_[node].next.find(text[offset]);
    if (edge == nodes_[node].next.end()) break;
    node = edge->second;
    if (nodes_[node].token) longest = {*nodes_[node].token, offset + 1};
  }
  if (!budget.spend(offset - begin)) budget.refuse(spender);
  return longest;
}

bool AddedTokenMatcher::is_inside_word(std::string_view text, std::size_t begin, std::size_t end,
                                       TextBudget& budget) const {
  const auto is_word = [&](std::string_view character) {
    return !word_character_.find_all(character, budget).empty();
  };
  return (begin > 0 && is_word(character_before(text, begin))) ||
         (end < text.size() && is_word(character_at(text, end)));
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::split(std::string_view text,
                                                              TextBudget& budget) const {
  std::vector<Part> parts;
  std::size_t covered = 0;  // text before it is in `parts`
  const auto cover = [&](std::size_t begin, std::size_t end, std::optional<std::int32_t> id) {
    if (begin < end) parts.push_back({text.substr(begin, end - begin), id});
  };

  if (!budget.spend(text.size())) budget.refuse(spender);
  for (std::size_t offset = 0; offset < text.size();) {
    const std::optional<Found> found = longest_at(text, offset, budget);
    if (!found) {
      ++offset;
      continue;
    }
    std::size_t begin = offset, end = found->end;
    offset = end;
    const AddedToken& token = tokens_[found->token];
    if (token.single_word && is_inside_word(text, begin, end, budget)) continue;
    if (token.lstrip) {
      while (begin > covered && is_white_space(character_before(text, begin))) {
        begin -= character_before(text, begin).size();
      }
      // The token before may have included this one, if this one is white space; then nothing is left of it.
      begin = std::max(begin, covered);
    }
    if (token.rstrip) {
      // The white space up to `covered` belongs to the token before.
      end = std::max(end, covered);
      while (end < text.size() && is_white_space(character_at(text, end)))
        end += character_at(text, end).size();
    }
    cover(covered, begin, std::nullopt);
    cover(begin, end, token.id);
    covered = end;
  }
  cover(covered, text.size(), std::nullopt);
  return parts;
}

}  // namespace kvcache
