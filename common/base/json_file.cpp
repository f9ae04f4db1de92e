/// @file
/// Reads JSON twice. The first pass builds nothing and refuses what the library would accept: duplicate
/// fields, endless nesting, more values than memory should hold. The second pass builds the value.
#include "common/base/json_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <system_error>
#include <unordered_set>
#include <vector>

#include "common/base/error.h"
#include "common/base/input_file.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr std::size_t max_depth = 64;
constexpr std::size_t max_values = 4'000'000;

/// The first bytes of JSON in ASCII, at most `most` of them, with no escape cut in half.
std::string_view first_characters(std::string_view json_text, std::size_t most) {
  std::size_t end = 0;
  while (end < json_text.size()) {
    std::size_t length = 1;
    if (json_text[end] == '\\') length = json_text.substr(end + 1, 1) == "u" ? 6 : 2;
    // A pair of escapes that stands for one character.
    const std::string_view high = json_text.substr(end, 4);
    if (high == "\\ud8" || high == "\\ud9" || high == "\\uda" || high == "\\udb") length = 12;
    if (end + length > most) break;
    end += length;
  }
  return json_text.substr(0, end);
}

/// "line 3, column 5" of a byte of `text`, both counted from 1.
std::string place_of(std::size_t byte, std::string_view text) {
  const std::string_view before = text.substr(0, byte);
  const std::size_t line_begin = before.rfind('\n') + 1;  // 0 where there is none
  return fmt::format("line {}, column {}", std::count(before.begin(), before.end(), '\n') + 1,
                     before.size() - line_begin + 1);
}

/// Shortens the library's quotation to its end, where the fault is. The library quotes everything it has read
/// since the last token, with eight bytes for each control character.
void shorten_quotation(std::string& message, std::string_view beginning) {
  constexpr std::size_t most = 60;
  const std::size_t found = message.find(beginning);
  if (found == std::string::npos) return;
  const std::size_t begin = found + beginning.size(), end = message.rfind('\'');
  if (end == std::string::npos || end < begin + most) return;
  std::size_t kept = end - most;
  // "<U+0009>" stands for a tab.
  if (const std::size_t close = message.find('>', kept); close < kept + 8 && close < end) kept = close + 1;
  message.replace(begin, kept - begin, "...");
}

/// The library's words without its error code, on one short line of printable ASCII.
std::string plain(std::string message) {
  if (const std::size_t code_end = message.find("] "); message.starts_with("[json.exception"))
    message.erase(0, code_end + 2);
  shorten_quotation(message, "last read: '");
  shorten_quotation(message, "number overflow parsing '");
  std::replace_if(
      message.begin(), message.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return message;
}

/// Where `text` opens a list or an object inside `depth` others; the end of `text` if it never does.
std::size_t first_deeper_than(std::size_t depth, std::string_view text) {
  std::size_t open = 0;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') in_string = !in_string;
    if (in_string) {
      at += text[at] == '\\' ? 1 : 0;  // an escaped quote does not end the string
    } else if (text[at] == '[' || text[at] == '{') {
      if (open++ == depth) return at;
    } else if (text[at] == ']' || text[at] == '}') {
      --open;
    }
  }
  return text.size();
}

/// Walks through JSON text without building it and throws at the first thing that `parse_json` refuses.
class StrictReader : public json::json_sax_t {
 public:
  StrictReader(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(std::int64_t) override { return count(); }
  bool number_unsigned(std::uint64_t) override { return count(); }
  bool number_float(double, const std::string&) override { return count(); }
  bool string(std::string&) override { return count(); }
  bool binary(json::binary_t&) override { return count(); }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(std::string& name) override {
    if (!fields_.back().insert(name).second)
      throw InputError(fmt::format("{}: {} is given twice", source_, shown(name)));
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string message = plain(error.what());
    const bool has_place = message.find(" at line ") != std::string::npos;
    throw InputError(has_place ? fmt::format("{}: {}", source_, message)
                               : fmt::format("{}: {}, at {}", source_, message, place_of(byte, text_)));
  }

 private:
  bool count() {
    if (++values_ > max_values) throw InputError(fmt::format("{}: more than {} values", source_, max_values));
    return true;
  }
  bool enter() {
    if (fields_.size() == max_depth) refuse_deep_nesting(text_, source_);
    fields_.emplace_back();
    return count();
  }
  bool leave() {
    fields_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::string& source_;
  std::size_t values_ = 0;                               ///< seen so far
  std::vector<std::unordered_set<std::string>> fields_;  ///< names seen in each open object; lists have none
};

}  // namespace

json parse_json(std::string_view text, const std::string& source) {
  // The library takes a NUL for the end of the text and would ignore what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw InputError(fmt::format("{}: not JSON, it holds a NUL byte at {}", source, place_of(nul, text)));
  StrictReader reader(text, source);
  json::sax_parse(text, &reader);
  return json::parse(text);
}

void refuse_deep_nesting(std::string_view text, const std::string& source) {
  const std::size_t place = first_deeper_than(max_depth, text);
  if (place == text.size()) return;
  throw InputError(
      fmt::format("{}: nested more than {} levels deep at {}", source, max_depth, place_of(place, text)));
}

json read_json_file(const std::filesystem::path& path, std::uintmax_t max_bytes) {
  require_regular_file(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) throw InputError(fmt::format("{}: {}", path.string(), error.message()));
  if (bytes > max_bytes)
    throw InputError(
        fmt::format("{}: {} bytes are more than the {} that are read", path.string(), bytes, max_bytes));
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (static_cast<std::uintmax_t>(file.gcount()) != bytes)
    throw InputError(fmt::format("{}: cannot be read to its end", path.string()));
  refuse_lfs_pointer(path, text);
  return parse_json(text, path.string());
}

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t longest = 100;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() <= longest) return text;
  return std::string(first_characters(text, longest)) + "...";
}

}  // namespace kvcache
