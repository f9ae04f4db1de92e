/// @file
/// See traffic.h.
#include "common/replay/traffic.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/base/error.h"
#include "common/base/input_file.h"
#include "common/base/json_file.h"

namespace kvcache {
namespace {

constexpr std::int64_t most_of_a_length = std::numeric_limits<std::int32_t>::max();  // positions have 32 bits
constexpr std::int64_t most_of_a_time = std::int64_t{1} << 53;  // whole numbers that every JSON reader keeps

/// The value of one line. Faults in it have a column, and no line but that of the trace.
nlohmann::json parsed(std::string_view text, const std::string& place) {
  constexpr std::string_view kLine = "line 1, ";  // of the text
  try {
    return parse_json(text, place);
  } catch (const InputError& error) {
    std::string message = error.what();
    if (const std::size_t at = message.find(kLine, place.size()); at != std::string::npos)
      message.erase(at, kLine.size());
    throw InputError(message);
  }
}

/// The fields of one line.
class Line {
 public:
  Line(std::string_view text, std::string place) : place_(std::move(place)), fields_(parsed(text, place_)) {
    if (!fields_.is_object())
      throw InputError(fmt::format("{}: a request is a JSON object, and {} is none", place_, shown(fields_)));
  }

  /// The whole number in `field`.
  std::int64_t number(const char* field, std::int64_t least, std::int64_t most) const {
    const nlohmann::json& value = at(field);
    // A number of another kind, or of 2^63 and more, is beyond every limit.
    if (value.is_number_integer() && value <= most && value >= least) return value.get<std::int64_t>();
    // Milliseconds with a fraction, as some tools write them.
    const bool may_have_fraction = std::string_view(field) == "timestamp";
    if (may_have_fraction && value.is_number_float() && value >= static_cast<double>(least) &&
        value <= static_cast<double>(most))
      return static_cast<std::int64_t>(value.get<double>());
    throw InputError(fmt::format("{}: \"{}\" is {}; it must be a {} from {} to {}", place_, field,
                                 shown(value), may_have_fraction ? "number" : "whole number", least, most));
  }

  /// The hash ids, `count` of them.
  std::vector<std::uint64_t> hash_ids(std::int64_t count) const {
    const nlohmann::json& list = at("hash_ids");
    const auto is_hash = [](const nlohmann::json& value) { return value.is_number_unsigned(); };
    if (!list.is_array() || !std::ranges::all_of(list, is_hash)) {
      throw InputError(fmt::format("{}: \"hash_ids\" is {}; it must be a list of whole numbers below 2^64",
                                   place_, shown(list)));
    }
    if (std::ssize(list) != count) {
      throw InputError(
          fmt::format("{}: \"hash_ids\" has {} numbers, and input_length {} needs {}; if each stands for "
                      "another number of tokens, give it with --trace-block",
                      place_, list.size(), shown(at("input_length")), count));
    }
    return list.get<std::vector<std::uint64_t>>();
  }

 private:
  const nlohmann::json& at(const char* field) const {
    const auto found = fields_.find(field);
    if (found == fields_.end())
      throw InputError(
          fmt::format("{}: \"{}\" is missing; a request has timestamp, input_length, "
                      "output_length and hash_ids",
                      place_, field));
    return *found;
  }

  std::string place_;  // before fields_, which is made with it
  nlohmann::json fields_;
};

}  // namespace

TokenIds Traffic::prompt_ids(std::size_t index) const {
  const TrafficRequest& request = requests[index];
  std::vector<std::int32_t> ids;
  ids.reserve(static_cast<std::size_t>(request.tokens_to_store() + 1));
  for (const std::int32_t block : request.blocks) {
    const std::int64_t tokens = std::min(block_size, request.input_length - std::ssize(ids));
    ids.insert(ids.end(), static_cast<std::size_t>(tokens), block);
  }
  return ids;
}

/// Blocks count up from 0, outputs down from the largest id.
std::int32_t Traffic::output_id(std::size_t index) const {
  return std::numeric_limits<std::int32_t>::max() - static_cast<std::int32_t>(index);
}

bool lasts_too_long(double ms) {
  return ms > kMostDays * 24 * 3600 * 1e3;
}

Traffic read_traffic(std::istream& lines, const std::string& name, std::int64_t block_size) {
  Traffic traffic{.block_size = block_size, .requests = {}};
  std::unordered_map<std::uint64_t, std::int32_t> numbers;  // of the hash ids, in the order of their lines
  std::string text;
  for (std::int64_t number = 1; std::getline(lines, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Line line(text, fmt::format("{}, line {}", name, number));
    TrafficRequest& request = traffic.requests.emplace_back();
    request.line = number;
    request.timestamp_ms = line.number("timestamp", 0, most_of_a_time);
    request.input_length = line.number("input_length", 1, most_of_a_length);
    request.output_length = line.number("output_length", 0, most_of_a_length - request.input_length);
    for (const std::uint64_t hash : line.hash_ids((request.input_length + block_size - 1) / block_size))
      request.blocks.push_back(
          numbers.try_emplace(hash, static_cast<std::int32_t>(numbers.size())).first->second);
  }
  if (traffic.requests.empty())
    throw InputError(fmt::format("{} holds no request; a trace has one JSON object on each line", name));
  std::ranges::stable_sort(traffic.requests, {}, &TrafficRequest::timestamp_ms);
  const std::int64_t start = traffic.requests.front().timestamp_ms;  // 0, or a date
  for (TrafficRequest& request : traffic.requests) request.timestamp_ms -= start;
  if (lasts_too_long(static_cast<double>(traffic.requests.back().timestamp_ms)))
    throw InputError(
        fmt::format("{}: its requests come within more than {} days; give a part of them", name, kMostDays));
  return traffic;
}

Traffic read_traffic_file(const std::filesystem::path& path, std::int64_t block_size) {
  std::string text = read_whole_file(path);
  if (text.starts_with("\x1f\x8b"))
    throw InputError(fmt::format("{} is compressed; unpack it, as with gunzip", path.string()));
  std::istringstream lines(std::move(text));
  return read_traffic(lines, path.string(), block_size);
}

std::string line_of(const TrafficRequest& request) {
  return fmt::format(
      "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, \"hash_ids\": [{}]}}\n",
      request.timestamp_ms, request.input_length, request.output_length, fmt::join(request.blocks, ", "));
}

}  // namespace kvcache
