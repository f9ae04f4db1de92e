/// @file
/// See request_fields.h.
#include "common/server/request_fields.h"

#include <algorithm>
#include <limits>

#include "common/base/error.h"
#include "common/base/json_file.h"
#include "common/tokenizer/utf8.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace kvcache {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostStops = 16, kLongestStop = 1024;  // strings; bytes
constexpr std::size_t kLongestSalt = 256;                    // bytes

/// A JSON number without a fraction that fits into 64 signed bits.
std::optional<std::int64_t> integer(const Json& value) {
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return std::nullopt;
  return value.is_number_integer() ? std::optional(value.get<std::int64_t>()) : std::nullopt;
}

std::string stop_string(const std::string& name, const Json& value) {
  if (value.is_string() && !value.get_ref<const std::string&>().empty() &&
      value.get_ref<const std::string&>().size() <= kLongestStop)
    return value.get<std::string>();
  throw wrong_value(name, fmt::format("a string of 1 to {} bytes, or a list of them", kLongestStop), value);
}

}  // namespace

RequestError wrong_value(const std::string& name, const std::string& expectation,
                         const nlohmann::json& value) {
  return RequestError(400, name, fmt::format("{} must be {}, not {}", name, expectation, shown(value)));
}

RequestFields::RequestFields(std::string_view body) {
  try {
    object_ = parse_json(body, "the body");
  } catch (const InputError& error) {
    throw RequestError(400, "", error.what());
  }
  if (!object_.is_object())
    throw RequestError(400, "", fmt::format("the body must be a JSON object, not {}", shown(object_)));
}

const Json* RequestFields::find(const std::string& name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int64_t> RequestFields::whole_number(const std::string& name, std::int64_t least,
                                                        std::int64_t most) const {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::int64_t> number = integer(*value);
  if (number && *number >= least && *number <= most) return number;
  throw wrong_value(name, fmt::format("a whole number from {} to {}", least, most), *value);
}

std::optional<double> RequestFields::number(const std::string& name, double least, double most) const {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number() && value->get<double>() >= least && value->get<double>() <= most)
    return value->get<double>();
  constexpr double any = std::numeric_limits<double>::max();
  throw wrong_value(name,
                    least == -any ? "a number"
                    : most == any ? fmt::format("a number >= {}", least)
                                  : fmt::format("a number from {} to {}", least, most),
                    *value);
}

std::optional<bool> RequestFields::flag(const std::string& name) const {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) throw wrong_value(name, "true or false", *value);
  return value->get<bool>();
}

std::optional<std::string> RequestFields::text(const std::string& name) const {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw wrong_value(name, "a string", *value);
  return value->get<std::string>();
}

/// Refuses an empty salt: its request would share blocks with all requests that give no salt.
std::optional<std::string> RequestFields::salt() const {
  std::optional<std::string> salt;
  for (const char* name : {"cache_salt", "salt"}) {
    const std::optional<std::string> given = text(name);
    if (!given) continue;
    if (given->empty() || given->size() > kLongestSalt)
      throw wrong_value(name, fmt::format("a string of 1 to {} bytes", kLongestSalt), *find(name));
    if (salt && *salt != *given)
      throw RequestError(400, name, "salt and cache_salt mean the same and differ; give one of them");
    salt = given;
  }
  return salt;
}

std::optional<std::vector<std::string>> RequestFields::stop_strings(const std::string& name) const {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> stops;
  if (!value->is_array()) {
    stops.push_back(stop_string(name, *value));
    return stops;
  }
  if (value->size() > kMostStops)
    throw RequestError(400, name,
                       fmt::format("{} has {} strings; at most {}", name, value->size(), kMostStops));
  for (const Json& stop : *value) stops.push_back(stop_string(name, stop));
  return stops;
}

std::optional<std::uint64_t> RequestFields::seed(const std::string& name) const {
  const Json* const value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<std::uint64_t>();
  if (value->is_number_integer()) return static_cast<std::uint64_t>(value->get<std::int64_t>());
  throw wrong_value(name, "a whole number of 64 bits", *value);
}

void RequestFields::refuse_others(std::initializer_list<std::string_view> known) const {
  for (const auto& [name, value] : object_.items()) {
    if (std::ranges::find(known, name) == known.end())
      throw RequestError(
          400, shortened(name),
          fmt::format("{} is no field of this request; it has {}", shown(name), fmt::join(known, ", ")));
  }
}

std::vector<std::int32_t> token_ids_of(const nlohmann::json& list, const std::string& name,
                                       std::int64_t vocab_size) {
  if (!list.is_array()) throw wrong_value(name, "a list of token ids", list);
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const std::optional<std::int64_t> id = integer(item);
    if (!id || *id < 0 || *id >= vocab_size)
      throw RequestError(400, name,
                         fmt::format("{} must be token ids, whole numbers from 0 to {}; number {} is {}",
                                     name, vocab_size - 1, ids.size() + 1, shown(item)));
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

}  // namespace kvcache
