/// @file
/// What a tokenizer does to a text before it cuts words: brings characters to one form (é can be one
/// character or two), marks the beginning, replaces spaces. Chapter: step 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/tokenizer/regex.h"
#include "common/tokenizer/tokenizer_json.h"

namespace kvcache {

/// A text made from another one, its source. A "Metaspace" with the scheme "first" marks the words that come
/// from the source's first character.
struct TracedText {
  std::string text;  ///< UTF-8
  /// Bytes at the beginning of `text` that come from the source's first character; 0 if a normalizer took
  /// that character away.
  std::size_t from_first;

  /// The `length` bytes of the text from byte `begin` on.
  TracedText part(std::size_t begin, std::size_t length) const;
};

/// The "normalizer" of a tokenizer.json.
class Normalizer {
 public:
  /// @throws InputError that names a normalizer that is not supported.
  explicit Normalizer(const std::optional<JsonNode>& node);

  /// The normal form of `text` (valid UTF-8), a part of the input between two special tokens.
  /// @throws InputError, StoppedByRequest as `budget` and Regex do.
  TracedText normalize(std::string_view text, TextBudget& budget) const;

  /// The most bytes of a text that become one byte of its normal form; none if there is no bound.
  std::optional<std::int64_t> most_shrinking() const;

 private:
  /// One of the four forms of Unicode Standard Annex 15. Hugging Face's tables are older than Unicode 11, so
  /// there the marks and ligatures of rare scripts added since 2018 keep their order and form. A mark that
  /// moves between several parts of the first character, or joins one, is taken for a part of it.
  struct UnicodeForm {
    bool compose, compatibility;
    TracedText operator()(const TracedText& from, TextBudget& budget) const;
    std::string form(std::string_view text, TextBudget& budget) const;
    std::optional<std::int64_t> most_shrinking() const;
  };
  struct Prepend {
    std::string prefix;
    TracedText operator()(const TracedText& from, TextBudget& budget) const;
    std::optional<std::int64_t> most_shrinking() const { return 1; }
  };
  /// As in Hugging Face's library, what replaces a match comes from the last character of the match.
  struct Replace {
    Regex pattern;
    std::optional<std::size_t> match;  ///< bytes of a match, if every match has equally many
    std::string content;
    TracedText operator()(const TracedText& from, TextBudget& budget) const;
    std::optional<std::int64_t> most_shrinking() const;
  };
  using Step = std::variant<UnicodeForm, Prepend, Replace>;

  static Step make_step(const JsonNode& node);

  std::vector<Step> steps_;
};

/// The "pattern" of a component, {"String": ...} or {"Regex": ...}.
/// @throws InputError if it is neither of the two, or is not supported.
Regex read_pattern(const JsonNode& component);

}  // namespace kvcache
