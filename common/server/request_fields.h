/// @file
/// The fields of a request in JSON, read so that whatever is wrong names its field. A field that is null
/// counts as one that is not there.
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

/// A request that is not right.
class RequestError : public std::runtime_error {
 public:
  /// @param status  of the answer: 400 for what is wrong in itself, 422 for what is too large for this server
  RequestError(unsigned status, std::string field, const std::string& message)
      : std::runtime_error(message), status(status), field(std::move(field)) {}

  unsigned status;    ///< of the answer
  std::string field;  ///< that is wrong; empty: none alone
};

/// One JSON object. Every function returns nothing for a field that is not there.
/// @throws RequestError with status 400, from all of them, for a value that is not as asked for.
class RequestFields {
 public:
  /// @param body  as it came
  explicit RequestFields(std::string_view body);

  /// The value of a field, of any type; nullptr if it is not there.
  const nlohmann::json* find(const std::string& name) const;

  /// Without a fraction, from `least` to `most`.
  std::optional<std::int64_t> whole_number(const std::string& name, std::int64_t least,
                                           std::int64_t most) const;
  /// From `least` to `most`.
  std::optional<double> number(const std::string& name, double least, double most) const;
  /// true or false.
  std::optional<bool> flag(const std::string& name) const;
  /// A string.
  std::optional<std::string> text(const std::string& name) const;
  /// A salt that keeps blocks apart, cache_salt or salt: both names mean the same.
  std::optional<std::string> salt() const;
  /// Strings that end a text: one or a list of them.
  std::optional<std::vector<std::string>> stop_strings(const std::string& name) const;
  /// From 0 to 2^64 - 1; negative ones to -2^63 are those above them.
  std::optional<std::uint64_t> seed(const std::string& name) const;

  /// Every field must be one of these.
  void refuse_others(std::initializer_list<std::string_view> known) const;

 private:
  nlohmann::json object_;
};

/// Token ids, as a JSON list has them.
/// @throws RequestError as above, for what is no list of ids from 0 to `vocab_size` - 1.
std::vector<std::int32_t> token_ids_of(const nlohmann::json& list, const std::string& name,
                                       std::int64_t vocab_size);

/// `value` is not what field `name` must be.
RequestError wrong_value(const std::string& name, const std::string& expectation,
                         const nlohmann::json& value);

}  // namespace kvcache
