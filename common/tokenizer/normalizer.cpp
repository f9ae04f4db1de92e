#include "common/tokenizer/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/error.h"
#include "common/tokenizer/utf8.h"

namespace kvcache {
namespace {

int combining_class(utf8proc_int32_t character) {
  return utf8proc_get_property(character)->combining_class;
}

/// Appends what one character consists of. `options` are utf8proc's.
void append_decomposed(utf8proc_int32_t character, utf8proc_option_t options,
                       std::vector<utf8proc_int32_t>& characters) {
  std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition in Unicode has 18
  int last_boundclass = 0;
  const auto count =
      utf8proc_decompose_char(character, parts.data(), parts.size(), options, &last_boundclass);
  if (count < 0 || static_cast<std::size_t>(count) > parts.size()) {
    throw RunError(fmt::format("U+{:04X} cannot be decomposed", character));
  }
  characters.insert(characters.end(), parts.begin(), parts.begin() + count);
}

/// Puts each run of combining marks into the order of their classes. utf8proc could do so, in a time that
/// grows with the square of a run's length.
void sort_marks(std::vector<utf8proc_int32_t>& characters) {
  auto run = characters.begin();
  while (run != characters.end()) {
    const auto is_starter = [](utf8proc_int32_t character) { return combining_class(character) == 0; };
    run = std::find_if_not(run, characters.end(), is_starter);
    const auto run_end = std::find_if(run, characters.end(), is_starter);
    std::stable_sort(run, run_end, [](utf8proc_int32_t left, utf8proc_int32_t right) {
      return combining_class(left) < combining_class(right);
    });
    run = run_end;
  }
}

/// The length of the first character; 0 for an empty text.
std::size_t front_length(std::string_view text) {
  return text.empty() ? 0 : utf8_front(text).length;
}

/// The length of as many characters of `text` as there are in `other`.
std::size_t length_of_as_many(std::string_view text, std::string_view other) {
  std::size_t length = 0;
  for (; !other.empty(); other.remove_prefix(front_length(other)))
    length += front_length(text.substr(length));
  return length;
}

}  // namespace

TracedText TracedText::part(std::size_t begin, std::size_t length) const {
  return {text.substr(begin, length), from_first > begin ? std::min(from_first - begin, length) : 0};
}

/// e and an accent become é, which comes from the e. So the form of the beginning alone has as many
/// characters as come from the beginning.
TracedText Normalizer::UnicodeForm::operator()(const TracedText& from, TextBudget& budget) const {
  std::string whole = form(from.text, budget);
  const std::string beginning = form(std::string_view(from.text).substr(0, from.from_first), budget);
  const std::size_t from_first = length_of_as_many(whole, beginning);
  return {std::move(whole), from_first};
}

std::string Normalizer::UnicodeForm::form(std::string_view text, TextBudget& budget) const {
  int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  if (compatibility) options |= UTF8PROC_COMPAT;

  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (std::size_t offset = 0; offset < text.size();) {
    utf8proc_int32_t character = 0;
    const auto length =
        utf8proc_iterate(bytes + offset, static_cast<utf8proc_ssize_t>(text.size() - offset), &character);
    if (length <= 0) throw RunError("a text to normalize is not valid UTF-8");
    append_decomposed(character, static_cast<utf8proc_option_t>(options), characters);
    offset += static_cast<std::size_t>(length);
  }
  if (!budget.spend(characters.size())) budget.refuse("the Unicode form");
  sort_marks(characters);
  const auto count =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
                               static_cast<utf8proc_option_t>(options));
  if (count < 0) throw RunError(utf8proc_errmsg(count));

  std::string normalized;
  for (std::size_t index = 0; index < static_cast<std::size_t>(count); ++index) {
    std::array<char, 4> encoded;
    const auto length =
        utf8proc_encode_char(characters[index], reinterpret_cast<utf8proc_uint8_t*>(encoded.data()));
    normalized.append(encoded.data(), static_cast<std::size_t>(length));
  }
  return normalized;
}

