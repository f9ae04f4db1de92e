#include "common/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <new>
#include <system_error>

#include "common/base/error.h"
#include "common/tokenizer/tokenizer_json.h"
#include "common/tokenizer/utf8.h"

namespace kvcache {
namespace {

/// What \w matches within a class.
constexpr std::string_view word_in_class = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
/// What \w matches outside of a class: Oniguruma adds the superscripts and fractions of Latin-1 there.
constexpr std::string_view word_alone = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xB2\xB3\xB9\xBC-\xBE])";

bool is_hex_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Rewrites a pattern in Ruby's syntax as the PCRE2 pattern that matches the same.
class RubyToPcre2 {
 public:
  explicit RubyToPcre2(std::string_view pattern) : rest_(pattern) {}

  std::string translate() {
    while (!rest_.empty()) {
      if (rest_.front() == '\\') {
        escape();
      } else if (rest_.front() == '[') {
        character_class();
      } else if (rest_.starts_with("(?")) {
        group();
      } else if (rest_.starts_with("(*")) {
        refuse("(*");  // PCRE2's verbs
      } else if (rest_.front() == '(') {
        if (open_in_caseless_ > 0) ++open_in_caseless_;
        copy(1);
      } else if (rest_.front() == ')') {
        if (open_in_caseless_ > 0 && --open_in_caseless_ == 0) last_ = 0;
        copy(1);
      } else if (rest_.front() == '{') {
        repetition();
      } else {
        character();
      }
    }
    return out_;
  }
  /// The largest number in `{n}`, `{n,}` and `{n,m}`.
  std::size_t longest_repetition() const { return longest_repetition_; }

 private:
  void copy(std::size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }
  void replace(std::size_t count, std::string_view by) {
    out_ += by;
    rest_.remove_prefix(count);
  }
  [[noreturn]] static void refuse(std::string_view what) {
    throw InputError(fmt::format("{} in a regular expression is not supported", what));
  }

