/// @file
/// Reads JSON twice: a first pass that builds nothing looks for what the library would let through (duplicate
/// fields, endless nesting, more values than memory should hold), the second builds the value.
#include "common/model/json_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <unordered_set>
#include <vector>

#include "common/error.h"
#include "common/model/input_file.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr std::size_t max_depth = 64;
constexpr std::size_t max_values = 4'000'000;

/// The library's words without its error code, on one line of printable ASCII.
std::string plain(std::string message) {
  if (const std::size_t code_end = message.find("] "); message.starts_with("[json.exception"))
    message.erase(0, code_end + 2);
  std::replace_if(
      message.begin(), message.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return message;
}

/// Walks through JSON text without building it and throws at the first thing that `parse_json` refuses.
class StrictReader : public json::json_sax_t {
 public:
  explicit StrictReader(const std::string& source) : source_(source) {}

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
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw InputError(fmt::format("{}: {}", source_, plain(error.what())));
  }

 private:
  bool count() {
    if (++values_ > max_values) throw InputError(fmt::format("{}: more than {} values", source_, max_values));
    return true;
  }
  bool enter() {
    if (fields_.size() == max_depth)
      throw InputError(fmt::format("{}: nested more than {} levels deep", source_, max_depth));
    fields_.emplace_back();
    return count();
  }
  bool leave() {
    fields_.pop_back();
    return true;
  }

  const std::string& source_;
  std::size_t values_ = 0;                               ///< seen so far
  std::vector<std::unordered_set<std::string>> fields_;  ///< names seen in each open object; lists have none
};

}  // namespace

json parse_json(std::string_view text, const std::string& source) {
  // The library takes a NUL for the end of the text and would ignore what follows.
  if (text.find('\0') != std::string_view::npos)
    throw InputError(fmt::format("{}: not JSON, it holds a NUL byte", source));
  StrictReader reader(source);
  json::sax_parse(text, &reader);
  return json::parse(text);
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
  return parse_json(text, path.string());
}

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t longest = 100;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > longest) text = text.substr(0, longest) + "...";
  return text;
}

}  // namespace kvcache
