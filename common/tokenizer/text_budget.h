/// @file
/// What the work on one text may cost. A tokenizer.json comes from outside: its patterns may backtrack for
/// hours, its replacements may double a text again and again. All parts of the tokenizer spend from one
/// budget for each text, which is in proportion to its length.
#pragma once

#include <cstddef>
#include <stop_token>
#include <string_view>

#include "common/base/error.h"

namespace kvcache {

/// The work on a text was given up since nobody waits for it any more.
class StoppedByRequest : public RunError {
 public:
  StoppedByRequest() : RunError("encoding was stopped") {}
};

/// The budget of one text. Real tokenizers spend a few steps for each byte.
class TextBudget {
 public:
  /// @param text_bytes  what the text has
  /// @param stop        ends the work, from any thread
  /// @param remedy      what to do where the budget is spent, as messages say it; must outlive the budget
  explicit TextBudget(std::size_t text_bytes, std::stop_token stop = {},
                      std::string_view remedy = "give another text");

  /// Takes `steps` off the budget. A step is the work of looking at one byte.
  /// @return whether the work may go on; if not, `refuse` says why.
  bool spend(std::size_t steps) noexcept;
  /// To be called when `spend` returns false.
  /// @param spender  the part of the tokenizer that spent the last step, as the message names it
  /// @throws StoppedByRequest when the work is to stop, InputError when the budget is spent.
  [[noreturn]] void refuse(std::string_view spender) const;
  /// Allows that the text, or its list of tokens, becomes `size` long.
  /// @throws InputError beyond what any real tokenizer makes of a text.
  void allow_size(std::size_t size) const;

 private:
  std::size_t steps_left_, largest_size_;
  std::stop_token stop_;
  std::string_view remedy_;
};

}  // namespace kvcache
