/// @file
/// See option_values.h.
#include "common/cli/option_values.h"

#include <algorithm>
#include <cstdlib>

namespace kvcache {

std::string word_in_quotes(std::string_view text) {
  const auto continues_a_character = [](char byte) { return (byte & 0xC0) == 0x80; };  // UTF-8
  std::size_t length = std::min<std::size_t>(text.size(), 60);
  while (length > 0 && length < text.size() && continues_a_character(text[length])) --length;
  std::string result = "\"";
  for (const char byte : text.substr(0, length)) {
    const bool control = (byte >= 0 && byte < 0x20) || byte == 0x7F;
    result += control ? fmt::format("\\x{:02x}", byte) : std::string(1, byte);
  }
  return result + (length < text.size() ? "...\"" : "\"");
}

std::int64_t whole_number(const Given& given, std::int64_t least, std::int64_t most,
                          std::string_view remark) {
  const std::optional<std::int64_t> number = digits<std::int64_t>(given.value);
  if (number && *number >= least && *number <= most) return *number;
  throw given.must_be(fmt::format("a whole number from {} to {} in plain digits{}", least, most, remark));
}

double real_number(const Given& given, double most, const std::string& expectation) {
  double number;
  const char* const end = given.value.data() + given.value.size();
  auto [stop, error] = std::from_chars(given.value.data(), end, number);
  if (error == std::errc::result_out_of_range) {
    // A number too close to zero is rounded, as in a request's JSON; one too large becomes infinite.
    number = std::strtod(given.value.c_str(), nullptr);
    error = std::errc();
  }
  if (error == std::errc() && stop == end && number >= 0 && number <= most) return number;
  throw given.must_be(expectation);
}

std::string some_text(const Given& given) {
  if (given.value.empty()) throw given.must_be("a text that is not empty");
  return given.value;
}

std::int64_t bytes(const Given& given, std::string_view or_else) {
  static constexpr std::pair<std::string_view, std::int64_t> units[] = {
      {"KiB", 1LL << 10}, {"MiB", 1LL << 20},    {"GiB", 1LL << 30}, {"KB", 1'000},
      {"MB", 1'000'000},  {"GB", 1'000'000'000}, {"B", 1},           {"", 1}};  // longer units first
  for (const auto& [unit, size] : units) {
    if (!given.value.ends_with(unit)) continue;
    const std::optional<std::int64_t> number =
        digits<std::int64_t>(std::string_view(given.value).substr(0, given.value.size() - unit.size()));
    if (!number || *number == 0 || *number > std::numeric_limits<std::int64_t>::max() / size) break;
    return *number * size;
  }
  throw given.must_be(
      fmt::format("{}a whole number of bytes above 0 and below 2^63, such as 512MiB or 1000000 (units B, KB, "
                  "MB, GB, KiB, MiB, GiB)",
                  or_else));
}

bool looks_like_an_option(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return false;
  const char second = word[1];
  return second == '-' || (second >= 'a' && second <= 'z') || (second >= 'A' && second <= 'Z');
}

InputError takes_no_value(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  return InputError(fmt::format("{} takes no value, and {} is given; write {} alone", name,
                                word_in_quotes(word.substr(name.size() + 1)), name));
}

InputError needs_a_value(std::string_view name, std::string_view value, const char* next) {
  if (next == nullptr) return InputError(fmt::format("{} needs a value: {} {}", name, name, value));
  return InputError(
      fmt::format("{} needs a value before {}; a value that begins with a dash is written {}=-...", name,
                  word_in_quotes(next), name));
}

}  // namespace kvcache
