/// @file
/// Reads tokenizer.json with types. Every value knows its place in the file, so the one-line message about a
/// wrong value says where it stands.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache {

/// `text` for a one-line message: in double quotes, cut after 60 bytes, without control characters.
std::string in_quotes(std::string_view text);

/// A value of the file. Refers to the parsed document, which must outlive it.
class JsonNode {
 public:
  /// The value at `path` ("model.vocab", "" for the whole document) of `file`.
  JsonNode(const nlohmann::json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  /// @throws InputError "<place>: <message>".
  [[noreturn]] void refuse(std::string_view message) const;

  /// The JSON itself.
  const nlohmann::json& value() const { return *value_; }
  /// "tokenizer.json: model.vocab"
  std::string place() const;
  /// The element or member `value` of this value, shown as "[name]".
  JsonNode element(const nlohmann::json& value, std::string_view name) const;

  /// The member `key` of this object; nothing if it is missing or null.
  /// @throws InputError if this is no object.
  std::optional<JsonNode> find(std::string_view key) const;
  /// @throws InputError if the member is missing or null.
  JsonNode at(std::string_view key) const;

  /// The value as a string. @throws InputError, as all of these, for another type or range.
  std::string string() const;
  bool boolean() const;                 ///< true or false, no number
  std::int32_t token_id() const;        ///< 0 to 2^31 - 1
  std::int32_t count() const;           ///< 0 to 2^31 - 1
  std::vector<JsonNode> items() const;  ///< of an array

  /// The member `key`, a string that must be there.
  std::string string_at(std::string_view key) const { return at(key).string(); }
  /// The member `key`, or `otherwise` if it is missing or null.
  bool boolean_at(std::string_view key, bool otherwise) const;

  /// The "type" of a component.
  std::string type() const { return string_at("type"); }

 private:
  std::int32_t integer(std::string_view what) const;

  const nlohmann::json* value_;
  std::string file_, path_;
};

/// The components of `node`, in order: itself, or the members of a "Sequence" under `list_key`. Nested
/// sequences are flattened.
/// @throws InputError for sequences nested more than eight deep.
std::vector<JsonNode> components(const JsonNode& node, std::string_view list_key);

}  // namespace kvcache