/// A composed character stands for at most four characters, the longest canonical decomposition. Each of the
/// four comes from one character of the text, which has at most four bytes.
std::optional<std::int64_t> Normalizer::UnicodeForm::most_shrinking() const {
  return 4 * 4;
}

TracedText Normalizer::Prepend::operator()(const TracedText& from, TextBudget&) const {
  if (from.text.empty()) return from;
  // In Hugging Face's library the character behind an empty prefix comes from the first one, whatever it is.
  if (prefix.empty()) return {from.text, std::max(from.from_first, front_length(from.text))};
  return {prefix + from.text, from.from_first == 0 ? 0 : prefix.size() + from.from_first};
}

TracedText Normalizer::Replace::operator()(const TracedText& from, TextBudget& budget) const {
  const std::vector<Regex::Match> matches = pattern.find_all(from.text, budget);
  std::size_t from_first = from.from_first;
  for (const Regex::Match& match : matches) {
    if (match.end <= from.from_first) {
      from_first = from_first - (match.end - match.begin) + content.size();
    } else if (match.begin < from.from_first) {
      from_first -= from.from_first - match.begin;
    }
  }
  return {Regex::replace(from.text, matches, content, budget), from_first};
}

std::optional<std::int64_t> Normalizer::Replace::most_shrinking() const {
  if (!match || content.empty()) return std::nullopt;
  // At least 1, for what does not match and for an empty match.
  return static_cast<std::int64_t>(std::max<std::size_t>(1, (*match + content.size() - 1) / content.size()));
}

Normalizer::Step Normalizer::make_step(const JsonNode& node) {
  const std::string type = node.type();
  if (type == "NFC") return UnicodeForm{.compose = true, .compatibility = false};
  if (type == "NFD") return UnicodeForm{.compose = false, .compatibility = false};
  if (type == "NFKC") return UnicodeForm{.compose = true, .compatibility = true};
  if (type == "NFKD") return UnicodeForm{.compose = false, .compatibility = true};
  if (type == "Prepend") return Prepend{node.string_at("prepend")};
  if (type == "Replace") {
    Replace replace{.pattern = read_pattern(node), .match = {}, .content = node.string_at("content")};
    if (const auto literal = node.at("pattern").find("String")) replace.match = literal->string().size();
    return replace;
  }
  node.refuse(fmt::format("normalizer {} is not supported", in_quotes(type)));
}

Normalizer::Normalizer(const std::optional<JsonNode>& node) {
  if (!node) return;
  for (const JsonNode& component : components(*node, "normalizers")) steps_.push_back(make_step(component));
}

TracedText Normalizer::normalize(std::string_view text, TextBudget& budget) const {
  TracedText normalized{std::string(text), front_length(text)};
  for (const Step& step : steps_) {
    normalized = std::visit([&](const auto& one) { return one(normalized, budget); }, step);
    budget.allow_size(normalized.text.size());
  }
  return normalized;
}

std::optional<std::int64_t> Normalizer::most_shrinking() const {
  std::int64_t most = 1;
  for (const Step& step : steps_) {
    const auto shrinking = std::visit([](const auto& one) { return one.most_shrinking(); }, step);
    if (!shrinking) return std::nullopt;
    most *= *shrinking;
  }
  return most;
}

Regex read_pattern(const JsonNode& component) {
  const JsonNode pattern = component.at("pattern");
  const auto literal = pattern.find("String"), regex = pattern.find("Regex");
  if (!literal && !regex) pattern.refuse("must have a \"String\" or a \"Regex\"");
  const std::string text = literal ? literal->string() : regex->string();
  try {
    return literal ? Regex::from_literal(text) : Regex::from_pattern(text);
  } catch (const InputError& error) {  // which names no place
    pattern.refuse(error.what());
  }
}

}  // namespace kvcache
