#include "common/tokenizer/token_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/utf8.h"

namespace kvcache {
namespace {

/// The byte that a token like <0x0A> spells.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  unsigned value = 0;
  const char* digits = token.data() + 3;
  const auto [end, error] = std::from_chars(digits, digits + 2, value, 16);
  if (error != std::errc() || end != digits + 2) return std::nullopt;
  return static_cast<char>(value);
}

/// Calls `use` with each character of `text`.
template <typename Use>
void for_each_character(std::string_view text, Use use) {
  while (!text.empty()) {
    const std::size_t length = utf8_front(text).length;
    use(text.substr(0, length));
    text.remove_prefix(length);
  }
}

/// Adds `piece` to `token`. If that completes the token, returns it and empties `token` for the next.
std::optional<std::string> complete(std::string& token, const TextPiece& piece) {
  token += piece.text;
  if (!piece.ends_token) return std::nullopt;
  return std::exchange(token, {});
}

/// How many times as long a "Replace" can make a text, at most.
std::size_t growth_of(const JsonNode& node) {
  const std::size_t content = node.string_at("content").size();
  const auto literal = node.at("pattern").find("String");
  const std::size_t replaced = literal ? literal->string().size() : 0;
  // An empty match puts the content before each character.
  return replaced == 0 ? content + 1 : std::max<std::size_t>(1, (content + replaced - 1) / replaced);
}

/// Refuses a decoder that lengthens text again and again, because generated text cannot be refused later.
void refuse_growth(const std::vector<JsonNode>& components, const JsonNode& decoder) {
  constexpr std::size_t most = 1000;
  std::size_t growth = 1;
  for (const JsonNode& component : components) {
    if (component.type() == "Replace") growth *= growth_of(component);
    if (growth > most)
      decoder.refuse(fmt::format("its replacements can make a text more than {} times as long", most));
  }
}

}  // namespace

void TokenDecoder::Replace::push(const TextPiece& piece, Pieces& out) {
  const auto whole = complete(token, piece);
  if (!whole) return;
  TextBudget budget(whole->size(), {}, "give another tokenizer.json");
  out.push_back({pattern->replace_all(*whole, content, budget), true});
}
void TokenDecoder::Replace::finish(Pieces&) {}

void TokenDecoder::ByteFallback::push(const TextPiece& piece, Pieces& out) {
  const auto whole = complete(token, piece);
  if (!whole) return;
  if (const auto byte = byte_of(*whole)) {
    push_byte(*byte, out);
  } else {
    end_run(out);
    out.push_back({*whole, true});
  }
}

void TokenDecoder::ByteFallback::push_byte(char byte, Pieces& out) {
  run += byte;
  if (!run_is_invalid) {
    const Utf8Front front = utf8_front(std::string_view(run).substr(checked));
    if (front.kind == Utf8Front::Kind::character) checked += front.length;
    run_is_invalid = front.kind == Utf8Front::Kind::invalid;
  }
  if (!run_is_invalid) return;
  for (std::size_t count = run.size(); count > 0; --count)
    out.push_back({std::string(replacement_character), true});
  run.clear();
}

void TokenDecoder::ByteFallback::end_run(Pieces& out) {
  if (checked == run.size()) {
    if (!run.empty()) out.push_back({run, true});
  } else {
    for (std::size_t count = run.size(); count > 0; --count)
      out.push_back({std::string(replacement_character), true});
  }
  run.clear();
  checked = 0;
  run_is_invalid = false;
}

void TokenDecoder::ByteFallback::finish(Pieces& out) {
  end_run(out);
}

void TokenDecoder::Fuse::push(const TextPiece& piece, Pieces& out) {
  out.push_back({piece.text, false});
}
void TokenDecoder::Fuse::finish(Pieces& out) {
  out.push_back({"", true});
}

