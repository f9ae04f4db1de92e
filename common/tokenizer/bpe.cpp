#include "common/tokenizer/bpe.h"

#include <fmt/format.h>

#include <queue>
#include <tuple>
#include <utility>

#include "common/base/error.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/utf8.h"

namespace kvcache {
namespace {

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

/// A token of the word, in a list linked both ways. A merge widens the left token and unlinks the right one:
/// other positions stay valid, and a merge costs O(1).
struct Link {
  std::int32_t token;
  std::ptrdiff_t previous, next;  ///< positions, -1 at either end
  bool unlinked = false;
};

/// "The token at `position` can merge with its next." Out of date once one of the two has changed.
struct Candidate {
  std::int32_t rank;
  std::ptrdiff_t position;

  /// std::priority_queue has the greatest on top: here the lowest rank, and the leftmost of equal ranks.
  bool operator<(const Candidate& other) const {
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

/// Both parts of one entry of "merges": ["a", "b"], or "a b" in older files.
std::pair<std::string, std::string> parts_of(const JsonNode& entry) {
  if (entry.value().is_array()) {
    const std::vector<JsonNode> parts = entry.items();
    if (parts.size() != 2) entry.refuse(fmt::format("a merge has two parts, not {}", parts.size()));
    return {parts[0].string(), parts[1].string()};
  }
  const std::string line = entry.string();
  const std::size_t space = line.find(' ');
  if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
    entry.refuse(fmt::format("a merge is two tokens with one space between them, not {}", in_quotes(line)));
  }
  return {line.substr(0, space), line.substr(space + 1)};
}

}  // namespace

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  merges_.insert_or_assign(key_of(left, right), merge);
}

const Merge* MergeTable::find(std::int32_t left, std::int32_t right) const {
  const auto entry = merges_.find(key_of(left, right));
  return entry == merges_.end() ? nullptr : &entry->second;
}

std::vector<std::int32_t> merge_all(const MergeTable& table, const std::vector<std::int32_t>& tokens,
                                    std::int64_t* pairs_looked_up) {
  std::vector<Link> links;  // [tokens]
  links.reserve(tokens.size());
  const auto end = static_cast<std::ptrdiff_t>(tokens.size());
  for (std::ptrdiff_t position = 0; position < end; ++position) {
    links.push_back({.token = tokens[static_cast<std::size_t>(position)],
                     .previous = position - 1,
                     .next = position + 1 < end ? position + 1 : -1});
  }
  const auto link = [&](std::ptrdiff_t position) -> Link& {
    return links[static_cast<std::size_t>(position)];
  };

  // The merge of the token at `position` with its next, if there is one.
  const auto merge_at = [&](std::ptrdiff_t position) -> const Merge* {
    if (position < 0 || link(position).unlinked || link(position).next < 0) return nullptr;
    if (pairs_looked_up != nullptr) ++*pairs_looked_up;
    return table.find(link(position).token, link(link(position).next).token);
  };

  std::priority_queue<Candidate> candidates;
  const auto consider = [&](std::ptrdiff_t position) {
    if (const Merge* merge = merge_at(position)) candidates.push({merge->rank, position});
  };

  for (std::ptrdiff_t position = 0; position < end; ++position) consider(position);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const Merge* merge = merge_at(best.position);
    if (merge == nullptr || merge->rank != best.rank) continue;  // out of date

    Link& left = link(best.position);
    Link& right = link(left.next);
    left.token = merge->result;
    left.next = right.next;
    right.unlinked = true;
    if (left.next >= 0) link(left.next).previous = best.position;

    consider(left.previous);
    consider(best.position);
  }

  std::vector<std::int32_t> merged;
  for (const Link& one : links) {
    if (!one.unlinked) merged.push_back(one.token);
  }
  return merged;
}

Bpe::Bpe(const JsonNode& model) : place_(model.place()) {
  // GPT-2's own file has no "type".
  if (const auto type = model.find("type"); type && type->string() != "BPE") {
    model.refuse(fmt::format("type {} is not supported, only \"BPE\"", in_quotes(type->string())));
  }
  if (const auto dropout = model.find("dropout")) {
    if (!dropout->value().is_number() || dropout->value().get<double>() != 0.0) {
      dropout->refuse("merging at random is not supported, only null or 0");
    }
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto affix = model.find(key); affix && !affix->string().empty()) {
      affix->refuse("not supported, only null or \"\"");
    }
  }
  if (const auto unk_token = model.find("unk_token")) {
    unk_token_ = unk_token->string();
    has_unk_token_ = true;
  }
  fuse_unk_ = model.boolean_at("fuse_unk", false);
  byte_fallback_ = model.boolean_at("byte_fallback", false);
  ignore_merges_ = model.boolean_at("ignore_merges", false);
  read_vocabulary(model.at("vocab"));
  read_merges(model.at("merges"));
}

