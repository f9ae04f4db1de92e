#include "common/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/base/error.h"
#include "common/base/input_file.h"
#include "common/base/json_file.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/text_budget.h"
#include "common/tokenizer/token_decoder.h"
#include "common/tokenizer/tokenizer_json.h"
#include "common/tokenizer/utf8.h"

namespace kvcache {
namespace {

nlohmann::json read_json(const std::filesystem::path& path) {
  if (!has_entry(path))
    throw InputError(fmt::format("{}: no such file; texts need it, token ids (--ids) do not", path.string()));
  return read_json_file(path);
}

/// The "post_processor": ids around those of the text.
class PostProcessor {
 public:
  explicit PostProcessor(const std::optional<JsonNode>& node) {
    if (!node) return;
    for (const JsonNode& component : components(*node, "processors")) {
      const std::string type = component.type();
      if (type == "ByteLevel") continue;  // changes only offsets, which are not kept
      if (type != "TemplateProcessing") {
        component.refuse(fmt::format("post-processor {} is not supported", in_quotes(type)));
      }
      // For Hugging Face's library the first template makes a pair of the text, which the second one joins.
      if (template_) component.refuse("a second TemplateProcessing is not supported");
      template_ = read_template(component);
    }
  }

  std::vector<std::int32_t> process(std::vector<std::int32_t> ids, bool add_special,
                                    const TextBudget& budget) const {
    if (!template_) return ids;
    std::vector<std::int32_t> filled;
    for (const Piece& piece : *template_) {
      if (piece && !add_special) continue;
      const std::vector<std::int32_t>& added = piece ? *piece : ids;
      budget.allow_size(filled.size() + added.size());
      filled.insert(filled.end(), added.begin(), added.end());
    }
    return filled;
  }

  /// The first of the tokens right in front of the text; nothing if the text comes first.
  std::optional<std::int32_t> first_added() const {
    if (!template_ || template_->empty()) return std::nullopt;
    const Piece& first = template_->front();
    return first && !first->empty() ? std::optional(first->front()) : std::nullopt;
  }

 private:
  /// Ids of special tokens; nothing stands for the text itself.
  using Piece = std::optional<std::vector<std::int32_t>>;
  using Template = std::vector<Piece>;

  static Template read_template(const JsonNode& node) {
    Template pieces;
    for (const JsonNode& item : node.at("single").items()) {
      if (const auto special = item.find("SpecialToken")) {
        Piece ids(std::in_place);
        const JsonNode token = node.at("special_tokens").at(special->string_at("id"));
        for (const JsonNode& id : token.at("ids").items()) ids->push_back(id.token_id());
        pieces.push_back(std::move(ids));
      } else {
        const JsonNode id = item.at("Sequence").at("id");
        if (id.string() != "A") id.refuse("must be \"A\" in a template for a single text");
        pieces.emplace_back();
      }
    }
    return pieces;
  }

  std::optional<Template> template_;
};

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(const JsonNode& file)
      : normalizer(file.find("normalizer")),
        pre_tokenizer(file.find("pre_tokenizer")),
        bpe(file.at("model")),
        post_processor(file.find("post_processor")),
        decoder(file.find("decoder")) {
    // "truncation" and "padding" are for batches of training data. They are ignored here; transformers, too,
    // uses them only if a call asks for them.
    if (const auto version = file.find("version"); version && version->string() != "1.0") {
      version->refuse(fmt::format("{} is not supported, only \"1.0\"", in_quotes(version->string())));
    }
    for (const auto& [text, id] : bpe.vocabulary()) add_token(id, text, false);
    if (const auto added = file.find("added_tokens")) read_added_tokens(*added);
  }

  void add_token(std::int32_t id, const std::string& text, bool special) {
    tokens.insert_or_assign(id, Token{text, special});
    longest = std::max(longest, std::ssize(text));
    size = std::max(size, std::int64_t{id} + 1);
  }

  void read_added_tokens(const JsonNode& list);
  void encode_part(std::string_view text, bool at_start, TextBudget& budget, std::vector<std::int32_t>& ids,
                   std::string& left_out) const;

  /// The text that `id` adds to a decoded text; null for none.
  const std::string* text_of(std::int32_t id, bool skip_special) const {
    const auto token = tokens.find(id);
    if (token == tokens.end() || (token->second.special && skip_special)) return nullptr;
    return &token->second.text;
  }

