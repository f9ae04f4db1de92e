/// @file
/// The values of options, for every program that has options: what a number, a size or a name may look like,
/// and the one-line message for each that is none.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/error.h"

namespace kvcache {

/// The largest value of an option that counts something: ids and counts fit 32 bits.
inline constexpr std::int64_t largest_count = std::numeric_limits<std::int32_t>::max();

/// `text` for a one-line message: in quotes, with control characters spelled out, cut after 60 bytes.
std::string word_in_quotes(std::string_view text);

/// One option of the line, with its value.
struct Given {
  std::string option;  ///< its name, as `--tokens`
  std::string value;   ///< as written

  /// The message about a wrong value, alike for all options.
  InputError must_be(const std::string& expectation) const {
    return InputError(fmt::format("{} must be {}, not {}", option, expectation, word_in_quotes(value)));
  }
};

/// The number that `text` spells in digits alone: no sign, space, leading zero or exponent.
template <typename Integer>
std::optional<Integer> digits(std::string_view text) {
  if (text.empty() || text[0] == '-' || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  Integer number;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The number from `least` to `most` that the whole value spells in digits alone.
/// @param remark  added to the message, as "; 0 is off"
/// @throws InputError for any other value.
std::int64_t whole_number(const Given& given, std::int64_t least, std::int64_t most,
                          std::string_view remark = "");

/// The number from 0 to `most` that the whole value spells. NaN and infinity are refused.
/// @throws InputError with `expectation`, for any other value.
double real_number(const Given& given, double most, const std::string& expectation);

/// The value, if it is not empty.
/// @throws InputError if it is.
std::string some_text(const Given& given);

/// Bytes, as in 512MiB.
/// @param or_else  another value that the option takes, for the message, as "auto or "
/// @throws InputError for a value that is none.
std::int64_t bytes(const Given& given, std::string_view or_else = "");

/// The value's place among `names`.
/// @throws InputError that lists the names, for another one.
template <typename Value>
Value one_of(const Given& given, const std::vector<std::pair<std::string_view, Value>>& names) {
  std::vector<std::string_view> known;
  for (const auto& [name, value] : names) {
    if (given.value == name) return value;
    known.push_back(name);
  }
  throw given.must_be(fmt::format("one of {}", fmt::join(known, ", ")));
}

/// A dash, then a letter or a second dash. Such a word is never the value of the option before it: a
/// forgotten value must not swallow the next option. `-1` and `- item` are values.
bool looks_like_an_option(std::string_view word);

/// The refusal of an option without a value to which one is written, as `--json=1`.
InputError takes_no_value(std::string_view word);

/// The refusal of an option that ends the line, or that another option follows, where its value should be.
/// @param value  the value's name in --help
/// @param next   the word in its place; nullptr: the line ends
InputError needs_a_value(std::string_view name, std::string_view value, const char* next);

}  // namespace kvcache
