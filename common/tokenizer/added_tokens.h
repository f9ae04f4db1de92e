/// @file
/// Tokens beside the vocabulary, like <|im_end|>. The tokenizer looks for them before it cuts the text into
/// words. Chapter: step 1.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/tokenizer/regex.h"
#include "common/tokenizer/tokenizer_json.h"

namespace kvcache {

/// One entry of "added_tokens".
struct AddedToken {
  std::string content;  ///< its text
  std::int32_t id;      ///< its number in the vocabulary
  bool single_word;     ///< not inside of a word
  bool lstrip;          ///< includes the white space before it
  bool rstrip;          ///< includes the white space after it
  bool normalized;      ///< its normal form is looked for in normalized text
  bool special;         ///< left out of decoded text
};

/// Reads the entry `node`, with the id in the file.
/// @throws InputError when something is missing or has the wrong type.
AddedToken read_added_token(const JsonNode& node);

/// Cuts texts at added tokens. Const calls may run on several threads.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher();

  /// From now on `token` is found where the text has `form`. An empty form is never found. Of two tokens with
  /// the same form, the first is found.
  void add(const AddedToken& token, const std::string& form);

  /// A stretch of text: an added token if there is an id, else text between added tokens.
  struct Part {
    std::string_view text;           ///< of the text that was split
    std::optional<std::int32_t> id;  ///< none: text between added tokens
  };

  /// The parts of `text` (valid UTF-8) from left to right. Of overlapping tokens the one that starts first
  /// wins, and of these the longest. The time grows with the text, not with the number of tokens.
  /// @throws InputError, StoppedByRequest as `budget` does.
  std::vector<Part> split(std::string_view text, TextBudget& budget) const;

 private:
  /// The forms as a tree of bytes: node 0 is the root, an edge is one byte.
  struct Node {
    std::unordered_map<char, std::size_t> next;
    std::optional<std::size_t> token;  ///< in tokens_, when a form ends here
  };
  struct Found {
    std::size_t token;
    std::size_t end;
  };

  std::optional<Found> longest_at(std::string_view text, std::size_t begin, TextBudget& budget) const;
  bool is_inside_word(std::string_view text, std::size_t begin, std::size_t end, TextBudget& budget) const;

  std::vector<Node> nodes_;
  std::bitset<256> first_bytes_;  ///< of the forms: most bytes of a text are none of them
  std::vector<AddedToken> tokens_;
  Regex word_character_;
};

}  // namespace kvcache
