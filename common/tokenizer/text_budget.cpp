#include "common/tokenizer/text_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvcache {
namespace {

// A pattern like Llama 3's takes fewer than 20 steps for each byte.
constexpr std::size_t steps_for_each_byte = 256, steps_for_any_text = 10'000'000;
// Unicode's compatibility forms make at most 11 bytes of one. Spelling bytes as characters doubles them.
constexpr std::size_t most_growth = 32, growth_of_any_text = 1 << 16;

}  // namespace

TextBudget::TextBudget(std::size_t text_bytes, std::stop_token stop, std::string_view remedy)
    : steps_left_(steps_for_any_text + steps_for_each_byte * text_bytes),
      largest_size_(growth_of_any_text + most_growth * text_bytes),
      stop_(std::move(stop)),
      remedy_(remedy) {}

bool TextBudget::spend(std::size_t steps) noexcept {
  steps_left_ -= std::min(steps, steps_left_);
  return steps_left_ > 0 && !stop_.stop_requested();
}

void TextBudget::refuse(std::string_view spender) const {
  if (stop_.stop_requested()) throw StoppedByRequest();
  throw InputError(fmt::format("{} takes more than {} steps for each byte of the text; {}", spender,
                               steps_for_each_byte, remedy_));
}

void TextBudget::allow_size(std::size_t size) const {
  if (size <= largest_size_) return;
  throw InputError(fmt::format("tokenizer.json makes the text longer than {} bytes, {} times what it was; {}",
                               largest_size_, most_growth, remedy_));
}

}  // namespace kvcache