void Bpe::read_vocabulary(const JsonNode& vocab) {
  if (!vocab.value().is_object() || vocab.value().empty()) vocab.refuse("must be an object with tokens");
  std::unordered_map<std::int32_t, std::string_view> token_of_id;
  for (const auto& [token, id_value] : vocab.value().items()) {
    const std::int32_t id = vocab.element(id_value, in_quotes(token)).token_id();
    const auto [other, is_new] = token_of_id.emplace(id, token);
    if (!is_new) {
      vocab.refuse(
          fmt::format("{} and {} have the same id {}", in_quotes(other->second), in_quotes(token), id));
    }
    vocabulary_.emplace(token, id);
  }
}

void Bpe::read_merges(const JsonNode& merges) {
  if (!merges.value().is_array()) merges.refuse("must be an array");
  std::int32_t rank = 0;
  std::size_t index = 0;
  for (const nlohmann::json& value : merges.value()) {
    const auto entry = [&] { return merges.element(value, std::to_string(index)); };
    // Old files contain the first line of a merges.txt.
    if (value.is_string() && value.get_ref<const std::string&>().starts_with("#version")) {
      ++index;
      continue;
    }
    const auto [left, right] = parts_of(entry());
    const auto id_of = [&](const std::string& token) {
      const auto found = vocabulary_.find(token);
      if (found == vocabulary_.end())
        entry().refuse(fmt::format("{} is not in the vocabulary", in_quotes(token)));
      return found->second;
    };
    const std::int32_t left_id = id_of(left);
    const std::int32_t right_id = id_of(right);
    merges_.add(left_id, right_id, {.rank = rank, .result = id_of(left + right)});
    ++rank;
    ++index;
  }
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& ids, std::string& left_out) const {
  if (ignore_merges_) {
    if (const auto whole = vocabulary_.find(word); whole != vocabulary_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  const std::vector<std::int32_t> merged = merge_all(merges_, characters_of(word, left_out));
  ids.insert(ids.end(), merged.begin(), merged.end());
}

bool Bpe::knows_everything(bool of_bytes) const {
  if (!of_bytes && !byte_fallback_) return false;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token =
        of_bytes ? to_byte_level(std::string(1, static_cast<char>(byte))) : fmt::format("<0x{:02X}>", byte);
    if (!vocabulary_.contains(token)) return false;
  }
  return true;
}

/// The tokens that the merges start from: one for each character that is in the vocabulary.
std::vector<std::int32_t> Bpe::characters_of(std::string_view word, std::string& left_out) const {
  std::vector<std::int32_t> ids;
  // An unknown token is held back until the next known character, because the unknown characters between may
  // fuse with it. Characters spelled as bytes overtake it, as in Hugging Face's library.
  constexpr std::int32_t none = -1;
  std::int32_t unknown = none;
  const auto flush_unknown = [&] {
    if (unknown != none) ids.push_back(unknown);
    unknown = none;
  };
  while (!word.empty()) {
    const std::string_view character = word.substr(0, utf8_front(word).length);
    word.remove_prefix(character.size());
    if (const auto token = vocabulary_.find(character); token != vocabulary_.end()) {
      flush_unknown();
      ids.push_back(token->second);
    } else if (byte_fallback_ && append_bytes(character, ids)) {
      continue;
    } else if (!has_unk_token_) {
      left_out += character;
    } else {
      const std::int32_t token_for_unknown = unknown_token(character);
      if (!fuse_unk_) flush_unknown();
      unknown = token_for_unknown;
    }
  }
  flush_unknown();
  return ids;
}

/// Appends the character's bytes as tokens. False, with nothing appended, if a byte has no token.
bool Bpe::append_bytes(std::string_view character, std::vector<std::int32_t>& ids) const {
  std::vector<std::int32_t> bytes;
  for (const char byte : character) {
    const auto token = vocabulary_.find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte)));
    if (token == vocabulary_.end()) return false;
    bytes.push_back(token->second);
  }
  ids.insert(ids.end(), bytes.begin(), bytes.end());
  return true;
}

std::int32_t Bpe::unknown_token(std::string_view character) const {
  const auto token = vocabulary_.find(unk_token_);
  if (token == vocabulary_.end()) {
    throw InputError(
        fmt::format("{}: no token for the character {}, and unk_token {} is not in the vocabulary", place_,
                    in_quotes(character), in_quotes(unk_token_)));
  }
  return token->second;
}

}  // namespace kvcache
