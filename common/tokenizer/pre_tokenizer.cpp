#include "common/tokenizer/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/utf8.h"

namespace kvcache {
namespace {

/// GPT-2's words: contractions, and letters, digits or other characters with a space before them.
/// Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Bytes [begin, end) of a text: a delimiter, or the text between two delimiters.
struct Span {
  std::size_t begin, end;
  bool is_delimiter;
};

/// The delimiters and the text between them, in order; together they cover the text.
std::vector<Span> spans_of(std::string_view text, const Regex& pattern, bool invert, TextBudget& budget) {
  std::vector<Span> spans;
  std::size_t covered = 0;
  for (const Regex::Match& match : pattern.find_all(text, budget)) {
    if (covered < match.begin) spans.push_back({covered, match.begin, invert});
    spans.push_back({match.begin, match.end, !invert});
    covered = match.end;
  }
  if (covered < text.size()) spans.push_back({covered, text.size(), invert});
  return spans;
}

/// Joins delimiters to the span before them: the first of several in a row, or all for `contiguous`.
std::vector<Span> merge_spans(const std::vector<Span>& spans, SplitBehavior behavior) {
  std::vector<Span> merged;
  bool previous_is_delimiter = false;
  for (const Span& span : spans) {
    const bool joins = behavior == SplitBehavior::contiguous ? span.is_delimiter == previous_is_delimiter
                                                             : span.is_delimiter && !previous_is_delimiter;
    if (joins && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, span.begin);
      merged.back().end = std::max(merged.back().end, span.end);
    } else {
      merged.push_back(span);
    }
    previous_is_delimiter = span.is_delimiter;
  }
  return merged;
}

std::vector<Span> arrange(std::vector<Span> spans, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::removed:
      std::erase_if(spans, [](const Span& span) { return span.is_delimiter; });
      return spans;
    case SplitBehavior::isolated:
      return spans;
    case SplitBehavior::merged_with_previous:
    case SplitBehavior::contiguous:
      return merge_spans(spans, behavior);
    case SplitBehavior::merged_with_next:  // with the previous one, read from the right
      std::reverse(spans.begin(), spans.end());
      spans = merge_spans(spans, behavior);
      std::reverse(spans.begin(), spans.end());
      return spans;
  }
  return spans;
}

/// Puts `added` in front of a text that is not empty. It comes from the same character as what follows it.
void put_in_front(std::string_view added, TracedText& piece) {
  piece.text.insert(0, added);
  if (piece.from_first > 0) piece.from_first += added.size();
}

/// `piece` with each of its characters changed by itself, as `change` does.
template <typename Change>
TracedText changed(const TracedText& piece, const Change& change) {
  return {change(piece.text), change(piece.text.substr(0, piece.from_first)).size()};
}

SplitBehavior read_behavior(const JsonNode& node) {
  constexpr std::pair<std::string_view, SplitBehavior> behaviors[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous},
  };
  const std::string name = node.string();
  for (const auto& [known, behavior] : behaviors) {
    if (name == known) return behavior;
  }
  node.refuse(fmt::format("{} is not supported", in_quotes(name)));
}

}  // namespace

void PreTokenizer::Split::operator()(const TracedText& piece, Pieces& out, TextBudget& budget) const {
  for (const Span& span : arrange(spans_of(piece.text, pattern, invert, budget), behavior)) {
    if (span.begin == span.end) continue;
    out.push_back(piece.part(span.begin, span.end - span.begin));
  }
}

void PreTokenizer::ByteLevel::operator()(const TracedText& piece, Pieces& out, TextBudget& budget) const {
  TracedText spaced = piece;
  if (add_prefix_space && !spaced.text.starts_with(' ')) put_in_front(" ", spaced);
  const std::size_t first = out.size();
  if (split) {
    (*split)(spaced, out, budget);
  } else {
    out.push_back(spaced);
  }
  for (std::size_t index = first; index < out.size(); ++index)
    out[index] = changed(out[index], to_byte_level);
}

void PreTokenizer::Metaspace::operator()(const TracedText& piece, Pieces& out, TextBudget& budget) const {
  TracedText marked = changed(piece, [&](std::string_view text) {
    std::string with_marks;
    for (const char byte : text) {
      if (byte == ' ') {
        with_marks += replacement;
      } else {
        with_marks += byte;
      }
    }
    return with_marks;
  });
  const bool wanted = prepend == Prepend::always || (prepend == Prepend::first && piece.from_first > 0);
  if (wanted && !marked.text.starts_with(replacement)) put_in_front(replacement, marked);
  if (split) {
    (*split)(marked, out, budget);
  } else {
    out.push_back(marked);
  }
}