  struct Token {
    std::string text;  ///< in the form that the decoder expects
    bool special;
  };

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  PostProcessor post_processor;
  TokenDecoder decoder;  ///< before its first token
  AddedTokenMatcher raw_matcher, normalized_matcher;
  std::unordered_map<std::int32_t, Token> tokens;  ///< by id
  std::int64_t size = 0;
  std::int64_t longest = 0;        ///< bytes of the longest token, in its text or its normal form
  bool takes_white_space = false;  ///< some added token includes all white space beside it
};

void Tokenizer::Impl::read_added_tokens(const JsonNode& list) {
  std::vector<AddedToken> added;
  std::unordered_map<std::string, std::size_t> index_of;  // by content
  for (const JsonNode& node : list.items()) {
    AddedToken token = read_added_token(node);
    if (token.content.empty()) continue;  // can never be found, as in Hugging Face's library
    takes_white_space = takes_white_space || token.lstrip || token.rstrip;
    if (const auto known = index_of.find(token.content); known != index_of.end()) {
      AddedToken& earlier = added[known->second];
      token.id = earlier.id;
      token.special |= earlier.special;
      earlier = token;
      continue;
    }
    // If the vocabulary has the content, too, the vocabulary's id counts.
    if (const auto entry = bpe.vocabulary().find(token.content); entry != bpe.vocabulary().end()) {
      token.id = entry->second;
    } else if (const std::string* other = text_of(token.id, false)) {
      node.refuse(fmt::format("{} and {} have the same id {}", in_quotes(token.content), in_quotes(*other),
                              token.id));
    }
    add_token(token.id, token.content, token.special);
    index_of.emplace(token.content, added.size());
    added.push_back(token);
  }

  for (const AddedToken& token : added) {
    // The decoder undoes the normalizer, so it gets the normal form, too.
    TextBudget budget(token.content.size());
    const std::string form =
        token.normalized ? normalizer.normalize(token.content, budget).text : token.content;
    add_token(token.id, form, token.special);
    (token.normalized ? normalized_matcher : raw_matcher).add(token, form);
  }
}

/// Encodes the text between two added tokens of the kind that is looked for before normalization.
void Tokenizer::Impl::encode_part(std::string_view text, bool at_start, TextBudget& budget,
                                  std::vector<std::int32_t>& ids, std::string& left_out) const {
  TracedText normalized = normalizer.normalize(text, budget);
  if (!at_start) normalized.from_first = 0;
  for (const AddedTokenMatcher::Part& part : normalized_matcher.split(normalized.text, budget)) {
    if (part.id) {
      ids.push_back(*part.id);
      continue;
    }
    const auto begin = static_cast<std::size_t>(part.text.data() - normalized.text.data());
    for (const std::string& word : pre_tokenizer.words(normalized.part(begin, part.text.size()), budget)) {
      if (!budget.spend(word.size())) budget.refuse("joining tokens");
      bpe.encode(word, ids, left_out);
    }
  }
}

Tokenizer::Tokenizer(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer.json";
  const nlohmann::json document = read_json(path);
  try {
    impl_ = std::make_unique<const Impl>(JsonNode(document, path.string(), ""));
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

void refuse_lost_text(const Encoding& encoding) {
  if (!encoding.ids.empty() || encoding.bytes_left_out == 0) return;
  throw InputError(
      fmt::format("the vocabulary has no token for any of the text, bytes left out: {}; give other text",
                  encoding.bytes_left_out));
}

Encoding Tokenizer::encode_text(std::string_view text, bool add_special, std::stop_token stop) const {
  if (const auto offset = find_invalid_utf8(text)) {
    throw InputError(fmt::format("the text is not valid UTF-8 at byte {}", *offset + 1));
  }
  TextBudget budget(text.size(), std::move(stop));
  Encoding encoding;
  std::string left_out;  // in the form of the vocabulary
  for (const AddedTokenMatcher::Part& part : impl_->raw_matcher.split(text, budget)) {
    if (part.id) {
      encoding.ids.push_back(*part.id);
    } else {
      impl_->encode_part(part.text, part.text.data() == text.data(), budget, encoding.ids, left_out);
    }
  }
  const auto bytes = impl_->pre_tokenizer.spells_bytes() ? from_byte_level(left_out) : std::nullopt;
  encoding.bytes_left_out = std::ssize(bytes.value_or(left_out));
  if (const auto added = impl_->post_processor.first_added();
      add_special && added && !encoding.ids.empty() && encoding.ids.front() == *added) {
    encoding.doubled = added;
  }
  encoding.ids = impl_->post_processor.process(std::move(encoding.ids), add_special, budget);
  return encoding;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  StreamDecoder decoder(*this, skip_special);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::optional<std::int64_t> Tokenizer::most_bytes_of_a_token() const {
  const std::optional<std::int64_t> shrinking = impl_->normalizer.most_shrinking();
  const bool leaves_nothing_out = !impl_->takes_white_space && !impl_->pre_tokenizer.removes() &&
                                  impl_->bpe.knows_everything(impl_->pre_tokenizer.spells_bytes());
  if (!shrinking || !leaves_nothing_out) return std::nullopt;
  return *shrinking * impl_->longest;
}

std::int64_t Tokenizer::size() const {
  return impl_->size;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer.impl_.get()),
      skip_special_(skip_special),
      decoder_(std::make_unique<TokenDecoder>(tokenizer_->decoder)) {}

StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(std::int32_t id) {
  const std::string* text = tokenizer_->text_of(id, skip_special_);
  if (text == nullptr) return "";
  try {
    return decoder_->push(*text);
  } catch (const InputError& error) {
    throw RunError(fmt::format("tokenizer.json's decoder fails at token {}: {}", id, error.what()));
  }
}

std::string StreamDecoder::finish() {
  TokenDecoder ending = std::exchange(*decoder_, tokenizer_->decoder);
  try {
    return ending.finish();
  } catch (const InputError& error) {
    throw RunError(fmt::format("tokenizer.json's decoder fails at the end of the text: {}", error.what()));
  }
}

}  // namespace kvcache
