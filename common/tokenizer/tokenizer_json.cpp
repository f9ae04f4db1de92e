#include "common/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <limits>

#include "common/base/error.h"
#include "common/tokenizer/utf8.h"

namespace kvcache {
namespace {

void collect_components(const JsonNode& node, std::string_view list_key, int depth,
                        std::vector<JsonNode>& found) {
  if (node.type() != "Sequence") {
    found.push_back(node);
    return;
  }
  if (depth == 8) node.refuse("sequences nested more than 8 deep are not supported");
  for (const JsonNode& item : node.at(list_key).items()) collect_components(item, list_key, depth + 1, found);
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t most = 60;
  const std::string shown(front_characters(text, most));
  std::string result = nlohmann::json(shown).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > most) result += "...";
  return result;
}

void JsonNode::refuse(std::string_view message) const {
  throw InputError(fmt::format("{}: {}", place(), message));
}

std::string JsonNode::place() const {
  return path_.empty() ? file_ : fmt::format("{}: {}", file_, path_);
}

JsonNode JsonNode::element(const nlohmann::json& value, std::string_view name) const {
  return JsonNode(value, file_, fmt::format("{}[{}]", path_, name));
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  if (!value_->is_object()) refuse("must be an object");
  const auto member = value_->find(key);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return JsonNode(*member, file_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
}

JsonNode JsonNode::at(std::string_view key) const {
  if (const auto member = find(key)) return *member;
  refuse(fmt::format("lacks \"{}\"", key));
}

std::string JsonNode::string() const {
  if (!value_->is_string()) refuse("must be a string");
  return value_->get<std::string>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) refuse("must be true or false");
  return value_->get<bool>();
}

std::int32_t JsonNode::token_id() const {
  return integer("a token id");
}
std::int32_t JsonNode::count() const {
  return integer("a count");
}

std::int32_t JsonNode::integer(std::string_view what) const {
  constexpr std::int64_t max = std::numeric_limits<std::int32_t>::max();
  // A number beyond 64 bits was read as a float. A number above 2^63 wraps to below zero here.
  const std::int64_t number = value_->is_number_integer() ? value_->get<std::int64_t>() : -1;
  if (number < 0 || number > max) refuse(fmt::format("must be {}, 0 to {}", what, max));
  return static_cast<std::int32_t>(number);
}

std::vector<JsonNode> JsonNode::items() const {
  if (!value_->is_array()) refuse("must be an array");
  std::vector<JsonNode> nodes;
  nodes.reserve(value_->size());
  for (const nlohmann::json& item : *value_) nodes.push_back(element(item, std::to_string(nodes.size())));
  return nodes;
}

bool JsonNode::boolean_at(std::string_view key, bool otherwise) const {
  const auto member = find(key);
  return member ? member->boolean() : otherwise;
}

std::vector<JsonNode> components(const JsonNode& node, std::string_view list_key) {
  std::vector<JsonNode> found;
  collect_components(node, list_key, 0, found);
  return found;
}

}  // namespace kvcache
