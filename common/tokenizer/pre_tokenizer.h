/// @file
/// Cuts normalized text into the words that byte pair encoding works on. No token reaches beyond a word.
/// Chapter: step 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/regex.h"
#include "common/tokenizer/tokenizer_json.h"

namespace kvcache {

/// What happens to the delimiters at which a text is cut. "a--b", cut at "-", becomes:
enum class SplitBehavior : std::uint8_t {
  removed,               ///< a b
  isolated,              ///< a - - b
  merged_with_previous,  ///< a- - b
  merged_with_next,      ///< a - -b
  contiguous,            ///< a -- b
};

/// The "pre_tokenizer" of a tokenizer.json.
class PreTokenizer {
 public:
  /// @throws InputError that names a pre-tokenizer that is not supported.
  explicit PreTokenizer(const std::optional<JsonNode>& node);

  /// The words of `text` (valid UTF-8), none of them empty. Its source is the whole input.
  /// @throws InputError, StoppedByRequest as `budget` and Regex do.
  std::vector<std::string> words(TracedText text, TextBudget& budget) const;
  /// Whether words are spelled in the alphabet of byte_level.h.
  bool spells_bytes() const;
  /// Whether parts of the text may be in no word.
  bool removes() const;

 private:
  using Pieces = std::vector<TracedText>;

  struct Split {
    Regex pattern;
    SplitBehavior behavior;
    bool invert;  ///< the pattern matches the text between delimiters
    void operator()(const TracedText& piece, Pieces& out, TextBudget& budget) const;
  };
  struct ByteLevel {
    bool add_prefix_space;
    std::optional<Split> split;  ///< by GPT-2's pattern
    void operator()(const TracedText& piece, Pieces& out, TextBudget& budget) const;
  };
  struct Metaspace {
    enum class Prepend : std::uint8_t { always, first, never };
    std::string replacement;  ///< one character
    Prepend prepend;
    std::optional<Split> split;  ///< before each replacement
    void operator()(const TracedText& piece, Pieces& out, TextBudget& budget) const;
  };
  using Step = std::variant<Split, ByteLevel, Metaspace>;

  static Step make_step(const JsonNode& node);
  static Metaspace make_metaspace(const JsonNode& node);

  std::vector<Step> steps_;
};

/// The options of "Metaspace", the same for the pre-tokenizer and the decoder.
struct MetaspaceOptions {
  std::string replacement;     ///< one character
  std::string prepend_scheme;  ///< "always", "first" or "never"
};

/// @throws InputError for a replacement that is not one character, an unknown scheme, and an add_prefix_space
/// that contradicts the scheme.
MetaspaceOptions read_metaspace(const JsonNode& node);

}  // namespace kvcache