void TokenDecoder::Strip::push(const TextPiece& piece, Pieces& out) {
  std::string kept;
  for_each_character(piece.text, [&](std::string_view character) {
    const bool is_content = character == content;
    if (in_front && is_content && stripped < start) {
      ++stripped;
      return;
    }
    in_front = false;
    if (is_content && held < stop) {
      ++held;
      return;
    }
    // Held contents come first. If this character is `content` too, it takes the place of the oldest.
    if (!is_content) {
      for (; held > 0; --held) kept += content;
    }
    kept += character;
  });
  if (piece.ends_token) {
    stripped = 0;
    in_front = true;
    held = 0;
  }
  out.push_back({kept, piece.ends_token});
}
void TokenDecoder::Strip::finish(Pieces&) {}

void TokenDecoder::Metaspace::push(const TextPiece& piece, Pieces& out) {
  std::string text;
  for_each_character(piece.text, [&](std::string_view character) {
    if (character != replacement) {
      text += character;
    } else if (!in_first_token || !drops_first) {
      text += ' ';
    }
  });
  if (piece.ends_token) in_first_token = false;
  out.push_back({text, piece.ends_token});
}
void TokenDecoder::Metaspace::finish(Pieces&) {}

void TokenDecoder::ByteLevel::push(const TextPiece& piece, Pieces& out) {
  const auto whole = complete(token, piece);
  if (!whole) return;
  // A token with a character outside of the alphabet was added as plain text.
  bytes += from_byte_level(*whole).value_or(*whole);
  out.push_back({take_characters(bytes), false});
}
void TokenDecoder::ByteLevel::finish(Pieces& out) {
  const bool unfinished = !bytes.empty();
  bytes.clear();
  out.push_back({unfinished ? std::string(replacement_character) : "", true});
}

void TokenDecoder::SpaceBetween::push(const TextPiece& piece, Pieces& out) {
  out.push_back({before_first ? piece.text : " " + piece.text, true});
  before_first = false;
}
void TokenDecoder::SpaceBetween::finish(Pieces&) {}

TokenDecoder::TokenDecoder(const std::optional<JsonNode>& node) {
  if (!node) {
    steps_.emplace_back(SpaceBetween{});
    return;
  }
  const std::vector<JsonNode> steps = components(*node, "decoders");
  for (const JsonNode& step : steps) steps_.push_back(make_step(step));
  refuse_growth(steps, *node);
}

TokenDecoder::Step TokenDecoder::make_step(const JsonNode& node) {
  const std::string type = node.type();
  if (type == "Replace") {
    return Replace{.pattern = std::make_shared<const Regex>(read_pattern(node)),
                   .content = node.string_at("content")};
  }
  if (type == "ByteFallback") return ByteFallback{};
  if (type == "Fuse") return Fuse{};
  if (type == "Strip") return make_strip(node);
  if (type == "ByteLevel") return ByteLevel{};
  if (type == "Metaspace") {
    const MetaspaceOptions options = read_metaspace(node);
    return Metaspace{.replacement = options.replacement, .drops_first = options.prepend_scheme != "never"};
  }
  node.refuse(fmt::format("decoder {} is not supported", in_quotes(type)));
}

TokenDecoder::Strip TokenDecoder::make_strip(const JsonNode& node) {
  const auto count = [&](std::string_view key) { return static_cast<std::size_t>(node.at(key).count()); };
  Strip strip{.content = node.string_at("content"), .start = count("start"), .stop = count("stop")};
  if (strip.content.empty() || utf8_front(strip.content).length != strip.content.size()) {
    node.at("content").refuse("must be one character");
  }
  return strip;
}

std::string TokenDecoder::push(std::string_view token) {
  return run({{std::string(token), true}}, false);
}

std::string TokenDecoder::finish() {
  return run({}, true);
}

std::string TokenDecoder::run(Pieces pieces, bool finishing) {
  for (Step& step : steps_) {
    Pieces out;
    for (const TextPiece& piece : pieces) std::visit([&](auto& one) { one.push(piece, out); }, step);
    if (finishing) std::visit([&](auto& one) { one.finish(out); }, step);
    pieces = std::move(out);
  }
  std::string text;
  for (const TextPiece& piece : pieces) text += piece.text;
  return text;
}

}  // namespace kvcache
