/// @file
/// What a tokenizer does to text before it looks for words: bring characters to one form (é is one character
/// or two), mark the beginning, replace spaces. Chapter: step 1.
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

/// The "normalizer" of a tokenizer.json.
class Normalizer {
 public:
  /// @throws InputError naming a normalizer that is not supported.
  explicit Normalizer(const std::optional<JsonNode>& node);

  /// The normal form of `text` (valid UTF-8). A text is normalized in the parts between special tokens, each
  /// on its own.
  /// @throws InputError, StoppedByRequest as `budget` and Regex do.
  std::string normalize(std::string_view text, TextBudget& budget) const;

  /// How many bytes of a text one byte of its normal form stands for, at most. None: there is no bound.
  std::optional<std::int64_t> most_shrinking() const;

 private:
  /// One of the four forms of Unicode Standard Annex 15. Hugging Face's tables are from before Unicode 11:
  /// marks and ligatures added since 2018, of rare scripts, keep their order and form there.
  struct UnicodeForm {
    bool compose, compatibility;
    std::string operator()(std::string_view text, TextBudget& budget) const;
    std::optional<std::int64_t> most_shrinking() const;
  };
  struct Prepend {
    std::string prefix;
    std::string operator()(std::string_view text, TextBudget& budget) const;
    std::optional<std::int64_t> most_shrinking() const { return 1; }
  };
  struct Replace {
    Regex pattern;
    std::optional<std::size_t> match;  ///< bytes that the pattern matches, where that is always as many
    std::string content;
    std::string operator()(std::string_view text, TextBudget& budget) const;
    std::optional<std::int64_t> most_shrinking() const;
  };
  using Step = std::variant<UnicodeForm, Prepend, Replace>;

  static Step make_step(const JsonNode& node);

  std::vector<Step> steps_;
};

/// The "pattern" of a component, {"String": ...} or {"Regex": ...}.
/// @throws InputError when it is neither, or not supported.
Regex read_pattern(const JsonNode& component);

}  // namespace kvcache