PreTokenizer::Metaspace PreTokenizer::make_metaspace(const JsonNode& node) {
  const MetaspaceOptions options = read_metaspace(node);
  Metaspace metaspace{.replacement = options.replacement, .prepend = Metaspace::Prepend::always, .split = {}};
  if (options.prepend_scheme == "first") metaspace.prepend = Metaspace::Prepend::first;
  if (options.prepend_scheme == "never") metaspace.prepend = Metaspace::Prepend::never;
  if (node.boolean_at("split", true)) {
    metaspace.split = Split{Regex::from_literal(options.replacement), SplitBehavior::merged_with_next, false};
  }
  return metaspace;
}

PreTokenizer::Step PreTokenizer::make_step(const JsonNode& node) {
  const std::string type = node.type();
  if (type == "Split") {
    return Split{read_pattern(node), read_behavior(node.at("behavior")), node.boolean_at("invert", false)};
  }
  if (type == "ByteLevel") {
    ByteLevel byte_level{.add_prefix_space = node.boolean_at("add_prefix_space", true), .split = {}};
    if (node.boolean_at("use_regex", true)) {
      byte_level.split = Split{Regex::from_pattern(gpt2_pattern), SplitBehavior::isolated, false};
    }
    return byte_level;
  }
  if (type == "Digits") {
    const bool each = node.boolean_at("individual_digits", false);
    return Split{Regex::from_pattern(R"(\p{N})"), each ? SplitBehavior::isolated : SplitBehavior::contiguous,
                 false};
  }
  if (type == "Metaspace") return make_metaspace(node);
  node.refuse(fmt::format("pre-tokenizer {} is not supported", in_quotes(type)));
}

PreTokenizer::PreTokenizer(const std::optional<JsonNode>& node) {
  if (!node) return;
  for (const JsonNode& component : components(*node, "pretokenizers")) steps_.push_back(make_step(component));
}

std::vector<std::string> PreTokenizer::words(TracedText text, TextBudget& budget) const {
  Pieces pieces;
  if (!text.text.empty()) pieces.push_back(std::move(text));
  for (const Step& step : steps_) {
    Pieces cut;
    std::size_t bytes = 0, pieces_counted = 0;  // of `cut`
    for (const TracedText& piece : pieces) {
      std::visit([&](const auto& one) { one(piece, cut, budget); }, step);
      for (; pieces_counted < cut.size(); ++pieces_counted) bytes += cut[pieces_counted].text.size();
      budget.allow_size(bytes);
    }
    pieces = std::move(cut);
  }
  std::vector<std::string> words;
  words.reserve(pieces.size());
  for (TracedText& piece : pieces) words.push_back(std::move(piece.text));
  return words;
}

bool PreTokenizer::removes() const {
  return std::ranges::any_of(steps_, [](const Step& step) {
    const Split* const split = std::get_if<Split>(&step);
    return split != nullptr && split->behavior == SplitBehavior::removed;
  });
}

bool PreTokenizer::spells_bytes() const {
  return std::ranges::any_of(steps_,
                             [](const Step& step) { return std::holds_alternative<ByteLevel>(step); });
}

MetaspaceOptions read_metaspace(const JsonNode& node) {
  MetaspaceOptions options;
  options.replacement = node.string_at("replacement");
  if (options.replacement.empty() || utf8_front(options.replacement).length != options.replacement.size()) {
    node.at("replacement").refuse("must be one character");
  }
  // Older files have add_prefix_space instead of the scheme.
  const bool add_prefix_space = node.boolean_at("add_prefix_space", true);
  const auto scheme = node.find("prepend_scheme");
  options.prepend_scheme = scheme ? scheme->string() : add_prefix_space ? "always" : "never";
  if (options.prepend_scheme != "always" && options.prepend_scheme != "first" &&
      options.prepend_scheme != "never") {
    scheme->refuse(fmt::format("{} is not supported", in_quotes(options.prepend_scheme)));
  }
  if (!add_prefix_space && options.prepend_scheme != "never") {
    node.refuse("add_prefix_space false contradicts the prepend_scheme");
  }
  return options;
}

}  // namespace kvcache