  /// Copies a character that stands for itself or is an operator.
  void character() {
    utf8proc_int32_t code = 0;
    const utf8proc_ssize_t bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(rest_.data()),
                                                    static_cast<utf8proc_ssize_t>(rest_.size()), &code);
    check_case(code);
    copy(bytes > 0 ? static_cast<std::size_t>(bytes) : 1);
  }

  /// Within `(?i:...)` Oniguruma takes some characters for two or three others, ß for "ss", and PCRE2 does
  /// not. All of them are letters, or letters with marks.
  void check_case(utf8proc_int32_t code) {
    if (open_in_caseless_ == 0) return;
    if (code >= 0x80) {
      const utf8proc_category_t category = utf8proc_category(code);
      if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ME)
        refuse("a letter or mark beyond ASCII within (?i:...)");
      if (in_class_ && out_.ends_with('-')) refuse("a range beyond ASCII within (?i:...)");
    }
    if (in_class_) return;
    const std::array<char, 2> pair{last_, static_cast<char>(code < 0x80 ? code | 0x20 : 0)};  // in lower case
    const std::string_view letters(pair.data(), pair.size());
    for (const std::string_view several : {"ff", "fi", "fl", "ss", "st"}) {
      if (letters == several) refuse(fmt::format("{} within (?i:...)", several));
    }
    last_ = pair[1];
  }

  /// Handles an escape inside or outside of a class.
  void escape() {
    if (rest_.size() < 2) refuse("a backslash at the end");
    const char letter = rest_[1];
    if (letter != 'x' && letter != 'u') last_ = 0;
    switch (letter) {
      case 's':  // PCRE2's own \s adds U+180E
        return replace(2, R"(\p{White_Space})");
      case 'S':
        return replace(2, R"(\P{White_Space})");
      case 'w':  // PCRE2's own \w leaves marks out
        return replace(2, in_class_ ? word_in_class : word_alone);
      case 'v':  // a vertical tab in Ruby, any line break in PCRE2
        return replace(2, R"(\x0B)");
      case 'p':
      case 'P':
        return property();
      case 'u':
      case 'x':
        return code_point();
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'd':
      case 'D':
        return copy(2);
      case 'A':
      case 'z':
        if (!in_class_) return copy(2);
        [[fallthrough]];
      default:
        if (is_letter_or_digit(letter)) refuse(rest_.substr(0, 2));
        copy(2);
    }
  }

  /// `\p{L}` is a general category in both. `\p{Han}` is a script; PCRE2 would add the characters that Han
  /// shares with other scripts.
  void property() {
    const std::size_t close = rest_.find('}');
    if (rest_.size() < 4 || rest_[2] != '{' || close == std::string_view::npos) refuse("\\p without {...}");
    if (in_class_ && open_in_caseless_ > 0) refuse("\\p in a class within (?i:...)");
    const std::string_view name = rest_.substr(3, close - 3);
    const bool is_category = name.size() <= 2 || (name.size() == 3 && name.front() == '^');
    replace(close + 1,
            is_category ? rest_.substr(0, close + 1) : fmt::format("\\{}{{sc:{}}}", rest_[1], name));
  }

  /// `\x41`, `\x{1F600}`, `é`. In Oniguruma two digits from 80 on are a byte, not a character.
  void code_point() {
    const bool braces = rest_[1] == 'x' && rest_.size() > 2 && rest_[2] == '{';
    std::size_t end = braces ? 3 : 2;
    const std::size_t digits_begin = end;
    const std::size_t most = braces ? 8 : rest_[1] == 'x' ? 2 : 4;
    while (end < rest_.size() && end - digits_begin < most && is_hex_digit(rest_[end])) ++end;
    const std::string_view digits = rest_.substr(digits_begin, end - digits_begin);
    const bool whole = braces ? !digits.empty() && end < rest_.size() && rest_[end] == '}'
                              : digits.size() == most && (rest_[1] == 'u' || digits.front() < '8');
    if (!whole) refuse(rest_.substr(0, 2));
    utf8proc_int32_t code = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), code, 16).ec != std::errc())
      refuse(rest_.substr(0, 2));
    check_case(code);
    replace(braces ? end + 1 : end, fmt::format("\\x{{{}}}", digits));
  }

  /// Ruby nests classes and intersects them with `&&`; PCRE2 takes both for plain characters.
  void character_class() {
    in_class_ = true;
    last_ = 0;
    copy(rest_.starts_with("[^") ? 2 : 1);
    if (rest_.starts_with(']')) refuse("] as the first character of a class");
    while (!rest_.starts_with(']')) {
      if (rest_.empty()) refuse("[ without ]");
      if (rest_.front() == '[') refuse("[ inside of a class");
      if (rest_.starts_with("&&")) refuse("&&");
      if (rest_.front() == '\\') {
        escape();
      } else {
        character();
      }
    }
    copy(1);
    in_class_ = false;
  }

  void group() {
    for (const std::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (!rest_.starts_with(opening)) continue;
      if (open_in_caseless_ > 0 || opening == "(?i:") ++open_in_caseless_;
      return copy(opening.size());
    }
    refuse(rest_.substr(0, 3));
  }

  /// After `{n,m}`, Ruby's + repeats it and PCRE2's + makes it possessive; after `{n}`, Ruby's ? makes it
  /// optional and PCRE2's ? does nothing.
  void repetition() {
    const std::size_t close = rest_.find_first_not_of("0123456789,", 1);
    if (close == std::string_view::npos || rest_[close] != '}' || close == 1 || rest_[1] == ',') {
      refuse("{ that is not {n}, {n,} or {n,m}");
    }
    std::size_t number = 0;
    for (const char digit : rest_.substr(1, close - 1)) {
      number = digit == ','
                   ? 0
                   : std::min<std::size_t>(10 * number + static_cast<std::size_t>(digit - '0'), 1 << 20);
      longest_repetition_ = std::max(longest_repetition_, number);
    }
    copy(close + 1);
    if (rest_.starts_with('+') || rest_.starts_with('?')) refuse(fmt::format("}}{}", rest_.front()));
  }

  std::string_view rest_;
  std::string out_;
  bool in_class_ = false;
  std::size_t open_in_caseless_ = 0;  ///< groups that are open: the outermost (?i:...) and those within it
  char last_ = 0;                     ///< the literal character before `rest_`, for `check_case`
  std::size_t longest_repetition_ = 0;
};

std::string error_text(int error) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

// A search without counted steps takes at most the product of these two in steps: microseconds.
constexpr std::size_t stretch_bytes = 128;
constexpr std::uint32_t steps_in_a_stretch = 128;

/// The memory that PCRE2's interpreter may need for the places to which it can go back.
std::uint32_t heap_kibibytes(std::size_t text_bytes) {
  return static_cast<std::uint32_t>(std::min<std::size_t>(1024 + text_bytes / 2, 1 << 20));
}

/// The end of the stretch that begins at `offset`, between two characters.
std::size_t end_of_stretch(std::string_view text, std::size_t offset) {
  if (text.size() - offset <= stretch_bytes) return text.size();
  std::size_t end = offset + stretch_bytes;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  return end;
}

// The text is checked already. A check from its start for each match would take quadratic time.
constexpr std::uint32_t match_options = PCRE2_NO_UTF_CHECK;

int match(const pcre2_code* code, std::string_view text, std::size_t offset, std::uint32_t options,
          pcre2_match_data* data, pcre2_match_context* context) {
  return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), offset,
                     match_options | options, data, context);
}

/// The state of a search with counted steps; PCRE2 calls back at each item of the pattern.
struct Counter {
  TextBudget& budget;
  std::size_t steps_of_an_item;
  std::size_t position;  ///< in the text, at the last item
};

int count_steps(pcre2_callout_block* item, void* data) {
  Counter& counter = *static_cast<Counter*>(data);
  const std::size_t position = item->current_position;
  const std::size_t distance =
      position > counter.position ? position - counter.position : counter.position - position;
  counter.position = position;
  return counter.budget.spend(counter.steps_of_an_item + distance) ? 0 : PCRE2_ERROR_CALLOUT;
}

}  // namespace

void Regex::FreeCode::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

void Regex::FreeContext::operator()(pcre2_real_match_context_8* context) const {
  pcre2_match_context_free(context);
}

