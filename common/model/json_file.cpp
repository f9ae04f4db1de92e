/// @file
/// Reads JSON twice: a first pass that builds nothing looks for what the library would let through (duplicate
/// fields, endless nesting), the second builds the value.
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

namespace kvcache {
namespace {

using nlohmann::json;

constexpr std::size_t max_depth = 64;
constexpr std::uintmax_t max_file_bytes = 100'000'000;

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

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
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
  bool enter() {
    if (fields_.size() == max_depth)
      throw InputError(fmt::format("{}: nested more than {} levels deep", source_, max_depth));
    fields_.emplace_back();
    return true;
  }
  bool leave() {
    fields_.pop_back();
    return true;
  }

  const std::string& source_;
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

json read_json_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    throw InputError(fmt::format(
        "{}: {}", path.string(),
        status.type() == std::filesystem::file_type::not_found ? "no such file" : error.message()));
  if (!std::filesystem::is_regular_file(status))
    throw InputError(fmt::format("{}: not a regular file", path.string()));

  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes > max_file_bytes)
    throw InputError(
        fmt::format("{}: {} bytes are more than the {} that are read", path.string(), bytes, max_file_bytes));
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
