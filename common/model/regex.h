/// @file
/// Regular expressions as a tokenizer.json means them. Hugging Face's library matches with Oniguruma, in its
/// Ruby syntax; here PCRE2 does it. The two agree on most of what tokenizers use. What differs is translated
/// where that is simple and refused where it is not, so that no pattern quietly means something else.
/// Characters that are newer than PCRE2's tables (10.42: Unicode 14, of 2021) belong to no class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace kvcache {

/// A compiled pattern. Const calls may run on several threads.
class Regex {
 public:
  /// Bytes [begin, end) of the text that was searched.
  struct Match {
    std::size_t begin;  ///< its first byte
    std::size_t end;    ///< one past its last
  };

  /// @throws InputError: a syntax error, or a construct that is not supported, by name.
  static Regex from_pattern(std::string_view pattern);
  /// Matches `text` itself.
  static Regex from_literal(std::string_view text);

  /// All matches in `text` (valid UTF-8) from left to right; they do not overlap. A pattern that matches the
  /// empty string does so between characters, but not at the end of the match before.
  /// @throws InputError when the search exceeds PCRE2's limits.
  std::vector<Match> find_all(std::string_view text) const;

  /// `text` with all matches replaced by `content`.
  std::string replace_all(std::string_view text, std::string_view content) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };

  Regex(std::string_view pcre2_pattern, std::uint32_t options, std::string_view shown_as);

  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
  std::string shown_as_;  ///< the pattern as the file has it, for messages
};

}  // namespace kvcache
