/// @file
/// The work that one text may cost. A tokenizer.json comes from outside: its patterns may backtrack for
/// hours, its replacements may double a text again and again. So each text has one budget, in proportion to
/// its length, and all parts of the tokenizer spend from it.
#pragma once

#include <cstddef>
#include <stop_token>
#include <string_view>

#include "common/base/error.h"

namespace kvcache {

/// The work on a text was given up, because no client waits for it any more.
class StoppedByRequest : public RunError {
 public:
  StoppedByRequest() : RunError("encoding was stopped") {}
};

/// The budget of one text. Real tokenizers spend a few steps for each byte.
class TextBudget {
 public:
  /// @param text_bytes  length of the text
  /// @param stop        ends the work, from any thread
  /// @param remedy      what to do if the budget is spent, for messages; must outlive the budget
  explicit TextBudget(std::size_t text_bytes, std::stop_token stop = {},
                      std::string_view remedy = "give another text");

  /// Takes `steps` off the budget. A step is the work of looking at one byte.
  /// @return whether the work may go on; if not, `refuse` says why.
  bool spend(std::size_t steps) noexcept;
  /// Must be called if `spend` returns false.
  /// @param spender  the name of the part that spent the last step, for the message
  /// @throws StoppedByRequest if `stop` has ended the work, InputError if the budget is spent.
  [[noreturn]] void refuse(std::string_view spender) const;
  /// Allows the text, or its list of tokens, to become `size` long.
  /// @throws InputError if that is longer than any real tokenizer makes such a text.
  void allow_size(std::size_t size) const;

 private:
  std::size_t steps_left_, largest_size_;
  std::stop_token stop_;
  std::string_view remedy_;
};

}  // namespace kvcache