Regex::Regex(std::string_view pcre2_pattern, std::uint32_t options, std::size_t longest_repetition,
             std::string_view shown_as)
    : few_steps_(pcre2_match_context_create(nullptr)),
      longest_repetition_(longest_repetition),
      shown_as_(shown_as) {
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      pcre2_compile_context_create(nullptr));
  if (context == nullptr || few_steps_ == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(few_steps_.get(), steps_in_a_stretch);
  // In Ruby only \n ends a line.
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  const auto compile = [&](std::uint32_t more_options, std::uint32_t jit_options) {
    int error = 0;
    std::size_t offset = 0;
    Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre2_pattern.data()), pcre2_pattern.size(),
                            options | more_options | PCRE2_UTF, &error, &offset, context.get()));
    if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
    if (code == nullptr) throw InputError(fmt::format("not a regular expression: {}", error_text(error)));
    // Without a just-in-time compiler the interpreter does the same, more slowly.
    pcre2_jit_compile(code.get(), jit_options);
    return code;
  };
  code_ = compile(0, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  counted_code_ = compile(PCRE2_AUTO_CALLOUT, PCRE2_JIT_COMPLETE);
}

Regex Regex::from_pattern(std::string_view pattern) {
  RubyToPcre2 ruby(pattern);
  const std::string translated = ruby.translate();
  // In Ruby ^ and $ always mean the begin and end of a line.
  return Regex(translated, PCRE2_UCP | PCRE2_MULTILINE, ruby.longest_repetition(), pattern);
}

Regex Regex::from_literal(std::string_view text) {
  return Regex(text, PCRE2_LITERAL, 0, text);
}

/// Searches at and after `offset`. False if there is no match.
bool Regex::find(std::string_view text, std::size_t offset, pcre2_match_data* data,
                 TextBudget& budget) const {
  if (!budget.spend(1)) budget.refuse(spender());
  const std::size_t end = end_of_stretch(text, offset);
  const bool is_whole = end == text.size();
  // With this option PCRE2 reports a partial match if the text after the stretch might matter.
  const int result = match(code_.get(), text.substr(0, end), offset, is_whole ? 0 : PCRE2_PARTIAL_HARD, data,
                           few_steps_.get());
  if (is_whole && result == PCRE2_ERROR_NOMATCH) return false;
  if (result > 0) return true;
  return find_counted(text, offset, data, budget);
}

bool Regex::find_counted(std::string_view text, std::size_t offset, pcre2_match_data* data,
                         TextBudget& budget) const {
  const std::unique_ptr<pcre2_match_context, FreeContext> context(pcre2_match_context_create(nullptr));
  if (context == nullptr) throw std::bad_alloc();
  Counter counter{budget, 1 + longest_repetition_ / 8, offset};
  pcre2_set_callout(context.get(), count_steps, &counter);
  pcre2_set_match_limit(context.get(), std::numeric_limits<std::uint32_t>::max());
  pcre2_set_heap_limit(context.get(), heap_kibibytes(text.size()));
  int result = match(counted_code_.get(), text, offset, 0, data, context.get());
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    // The interpreter keeps its state on the heap and reaches further.
    result = match(counted_code_.get(), text, offset, PCRE2_NO_JIT, data, context.get());
  }
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
  if (result == PCRE2_ERROR_CALLOUT) budget.refuse(spender());
  if (result < 0)
    throw InputError(
        fmt::format("{} fails on the text at byte {}: {}", spender(), offset, error_text(result)));
  return true;
}

std::string Regex::spender() const {
  return fmt::format("the tokenizer's regular expression {}", in_quotes(shown_as_));
}

std::vector<Regex::Match> Regex::find_all(std::string_view text, TextBudget& budget) const {
  if (text.empty()) return {};
  const std::unique_ptr<pcre2_match_data, FreeMatch> data(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  if (data == nullptr) throw std::bad_alloc();
  const std::size_t* bounds = pcre2_get_ovector_pointer(data.get());

  std::vector<Match> matches;
  std::size_t offset = 0;
  while (offset <= text.size() && find(text, offset, data.get(), budget)) {
    const Match match{bounds[0], bounds[1]};
    const bool empty = match.begin >= match.end;
    if (empty && !matches.empty() && matches.back().end == match.end) {
      if (offset == text.size()) break;
      offset += utf8_front(text.substr(offset)).length;
      continue;
    }
    matches.push_back(match);
    offset = match.end;
  }
  return matches;
}

std::string Regex::replace_all(std::string_view text, std::string_view content, TextBudget& budget) const {
  return replace(text, find_all(text, budget), content, budget);
}

std::string Regex::replace(std::string_view text, const std::vector<Match>& matches, std::string_view content,
                           TextBudget& budget) {
  std::string replaced;
  std::size_t copied = 0;
  for (const Match& match : matches) {
    budget.allow_size(replaced.size() + (match.begin - copied) + content.size());
    replaced += text.substr(copied, match.begin - copied);
    replaced += content;
    copied = match.end;
  }
  replaced += text.substr(copied);
  return replaced;
}

}  // namespace kvcache
