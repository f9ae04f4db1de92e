/// @file
/// The fields of a request in JSON. An error names the field that is wrong. A field that is null counts as
/// absent.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache {

/// A request that is wrong.
class RequestError : public std::runtime_error {
 public:
  /// @param status  of the answer: 400 for what is wrong in itself, 422 for what is too large for this server
  RequestError(unsigned status, std::string field, const std::string& message)
      : std::runtime_error(message), status(status), field(std::move(field)) {}

  unsigned status;    ///< of the answer
  std::string field;  ///< that is wrong; empty: no single field
};

/// One JSON object. Every function returns no value for an absent field.
/// @throws RequestError with status 400, from every function, for a value of another type or range.
class RequestFields {
 public:
  /// @param body  of the HTTP request
  explicit RequestFields(std::string_view body);

  /// The value of a field, of any type; nullptr if the field is absent.
  const nlohmann::json* find(const std::string& name) const;

  /// A whole number from `least` to `most`.
  std::optional<std::int64_t> whole_number(const std::string& name, std::int64_t least,
                                           std::int64_t most) const;
  /// A number from `least` to `most`.
  std::optional<double> number(const std::string& name, double least, double most) const;
  /// true or false.
  std::optional<bool> flag(const std::string& name) const;
  /// A string.
  std::optional<std::string> text(const std::string& name) const;
  /// The salt, of the field cache_salt or salt: both names mean the same.
  std::optional<std::string> salt() const;
  /// Stop strings: one or a list.
  std::optional<std::vector<std::string>> stop_strings(const std::string& name) const;
  /// A whole number from 0 to 2^64 - 1; a negative number n down to -2^63 stands for 2^64 + n.
  std::optional<std::uint64_t> seed(const std::string& name) const;

  /// Refuses every field that is not in `known`.
  void refuse_others(std::initializer_list<std::string_view> known) const;

 private:
  nlohmann::json object_;
};

/// The token ids of a JSON list.
/// @throws RequestError with status 400 if `list` is no list of ids from 0 to `vocab_size` - 1.
std::vector<std::int32_t> token_ids_of(const nlohmann::json& list, const std::string& name,
                                       std::int64_t vocab_size);

/// The error for a `value` that does not meet `expectation` in the field `name`.
RequestError wrong_value(const std::string& name, const std::string& expectation,
                         const nlohmann::json& value);

}  // namespace kvcache
