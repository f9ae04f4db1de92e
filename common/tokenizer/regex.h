/// @file
/// The regular expressions of a tokenizer.json. Hugging Face's library matches them with Oniguruma, in Ruby
/// syntax; here PCRE2 matches them. The two agree on most of what tokenizers use. A simple difference is
/// translated, and any other is refused, so no pattern silently changes its meaning. Characters newer than
/// PCRE2's tables (10.42: Unicode 14, of 2021) belong to no class.
///
/// A pattern may backtrack for hours on a short text. So the first search looks at a short stretch of the
/// text and takes few steps, which are not counted. It finds the words of real texts, and is fast. If it
/// decides nothing, a second search counts its steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/text_budget.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace kvcache {

/// A compiled pattern. Const calls may run on several threads.
class Regex {
 public:
  /// Bytes [begin, end) of the text that was searched.
  struct Match {
    std::size_t begin;  ///< its first byte
    std::size_t end;    ///< one past its last
  };

  /// @throws InputError for a syntax error, and for a construct that is not supported, with its name.
  static Regex from_pattern(std::string_view pattern);
  /// An expression that matches `text` literally.
  static Regex from_literal(std::string_view text);

  /// All matches in `text` (valid UTF-8) from left to right, without overlaps. The empty string can match
  /// between characters, except at the end of another match. Hugging Face's library finds nothing in an empty
  /// text; neither does this.
  /// @param budget  of the whole input, of which `text` is a part
  /// @throws InputError if the budget or PCRE2's memory is spent, StoppedByRequest.
  std::vector<Match> find_all(std::string_view text, TextBudget& budget) const;

  /// `text` with all matches replaced by `content`.
  /// @throws InputError as `find_all` does, and if the text grows too long for the budget.
  std::string replace_all(std::string_view text, std::string_view content, TextBudget& budget) const;
  /// `text` with `matches`, which `find_all` found in it, replaced by `content`.
  /// @throws InputError if the text grows too long for the budget.
  static std::string replace(std::string_view text, const std::vector<Match>& matches,
                             std::string_view content, TextBudget& budget);

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };

  struct FreeContext {
    void operator()(pcre2_real_match_context_8* context) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, FreeCode>;

  Regex(std::string_view pcre2_pattern, std::uint32_t options, std::size_t longest_repetition,
        std::string_view shown_as);

  bool find(std::string_view text, std::size_t offset, pcre2_real_match_data_8* data,
            TextBudget& budget) const;
  bool find_counted(std::string_view text, std::size_t offset, pcre2_real_match_data_8* data,
                    TextBudget& budget) const;
  std::string spender() const;

  Code code_, counted_code_;  ///< the same pattern; the second calls back at each of its items
  std::unique_ptr<pcre2_real_match_context_8, FreeContext> few_steps_;
  std::size_t longest_repetition_;  ///< n of `{n}`: how much an item may look at before it calls back
  std::string shown_as_;            ///< the pattern in the file, for messages
};

}  // namespace kvcache
