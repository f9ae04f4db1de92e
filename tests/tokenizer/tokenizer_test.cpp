/// @file
/// The tokenizer against Hugging Face's library, for the same tokenizer.json: the reference checkpoints in
/// tests/reference, and small tokenizers made here. The expected ids and words are from tokenizers 0.23.3.

#include "common/tokenizer/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <array>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/base/error.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/regex.h"
#include "common/tokenizer/text_budget.h"
#include "common/tokenizer/token_decoder.h"
#include "common/tokenizer/utf8.h"
#include "tests/support/checkpoints.h"

namespace kvcache {
namespace {

using nlohmann::json;
using testing::IsNotSubstring;
using testing::IsSubstring;
using Ids = std::vector<std::int32_t>;
using Words = std::vector<std::string>;

Tokenizer reference_tokenizer(const std::string& name) {
  return Tokenizer(checkpoint_folder(name));
}

json read_json(const std::filesystem::path& path) {
  return json::parse(read_file(path));
}

/// A folder with a tokenizer.json.
struct TokenizerFolder : TemporaryFolder {
  explicit TokenizerFolder(const std::string& content) { write_file(path() / "tokenizer.json", content); }
};

Tokenizer tokenizer_of(const std::string& content) {
  return Tokenizer(TokenizerFolder(content).path());
}
Tokenizer tokenizer_of(const json& content) {
  return tokenizer_of(content.dump());
}

/// Characters a to j, space, <, |, > and the mark for a space, with ids 0 to 14, and no merges.
json plain_tokenizer() {
  json vocab = json::object();
  std::int32_t id = 0;
  for (const char* token : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", " ", "<", "|", ">", "▁"}) {
    vocab[token] = id++;
  }
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"decoder", {{"type", "Fuse"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
}

json merges(const std::vector<std::pair<std::string, std::string>>& pairs) {
  return pairs;
}

json added_token(const std::string& content, std::int64_t id, std::initializer_list<const char*> flags = {}) {
  json token = {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", false}};
  for (const char* flag : flags) token[flag] = true;
  return token;
}

const json sentencepiece_normalizer = {
    {"type", "Sequence"},
    {"normalizers",
     {{{"type", "Prepend"}, {"prepend", "▁"}},
      {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}};

Words words(const json& pre_tokenizer, const std::string& text) {
  TextBudget budget(text.size());
  return PreTokenizer(JsonNode(pre_tokenizer, "test", "pre_tokenizer"))
      .words({text, text.empty() ? 0 : utf8_front(text).length}, budget);
}

std::string normal_form(const json& normalizer, const std::string& text) {
  TextBudget budget(text.size());
  return Normalizer(JsonNode(normalizer, "test", "normalizer")).normalize(text, budget).text;
}

std::string stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special = true) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string text;
  for (const std::int32_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_FALSE(find_invalid_utf8(piece)) << "part of a character after id " << id;
    text += piece;
  }
  return text + decoder.finish();
}

/// The constructor's message for `content`, without the folder.
std::string refusal(const std::string& content) {
  const TokenizerFolder folder(content);
  const std::string file = (folder.path() / "tokenizer.json").string();
  try {
    const Tokenizer tokenizer(folder.path());
  } catch (const InputError& error) {
    std::string message = error.what();
    EXPECT_TRUE(message.starts_with(file)) << message;
    EXPECT_PRED_FORMAT2(IsNotSubstring, "\n", message);
    return message.starts_with(file) ? message.substr(file.size()) : message;
  }
  return "nothing";
}
std::string refusal(const json& content) {
  return refusal(content.dump());
}

/// The message with which `tokenizer` refuses `text`.
std::string refusal_of_text(const Tokenizer& tokenizer, const std::string& text) {
  try {
    tokenizer.encode(text);
  } catch (const InputError& error) {
    EXPECT_PRED_FORMAT2(IsNotSubstring, "\n", error.what());
    return error.what();
  }
  return "nothing";
}

json split_by(const std::string& pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
}

std::string repeated(const std::string& unit, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

TEST(TokenizerFile, IsReadLikeTheOtherJsonFiles) {
  const std::string whole = plain_tokenizer().dump();
  EXPECT_EQ(refusal(whole), "nothing");
  EXPECT_PRED_FORMAT2(IsSubstring, "1e400", refusal(std::string(R"({"version":1e400})")));
  EXPECT_PRED_FORMAT2(IsSubstring, "NUL", refusal(whole + std::string("\0garbage", 8)));
  EXPECT_NE(refusal(whole + "{}"), "nothing");
  EXPECT_PRED_FORMAT2(IsSubstring, "\"model\" is given twice",
                      refusal(std::string(R"({"model":{},"model":{}})")));
  EXPECT_PRED_FORMAT2(IsSubstring, "nested", refusal(std::string(100'000, '[')));
  EXPECT_PRED_FORMAT2(IsSubstring, "100000001 bytes are more than the 100000000 that are read",
                      refusal(std::string().append(100'000'001, ' ')));
}

TEST(TokenizerFile, HasNoMoreValuesThanTwiceTheLargestThereIs) {
  std::string content = "[{}";
  for (int value = 2; value < 4'000'000; ++value) content += ",{}";  // the list is one, too
  EXPECT_EQ(refusal(content + "]"), ": must be an object");
  EXPECT_EQ(refusal(content + ",{}]"), ": more than 4000000 values");
}

TEST(TokenizerFile, IsNotAbsentWhereALinkLeadsNowhere) {
  const TokenizerFolder folder("");
  const std::filesystem::path file = folder.path() / "tokenizer.json";
  const auto message = [&]() -> std::string {
    try {
      const Tokenizer tokenizer(folder.path());
    } catch (const InputError& error) {
      return error.what();
    }
    return "nothing";
  };
  std::filesystem::remove(file);
  EXPECT_EQ(message(), file.string() + ": no such file; texts need it, token ids (--ids) do not");
  std::filesystem::create_symlink("gone", file);
  EXPECT_EQ(message(), file.string() + ": no such file, this is a link to gone");
}

// The reference checkpoints

TEST(ReferenceTokenizers, EncodeAndDecodeEveryTextAsHuggingFaceDoes) {
  for (const std::string& name : tiny_checkpoints()) {
    const Tokenizer tokenizer = reference_tokenizer(name);
    const json expected = answers_of(name);
    ASSERT_EQ(expected["tokenizer"].size(), 30U);
    for (const json& one : expected["tokenizer"]) {
      const auto text = one["text"].get<std::string>();
      const auto ids = one["ids"].get<Ids>();
      EXPECT_EQ(tokenizer.encode(text), ids) << name << ": " << text;
      EXPECT_EQ(tokenizer.encode(text, false), one["ids_without_special"].get<Ids>()) << name << ": " << text;
      EXPECT_EQ(tokenizer.decode(ids), one["decoded"].get<std::string>()) << name << ": " << text;
      EXPECT_EQ(stream(tokenizer, ids), one["decoded"].get<std::string>()) << name << ": " << text;
    }
  }
}

TEST(ReferenceTokenizers, EncodeEveryPromptAsHuggingFaceDoes) {
  for (const std::string& name : tiny_checkpoints()) {
    const Tokenizer tokenizer = reference_tokenizer(name);
    const json expected = answers_of(name);
    int prompts = 0;
    for (const json& one : expected["cases"]) {
      if (one["prompt"].is_null()) continue;  // given as ids
      ++prompts;
      const auto prompt = one["prompt"].get<std::string>();
      EXPECT_EQ(tokenizer.encode(prompt), one["prompt_ids"].get<Ids>()) << name << ": " << prompt;
    }
    EXPECT_EQ(prompts, 6) << name;
  }
}

TEST(ReferenceTokenizers, KnowTheirSize) {
  for (const std::string& name : tiny_checkpoints()) EXPECT_EQ(reference_tokenizer(name).size(), 768) << name;
}

// Encoding: special and other added tokens

TEST(AddedTokens, AreFoundInTheTextWithAndWithoutSpecialTokensAroundIt) {
  const Tokenizer qwen = reference_tokenizer("qwen3-tied");
  EXPECT_EQ(qwen.encode("<|im_start|>user", true), (Ids{766, 485, 276}));
  EXPECT_EQ(qwen.encode("<|im_start|>user", false), (Ids{766, 485, 276}));
  const Tokenizer llama = reference_tokenizer("llama-gqa");
  // The space in front belongs to the text after <s>; <|im_start|> is no token of this model.
  EXPECT_EQ(llama.encode("<s>user", true), (Ids{1, 1, 335, 559, 353}));
  EXPECT_EQ(llama.encode("<s>user", false), (Ids{1, 335, 559, 353}));
  EXPECT_EQ(llama.encode("<|im_start|>user", false),
            (Ids{335, 63, 127, 312, 316, 98, 369, 390, 323, 127, 65, 559, 353}));
}

TEST(AddedTokens, PreferTheLeftmostAndOfThoseTheLongest) {
  json file = plain_tokenizer();
  file["added_tokens"] =
      json::array({added_token("<a>", 15), added_token("<a>b", 16), added_token("a>bc", 17)});
  EXPECT_EQ(tokenizer_of(file).encode("<a>bc<a>c"), (Ids{16, 2, 15, 2}));
}

TEST(AddedTokens, TakeTheWhiteSpaceThatTheirFlagsSay) {
  json file = plain_tokenizer();
  file["added_tokens"] = {added_token("<a>", 15, {"lstrip"}), added_token("<b>", 16, {"rstrip"}),
                          added_token("<c>", 17, {"single_word"})};
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_EQ(tokenizer.encode("a  <a>  b"), (Ids{0, 15, 10, 10, 1}));
  EXPECT_EQ(tokenizer.encode("a  <b>  b"), (Ids{0, 10, 10, 16, 1}));
  EXPECT_EQ(tokenizer.encode("<c> <c>a <c>"), (Ids{17, 10, 11, 2, 13, 0, 10, 17}));
  EXPECT_EQ(tokenizer.encode(" <b> <a> <c>"), (Ids{10, 16, 15, 10, 17}));
  // White space is more than the space character. Two tokens cannot include the same white space.
  EXPECT_EQ(tokenizer.encode("\u3000\u00A0<a>a<b>\u2003\n<a>"), (Ids{15, 0, 16, 15}));
}

TEST(AddedTokens, OfWhiteSpaceDoNotReappearWhereTheOneBeforeTookIt) {
  json file = plain_tokenizer();
  file["added_tokens"] = json::array({added_token(" ", 15, {"lstrip", "rstrip"})});
  file["model"]["vocab"].erase(" ");
  EXPECT_EQ(tokenizer_of(file).encode("a  b"), (Ids{0, 15, 1}));
}

TEST(AddedTokens, OfWhiteSpaceAreFoundInATimeInProportionToTheText) {
  json file = plain_tokenizer();
  file["added_tokens"] = json::array({added_token(" ", 15, {"rstrip"})});
  file["model"]["vocab"].erase(" ");
  EXPECT_EQ(tokenizer_of(file).encode("a" + std::string(300'000, ' ') + "b").back(), 1);
}

TEST(AddedTokens, WhoseSearchTakesTooLongEndTheText) {
  json file = plain_tokenizer();
  file["added_tokens"] = json::array({added_token(std::string(200'000, 'a') + "b", 15)});
  EXPECT_PRED_FORMAT2(IsSubstring, "the search for added tokens takes more than",
                      refusal_of_text(tokenizer_of(file), std::string(300'000, 'a')));
}

TEST(AddedTokens, ThatAreNormalizedAreFoundInTheirNormalForm) {
  json file = plain_tokenizer();
  file["normalizer"] = sentencepiece_normalizer;
  file["added_tokens"] = {added_token("<a>", 15, {"normalized"}), added_token("<b>", 16)};
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_EQ(tokenizer.encode("<a>b"), (Ids{15, 1}));
  EXPECT_EQ(tokenizer.encode("b <a>"), (Ids{14, 1, 15}));
  EXPECT_EQ(tokenizer.encode("b<a>"), (Ids{14, 1, 11, 0, 13}));  // its form begins with a space
  EXPECT_EQ(tokenizer.encode("b<b>c d"), (Ids{14, 1, 16, 14, 2, 14, 3}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 15, 1, 16}), "b▁<a>b<b>");
}

TEST(AddedTokens, MayHaveAnyIdAndLeaveGaps) {
  json file = plain_tokenizer();
  file["added_tokens"] = json::array({added_token("<a>", 100), added_token("<b>", 2147483647, {"special"})});
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_EQ(tokenizer.encode("a<b><a>"), (Ids{0, 2147483647, 100}));
  EXPECT_EQ(tokenizer.decode(Ids{0, 2147483647, 100}), "a<a>");
  EXPECT_EQ(tokenizer.decode(Ids{0, 2147483647, 100}, false), "a<b><a>");
  EXPECT_EQ(tokenizer.size(), 2147483648);
}

TEST(AddedTokens, ThatAreInTheVocabularyKeepItsId) {
  json file = plain_tokenizer();
  file["added_tokens"] = {added_token("b", 77, {"special"}), added_token("", 78)};
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{0, 1}));
  EXPECT_EQ(tokenizer.decode(Ids{0, 1, 77, 78}), "a");
}

TEST(AddedTokens, ThatAreListedTwiceHaveTheLaterFlagsAndStaySpecial) {
  json file = plain_tokenizer();
  file["added_tokens"] = {added_token("<a>", 15, {"special"}), added_token("<a>", 16, {"lstrip"})};
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_EQ(tokenizer.encode("b  <a>"), (Ids{1, 15}));
  EXPECT_EQ(tokenizer.decode(Ids{1, 15}), "b");
}

// Encoding: normalizers

TEST(Normalizer, BringsCharactersToTheFormsOfUnicode) {
  EXPECT_EQ(normal_form({{"type", "NFC"}}, "e\u0301\u0323 \u1112\u1161\u11AB \u212B \uFB01"),
            "\u1EB9\u0301 \uD55C \u00C5 \uFB01");
  EXPECT_EQ(normal_form({{"type", "NFC"}}, "a\u0315\u0300\u05AE\u0062"), "\u00E0\u05AE\u0315b");
  EXPECT_EQ(normal_form({{"type", "NFD"}}, "\u1EC7\uD55C"), "e\u0323\u0302\u1112\u1161\u11AB");
  EXPECT_EQ(normal_form({{"type", "NFKC"}}, "\uFB01\u00B2\u2167"), "fi2VIII");
  EXPECT_EQ(normal_form({{"type", "NFKD"}}, "\uFB01\u1E9B\u0323"), "fis\u0323\u0307");
}

TEST(Normalizer, PrependsOnceAndReplacesStringsAndPatterns) {
  json steps = sentencepiece_normalizer;
  steps["normalizers"].push_back({{"type", "Replace"}, {"pattern", {{"Regex", "[0-9]+"}}}, {"content", "#"}});
  EXPECT_EQ(normal_form(steps, "a 12 b3"), "▁a▁#▁b#");
  EXPECT_EQ(normal_form(steps, ""), "");
}

TEST(Normalizer, GivesEqualIdsToEqualCharacters) {
  const Tokenizer qwen = reference_tokenizer("qwen3-tied");
  EXPECT_EQ(qwen.encode("\u00E9"), (Ids{127, 102}));
  EXPECT_EQ(qwen.encode("e\u0301"), (Ids{127, 102}));
  EXPECT_EQ(qwen.encode("\uD55C"), (Ids{169, 243, 250}));
  EXPECT_EQ(qwen.encode("\u1112\u1161\u11AB"), (Ids{169, 243, 250}));
  EXPECT_EQ(qwen.encode("e\u0301\u0323"), (Ids{157, 118, 117, 136, 223}));
  EXPECT_EQ(qwen.encode("e\u0323\u0301"), (Ids{157, 118, 117, 136, 223}));
}

// Encoding: pre-tokenizers

TEST(PreTokenizer, SplitsByTheMatchesOfAPattern) {
  const auto split = [](const char* behavior, bool invert) {
    return words(
        {{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", invert}},
        "-The-final--countdown-");
  };
  EXPECT_EQ(split("Removed", false), (Words{"The", "final", "countdown"}));
  EXPECT_EQ(split("Removed", true), (Words{"-", "-", "-", "-", "-"}));
  EXPECT_EQ(split("Isolated", false), (Words{"-", "The", "-", "final", "-", "-", "countdown", "-"}));
  EXPECT_EQ(split("MergedWithPrevious", false), (Words{"-", "The-", "final-", "-", "countdown-"}));
  EXPECT_EQ(split("MergedWithPrevious", true), (Words{"-The", "-final", "-", "-countdown", "-"}));
  EXPECT_EQ(split("MergedWithNext", false), (Words{"-The", "-final", "-", "-countdown", "-"}));
  EXPECT_EQ(split("MergedWithNext", true), (Words{"-", "The-", "final-", "-", "countdown-"}));
  EXPECT_EQ(split("Contiguous", false), (Words{"-", "The", "-", "final", "--", "countdown", "-"}));
}

TEST(PreTokenizer, SplitsAtEmptyMatchesBetweenCharacters) {
  const auto split = [](const char* kind, const char* pattern, const char* text) {
    return words(
        {{"type", "Split"}, {"pattern", {{kind, pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
        text);
  };
  EXPECT_EQ(split("Regex", "x*", "abxxc"), (Words{"a", "b", "xx", "c"}));
  EXPECT_EQ(split("Regex", "^.|$", "ab\ncd"), (Words{"a", "b", "\n", "c", "d"}));
  EXPECT_EQ(split("String", "", "añb"), (Words{"a", "ñ", "b"}));
}

TEST(PreTokenizer, FollowsLlama3sPattern) {
  const char* pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  EXPECT_EQ(words({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
                  "I'LL pay 12345 euros,\n\n  it'\u017F ok?!\u00A0x\u180Ey  "),
            (Words{"I", "'LL", " pay", " ", "123", "45", " euros", ",\n\n", " ", " it", "'\u017F", " ok",
                   "?!", "\u00A0x", "\u180Ey", "  "}));
}

TEST(PreTokenizer, FollowsGpt2sPatternAndSpellsBytes) {
  EXPECT_EQ(words({{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}},
                  "Hello  world's 3\u00B2\n \u00E9\u180E"),
            (Words{"ĠHello", "Ġ", "Ġworld", "'s", "Ġ3Â²", "Ċ", "ĠÃ©", "áłİ"}));
  EXPECT_EQ(words({{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}}, " Hello"),
            (Words{"ĠHello"}));
  EXPECT_EQ(words({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}, "a b"),
            (Words{"aĠb"}));
}

TEST(PreTokenizer, SplitsDigits) {
  EXPECT_EQ(words({{"type", "Digits"}, {"individual_digits", true}}, "a12²b3"),
            (Words{"a", "1", "2", "²", "b", "3"}));
  EXPECT_EQ(words({{"type", "Digits"}, {"individual_digits", false}}, "a12²b3"),
            (Words{"a", "12²", "b", "3"}));
}

TEST(PreTokenizer, MarksSpacesByEverySchemeOfMetaspace) {
  const auto metaspace = [](const char* scheme, bool split) {
    return json{{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
  };
  EXPECT_EQ(words(metaspace("always", true), " a  b"), (Words{"▁a", "▁", "▁b"}));
  EXPECT_EQ(words(metaspace("always", true), "a b "), (Words{"▁a", "▁b", "▁"}));
  EXPECT_EQ(words(metaspace("never", true), "a b "), (Words{"a", "▁b", "▁"}));
  EXPECT_EQ(words(metaspace("first", false), "a b "), (Words{"▁a▁b▁"}));

  const auto after_a_split = [&](const char* scheme) {
    const json split = {{"type", "Split"}, {"pattern", {{"String", "|"}}}, {"behavior", "Removed"}};
    return words({{"type", "Sequence"}, {"pretokenizers", {split, metaspace(scheme, true)}}}, "a|b c|d");
  };
  EXPECT_EQ(after_a_split("always"), (Words{"▁a", "▁b", "▁c", "▁d"}));
  EXPECT_EQ(after_a_split("first"), (Words{"▁a", "b", "▁c", "d"}));
}

TEST(PreTokenizer, ReadsTheOlderFormOfMetaspace) {
  const auto metaspace = [](bool add_prefix_space) {
    return json{{"type", "Metaspace"}, {"replacement", "▁"}, {"add_prefix_space", add_prefix_space}};
  };
  EXPECT_EQ(words(metaspace(true), "a b"), (Words{"▁a", "▁b"}));
  EXPECT_EQ(words(metaspace(false), "a b"), (Words{"a", "▁b"}));
}

TEST(PreTokenizer, AddsTheFirstSpaceOnlyAtTheBeginningOfTheWholeText) {
  json file = plain_tokenizer();
  file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}};
  file["added_tokens"] = json::array({added_token("<b>", 16)});
  EXPECT_EQ(tokenizer_of(file).encode("a<b>c"), (Ids{14, 0, 16, 2}));
  EXPECT_EQ(tokenizer_of(file).encode("<b>c"), (Ids{16, 2}));
}

TEST(PreTokenizer, AddsTheFirstSpaceToWhatComesFromTheFirstCharacter) {
  const auto replace = [](const char* kind, const char* pattern, const char* content) {
    return json{{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
  };
  const auto string = [&](const char* pattern, const char* content) {
    return replace("String", pattern, content);
  };
  const auto regex = [&](const char* pattern, const char* content) {
    return replace("Regex", pattern, content);
  };
  const auto prepend = [](const char* prefix) { return json{{"type", "Prepend"}, {"prepend", prefix}}; };
  const json nfc = {{"type", "NFC"}}, nfd = {{"type", "NFD"}};
  const json nfkc = {{"type", "NFKC"}}, nfkd = {{"type", "NFKD"}};
  struct Case {
    std::vector<json> normalizers;
    std::string text;
    Words expected;
  };
  const std::vector<Case> cases = {
      {{string("\r\n", "\n")}, "\r\nab", {"\nab"}},
      {{string("\r\n", "\n")}, "\n\r\nab", {"▁\n\nab"}},
      {{string("``", "\"")}, "``ab", {"\"ab"}},
      {{string("`", "\"")}, "`ab", {"▁\"ab"}},
      {{regex("^ +", "")}, " ab c", {"ab", "▁c"}},
      {{regex("^ +", "")}, "ab c", {"▁ab", "▁c"}},
      {{regex("^\\s+|\\s+$", "")}, "\nab ", {"ab"}},
      {{regex("[a-z]+", "a")}, "ab", {"a"}},
      {{regex("[a-z]+", "a")}, "a", {"▁a"}},
      {{regex("[a-z]+", "a")}, "\u00E9b", {"▁\u00E9a"}},
      {{string("\u00E9", "e")}, "\u00E9b", {"▁eb"}},
      {{regex(" {2,}", " ")}, "  ab", {"▁ab"}},
      {{string("ab", "a|b")}, "abc", {"a", "|", "bc"}},
      {{string("a", "a|b")}, "ac", {"▁a", "▁|", "▁bc"}},
      {{prepend("x|")}, "ab", {"▁x", "▁|", "▁ab"}},
      {{prepend("x|"), string("x|a", "c|")}, "ab", {"▁c", "▁|", "b"}},
      {{prepend("x|"), string("x|ab", "c|")}, "abd", {"c", "|", "d"}},
      {{string("a", ""), prepend("x|")}, "ab", {"x", "|", "b"}},
      {{regex("^", "x|")}, "ab", {"▁x", "▁|", "▁ab"}},
      {{string("a", ""), regex("^", "x|")}, "ab", {"▁x", "▁|", "b"}},
      {{prepend("x|"), regex("^x", "")}, "ab", {"▁|", "▁ab"}},
      {{prepend("x|"), string("|a", "|")}, "ab", {"▁x", "▁|", "b"}},
      {{nfc, string("\u00E9", "c|c")}, "e\u0301b", {"▁c", "▁|", "▁cb"}},
      {{nfc, string("\u00E9b", "c|c")}, "e\u0301b", {"c", "|", "c"}},
      {{prepend("x|"), nfc}, "e\u0301b", {"▁x", "▁|", "▁\u00E9b"}},
      {{nfd, string("e\u0301", "c|c")}, "\u00E9b", {"▁c", "▁|", "▁cb"}},
      {{nfkc, string("fi", "c|c")}, "\uFB01b", {"▁c", "▁|", "▁cb"}},
      {{nfkd, regex("^.", "")}, "\uFB01b", {"▁ib"}},
      {{nfkd, regex("^..", "")}, "\uFB01b", {"b"}},
      {{regex("^.", ""), nfkc}, "a\uFB01b", {"fib"}},
      {{nfc, string("\uAC01", "a|c")}, "\u1100\u1161\u11A8b", {"▁a", "▁|", "▁cb"}},
      {{regex("^ +", ""), regex("^ab", "a")}, " ab", {"a"}},
      {{regex("^a", "ab"), regex("^ab", "c|c")}, "ad", {"▁c", "▁|", "▁cd"}},
      {{regex("^ +", ""), regex("^", "x|")}, " ", {}},
      {{prepend("")}, "ab", {"▁ab"}},
      {{string("a", ""), prepend("")}, "ab", {"▁b"}},
  };
  const json split = {{"type", "Split"}, {"pattern", {{"String", "|"}}}, {"behavior", "Isolated"}};
  const json metaspace = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}};
  const json steps = {{"type", "Sequence"}, {"pretokenizers", {split, metaspace}}};
  const PreTokenizer pre_tokenizer(JsonNode(steps, "test", "pre_tokenizer"));
  for (const auto& [normalizers, text, expected] : cases) {
    const json normalizer = {{"type", "Sequence"}, {"normalizers", normalizers}};
    TextBudget budget(text.size());
    const TracedText normalized =
        Normalizer(JsonNode(normalizer, "test", "normalizer")).normalize(text, budget);
    EXPECT_EQ(pre_tokenizer.words(normalized, budget), expected) << normalizer << " of " << json(text);
  }
}

TEST(PreTokenizer, AddsTheFirstSpaceInNoPartButTheFirst) {
  const auto replace = [](const char* kind, const char* pattern, const char* content) {
    return json{{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
  };
  json file = plain_tokenizer();
  file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}};
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", {replace("Regex", "^ ", ""), replace("Regex", "^", "d")}}};
  file["added_tokens"] = json::array({added_token("<b>", 16)});
  EXPECT_EQ(tokenizer_of(file).encode(" a<b> c"), (Ids{14, 3, 0, 16, 3, 2}));
  EXPECT_EQ(tokenizer_of(file).encode("<b> c"), (Ids{16, 3, 2}));

  file["normalizer"] = replace("String", "a", "d<b>a");  // both words come from the a
  file["added_tokens"] = json::array({added_token("<b>", 16, {"normalized"})});
  EXPECT_EQ(tokenizer_of(file).encode("ac"), (Ids{14, 3, 16, 14, 0, 2}));
  EXPECT_EQ(tokenizer_of(file).encode("ca"), (Ids{14, 2, 3, 16, 0}));
}

// Encoding: regular expressions

TEST(Regex, MeansWhatRubysSyntaxMeans) {
  const auto first = [](const char* pattern, const std::string& text) {
    TextBudget budget(text.size());
    const auto matches = Regex::from_pattern(pattern).find_all(text, budget);
    return matches.empty() ? "none" : text.substr(matches[0].begin, matches[0].end - matches[0].begin);
  };
  EXPECT_EQ(first(R"(\s)", "\u180E"), "none");  // white space to PCRE2, not to Unicode
  EXPECT_EQ(first(R"([^\S])", "\u0085"), "\u0085");
  EXPECT_EQ(first(R"(\w+)", "e\u0301\u00B2_"), "e\u0301\u00B2_");
  EXPECT_EQ(first(R"(\w)", "\u2460"), "none");
  EXPECT_EQ(first(R"(\v)", "\n\v"), "\v");
  EXPECT_EQ(first("b$", "ab\nc"), "b");
  EXPECT_EQ(first(".+", "a\rb\nc"), "a\rb");
  EXPECT_EQ(first(R"(\p{Han}+)", "日本、の"), "日本");  // the comma is shared with other scripts
  EXPECT_EQ(first(R"(\u65e5|\x{1F469}|\x41)", "👩A日"), "👩");
  EXPECT_EQ(first(R"([^\r\n\p{L}\p{N}]?+\p{L}++)", " ab1"), " ab");
  EXPECT_EQ(first(R"((?<!a)b(?=c)|(?>x+)y)", "abcbcxy"), "b");
}

TEST(Regex, CountsSuperscriptsAndFractionsAsWordsOutsideOfClassesAlone) {
  // The text without the matches of Hugging Face's library; only these six characters differ so.
  const auto removed = [](const char* pattern) {
    const std::string text = "5 m\u00B2\u00B3\u00B9\u00BC\u00BD\u00BE\u2460_-";
    TextBudget budget(text.size());
    std::string matched;
    for (const Regex::Match& match : Regex::from_pattern(pattern).find_all(text, budget))
      matched += text.substr(match.begin, match.end - match.begin);
    return matched;
  };
  EXPECT_EQ(removed(R"(\w)"), "5m\u00B2\u00B3\u00B9\u00BC\u00BD\u00BE_");
  EXPECT_EQ(removed(R"([\w])"), "5m_");
  EXPECT_EQ(removed(R"([\w-])"), "5m_-");
  EXPECT_EQ(removed(R"([^\w])"), " \u00B2\u00B3\u00B9\u00BC\u00BD\u00BE\u2460-");
  EXPECT_EQ(removed(R"([^\w\s])"), "\u00B2\u00B3\u00B9\u00BC\u00BD\u00BE\u2460-");
  EXPECT_EQ(removed(R"([\d]|[^\D])"), "5");
  EXPECT_EQ(removed(R"([\s]|[^\S])"), " ");
}

// Letters that Oniguruma takes for one, as "ss" for a sharp s, are not in these, or not within (?i:...).
TEST(Regex, TakesWhatIsTheSameWithoutCase) {
  for (const char* pattern : {"(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)",
                              "(?i:s|s+t|s.s)t(?i:t)", "(?i:[sst]|\u2019s)", R"((?i:\p{Lu}[\w\S\D]))",
                              R"((?i:(a))ss\u00DF[\p{L}a-\u2019])", "(?:ss|st)\u00DF"})
    EXPECT_NO_THROW(Regex::from_pattern(pattern)) << pattern;
}

TEST(Regex, RefusesByNameWhatItWouldMistake) {
  for (const auto& [pattern, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"(\h)", R"(\h)"},
           {R"(\bx)", R"(\b)"},
           {R"((a)\1)", R"(\1)"},
           {R"(\pL)", R"(\p without)"},
           {"(?i)a", "(?i"},
           {"(?m:.)", "(?m"},
           {"(?<n>a)", "(?<"},
           {"[a[b]]", "[ inside"},
           {"[a&&b]", "&&"},
           {"[]a]", "] as the first"},
           {"[a", "[ without ]"},
           {"a{2}+", "}+"},
           {"a{2}?", "}?"},
           {"a{,2}", "{ that is not"},
           {R"(\xE9)", R"(\x)"},
           {"(?i:aSs)", "ss within (?i:...)"},
           {"(?i:f(?:i))", "fi within"},
           {R"(a(?i:(b)s\x74))", "st within"},
           {"(?i:\u00DF)", "beyond ASCII within"},
           {R"((?i:[\uFB06]))", "beyond ASCII within"},
           {R"((?i:[a-\u2019]))", "a range beyond"},
           {R"((?i:[\p{Lu}]+))", R"(\p in a class)"},
           {R"((?i:(a)[^\p{Ll}]))", R"(\p in a class)"},
           {"a\\", "a backslash"},
           {"(a", "parenthesis"},
           {R"(\p{Nope})", "property"},
           {"a***", "quantifier"}}) {
    try {
      Regex::from_pattern(pattern);
      ADD_FAILURE() << pattern << " was accepted";
    } catch (const InputError& error) {
      EXPECT_PRED_FORMAT2(IsSubstring, name, error.what()) << pattern;
    }
  }
}

TEST(Regex, GivesUpOnAPatternThatBacktracksAndNamesIt) {
  for (const auto& [pattern, unit, bytes] :
       std::initializer_list<std::tuple<const char*, const char*, std::size_t>>{
           {"[a]*b|a", "a", 300'000},                               // each match looks at all that is left
           {"a+?b|a", "a", 300'000},                                // the same from left to right
           {R"(\w+\s|\w)", "日", 300'000},                          // and with a class
           {"(?:a|aa)+[bc]", "a", 5000},                            // one match takes forever
           {"(?:a*)*[bc]", "a", 5000},                              // quantifiers inside of one another
           {"(?:[ab]+)+c|(?:a|b)+?d", "ab", 5000},                  // after one alternative the next
           {"(?=(?:a+)+b)a|a", "a", 5000},                          // in what looks ahead
           {"(?>(?:a|a?)+b)|a", "a", 5000},                         // in a group that is not taken up again
           {"a(?<!(?:a|a)(?:a|a)(?:a|a)b)+b|a*b|a", "a", 300'000},  // behind
           {"a{30000}b|a", "a", 300'000},                           // one item that looks far
           {"a.*?b|a", "a", 300'000}}) {
    json file = plain_tokenizer();
    file["pre_tokenizer"] = split_by(pattern);
    const std::string message = refusal_of_text(tokenizer_of(file), repeated(unit, bytes));
    EXPECT_PRED_FORMAT2(IsSubstring, "the tokenizer's regular expression \"", message) << pattern;
    EXPECT_PRED_FORMAT2(IsSubstring, "steps for each byte of the text", message) << pattern;
  }
  json file = plain_tokenizer();
  // An item of the pattern that looks far and finds nothing.
  file["pre_tokenizer"] = split_by("a{30000}b|a|c");
  EXPECT_PRED_FORMAT2(IsSubstring, "steps for each byte",
                      refusal_of_text(tokenizer_of(file), repeated(std::string(29'000, 'a') + "c", 300'000)));
  file = plain_tokenizer();
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "a*b|x"}}}, {"content", "c"}};
  EXPECT_PRED_FORMAT2(IsSubstring, "a*b|x", refusal_of_text(tokenizer_of(file), repeated("a", 300'000)));
}

TEST(Regex, HasOneBudgetForAllPartsOfAText) {
  json file = plain_tokenizer();
  file["pre_tokenizer"] = split_by("(?:a|aa)+[bc]|a+");
  // One part of the text alone is within the budget.
  const std::string part = std::string(24, 'a');
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_EQ(refusal_of_text(tokenizer, part), "nothing");
  EXPECT_PRED_FORMAT2(IsSubstring, "steps for each byte",
                      refusal_of_text(tokenizer, repeated(part + " ", 100'000)));
}

TEST(Regex, EncodesLongTextsByThePatternsOfRealTokenizers) {
  const char* gpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  const char* llama3 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const char* qwen2 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  for (const char* pattern : {gpt2, llama3, qwen2}) {
    for (const char* unit :
         {"a", "A", "日", " ", "\n", " \n", "1", "!", "'s", "\u3000", " word", "e\u0301", "\U0001F43A "}) {
      const std::string text = repeated(unit, 300'000);
      std::string joined;
      for (const std::string& word : words(split_by(pattern), text)) joined += word;
      EXPECT_TRUE(joined == text) << pattern << " " << unit;
    }
  }
}

TEST(Regex, FindsTheSameWordsNextToOthersAsAlone) {
  // Searches look at stretches of 128 bytes. Each of these words lies across the end of a stretch.
  const json pattern = split_by(R"( ?\p{L}+| ?\p{N}{1,3}|\s+(?!\S)|\s+|(?<=b)!+$|(?<!b)!+|!)");
  const Words alone = {" ab", " \u65E5\u672C", " 123", "4", " a", "\n", "\n", "ab", "!", "!", " ", " b", "!",
                       " x"};
  std::string sentence;
  for (const std::string& word : alone) sentence += word;
  EXPECT_EQ(words(pattern, sentence), alone);
  for (std::size_t begin = 0; begin < 128; ++begin) {
    Words expected = {std::string(begin + 1, 'z')};
    for (int copy = 0; copy < 9; ++copy) expected.insert(expected.end(), alone.begin(), alone.end());
    std::string text;
    for (const std::string& word : expected) text += word;
    EXPECT_EQ(words(pattern, text), expected) << begin;
  }
  // A look-ahead sees text beyond the end of a stretch.
  const std::string far = std::string(200, 'a') + "b";
  EXPECT_EQ(words(split_by("x(?=a+b)|a+b|xa"), "x" + far), (Words{"x", far}));
  EXPECT_EQ(words(split_by("a+$|b+"), std::string(500, 'a') + "b"), (Words{std::string(500, 'a'), "b"}));
  EXPECT_EQ(words(split_by("a|$"), std::string(127, 'b') + "c" + std::string(127, 'b')),
            (Words{std::string(127, 'b') + "c" + std::string(127, 'b')}));
}

TEST(Regex, HasNoClassForCharactersNewerThanItsTables) {
  // Of Unicode 14, 15 and 16. Hugging Face's library knows all three; tell docs/trouble.md when this changes.
  std::array<char, 64> version{};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version.data());
  const int unicode = std::atoi(version.data());
  const auto is_letter = [](const std::string& text) {
    return words(split_by(R"(\p{L})"), "-" + text) == Words{"-", text};
  };
  EXPECT_TRUE(is_letter("\U00010570"));
  EXPECT_EQ(is_letter("\U00011F04"), unicode >= 15) << version.data();
  EXPECT_EQ(is_letter("\U00010D4A"), unicode >= 16) << version.data();
}

// Encoding: byte pair encoding

TEST(Bpe, MergesTheLowestRankFirstAndTheLeftmostOfEquals) {
  json file = plain_tokenizer();
  file["model"]["vocab"].update({{"ab", 20}, {"bc", 21}, {"aa", 22}, {"abc", 23}});
  file["model"]["merges"] = merges({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"ab", "c"}});
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_EQ(tokenizer.encode("abc"), (Ids{0, 21}));
  EXPECT_EQ(tokenizer.encode("abab"), (Ids{20, 20}));
  EXPECT_EQ(tokenizer.encode("aaaaa"), (Ids{22, 22, 0}));
  EXPECT_EQ(tokenizer.encode("aab"), (Ids{0, 20}));
}

TEST(Bpe, ReadsMergesAsStringsAndAsPairs) {
  json pairs = plain_tokenizer();
  pairs["model"]["vocab"].update({{"ab", 20}, {"abc", 21}});
  json strings = pairs;
  pairs["model"]["merges"] = merges({{"a", "b"}, {"ab", "c"}});
  strings["model"]["merges"] = {"#version: 0.2", "a b", "ab c"};
  EXPECT_EQ(tokenizer_of(pairs).encode("abcab"), (Ids{21, 20}));
  EXPECT_EQ(tokenizer_of(strings).encode("abcab"), (Ids{21, 20}));
}

TEST(Bpe, MergesTokensWithASpaceInsideInPairForm) {
  json file = plain_tokenizer();
  file["model"]["vocab"].update({{"a ", 20}, {"a b", 21}});
  file["model"]["merges"] = merges({{"a", " "}, {"a ", "b"}});
  EXPECT_EQ(tokenizer_of(file).encode("a bc"), (Ids{21, 2}));
  file["model"]["merges"] = {"a  ", "a  b"};
  EXPECT_PRED_FORMAT2(IsSubstring, "model.merges[0]", refusal(file));
}

TEST(Bpe, RefusesMalformedMergesByTheirPlace) {
  const auto refusal_of_second = [](const json& merge) {
    json file = plain_tokenizer();
    file["model"]["vocab"]["ab"] = 20;
    file["model"]["merges"] = merges({{"a", "b"}});
    file["model"]["merges"].push_back(merge);
    return refusal(file);
  };
  EXPECT_EQ(refusal_of_second("ab"),
            ": model.merges[1]: a merge is two tokens with one space between them, not \"ab\"");
  EXPECT_EQ(refusal_of_second("a b c"),
            ": model.merges[1]: a merge is two tokens with one space between them, not \"a b c\"");
  EXPECT_EQ(refusal_of_second(json::array({"a"})), ": model.merges[1]: a merge has two parts, not 1");
  EXPECT_EQ(refusal_of_second(json::array({"a", "b", "c"})),
            ": model.merges[1]: a merge has two parts, not 3");
  EXPECT_EQ(refusal_of_second(json::array({"a", "x"})), ": model.merges[1]: \"x\" is not in the vocabulary");
  EXPECT_EQ(refusal_of_second(json::array({"b", "a"})), ": model.merges[1]: \"ba\" is not in the vocabulary");
  EXPECT_EQ(refusal_of_second(json::array({"a", 1})), ": model.merges[1][1]: must be a string");
  EXPECT_EQ(refusal_of_second(7), ": model.merges[1]: must be a string");
}

TEST(Bpe, TakesAWholeWordIfMergesAreIgnored) {
  json file = plain_tokenizer();
  file["model"]["vocab"].update({{"ab", 20}, {"abc", 21}});
  file["model"]["merges"] = merges({{"a", "b"}});
  EXPECT_EQ(tokenizer_of(file).encode("abc"), (Ids{20, 2}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokenizer_of(file).encode("abc"), (Ids{21}));
  EXPECT_EQ(tokenizer_of(file).encode("abca"), (Ids{20, 2, 0}));
}

TEST(Bpe, TakesTheLastOfMergesThatAreListedTwice) {
  json file = plain_tokenizer();
  file["model"]["vocab"].update({{"ab", 20}, {"bc", 21}});
  file["model"]["merges"] = merges({{"a", "b"}, {"b", "c"}});
  EXPECT_EQ(tokenizer_of(file).encode("abc"), (Ids{20, 2}));
  file["model"]["merges"] = merges({{"a", "b"}, {"b", "c"}, {"a", "b"}});
  EXPECT_EQ(tokenizer_of(file).encode("abc"), (Ids{0, 21}));
}

TEST(Bpe, LeavesOutACharacterWithoutATokenAndCountsItsBytes) {
  json file = plain_tokenizer();
  file["model"]["vocab"].update({{"ab", 20}});
  file["model"]["merges"] = merges({{"a", "b"}});
  const Encoding woman = tokenizer_of(file).encode_text("a👩b👩");
  EXPECT_EQ(woman.ids, (Ids{20}));  // what it stood between joins
  EXPECT_EQ(woman.bytes_left_out, 8);
  EXPECT_EQ(tokenizer_of(file).encode_text("ab").bytes_left_out, 0);
  EXPECT_EQ(tokenizer_of(file).encode_text("xyz").ids, Ids{});

  // A byte-level vocabulary writes the byte 04 as U+0104: one byte of the text, not two.
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  EXPECT_EQ(tokenizer_of(file)
                .encode_text("a\x04"
                             "b")
                .ids,
            (Ids{20}));
  EXPECT_EQ(tokenizer_of(file)
                .encode_text("a\x04"
                             "b")
                .bytes_left_out,
            1);
  // If a pattern cuts around the byte, nothing joins.
  file["pre_tokenizer"]["use_regex"] = true;
  EXPECT_EQ(tokenizer_of(file)
                .encode_text("a\x04"
                             "b")
                .ids,
            (Ids{0, 1}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokenizer_of(file)
                .encode_text("a\x04"
                             "b")
                .ids,
            (Ids{0, 1}));
  // The text may have half of a character that is spelled as bytes.
  file["model"]["byte_fallback"] = true;
  file["model"]["vocab"].update({{"<0xC4>", 21}});
  EXPECT_EQ(tokenizer_of(file).encode_text("a\x04").bytes_left_out, 1);
  file["model"]["vocab"].update({{"<0x84>", 22}});
  EXPECT_EQ(tokenizer_of(file).encode("a\x04"), (Ids{0, 21, 22}));
}

TEST(Bpe, ReplacesACharacterWithoutATokenByTheUnknownToken) {
  json file = plain_tokenizer();
  file["model"]["unk_token"] = "|";
  EXPECT_EQ(tokenizer_of(file).encode("x👩\n龘a"), (Ids{12, 12, 12, 12, 0}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(tokenizer_of(file).encode("x👩\n龘ay"), (Ids{12, 0, 12}));
  file["model"]["unk_token"] = "<unk>";  // as in GPT-2's own file, of use only once it is needed
  EXPECT_EQ(tokenizer_of(file).encode("ab"), (Ids{0, 1}));
  EXPECT_THROW(tokenizer_of(file).encode("x"), InputError);
}

TEST(Bpe, SpellsCharactersWithoutATokenAsBytes) {
  const Tokenizer llama = reference_tokenizer("llama-gqa");
  const std::string text("👩\0\n龘", 9);
  EXPECT_EQ(llama.encode(text), (Ids{1, 335, 243, 162, 148, 172, 3, 259, 236, 193, 155}));
  EXPECT_EQ(llama.decode(llama.encode(text)), text);
  const Tokenizer qwen = reference_tokenizer("qwen3-tied");
  EXPECT_EQ(qwen.encode(text), (Ids{172, 253, 239, 102, 188, 198, 165, 122, 246}));
  EXPECT_EQ(qwen.decode(qwen.encode(text)), text);
}

TEST(Bpe, LetsBytesOvertakeAnUnknownCharacterAsHuggingFaceDoes) {
  json file = plain_tokenizer();
  file["model"].update({{"unk_token", "|"}, {"byte_fallback", true}});
  file["model"]["vocab"].update({{"<0x0A>", 20}});
  EXPECT_EQ(tokenizer_of(file).encode("x\na"), (Ids{20, 12, 0}));
}

TEST(Bpe, DoesWorkInProportionToTheLengthOfAWord) {
  // "a" doubled again and again: every merge makes new candidates, and the whole word becomes few tokens.
  MergeTable table;
  for (std::int32_t token = 0; token < 16; ++token)
    table.add(token, token, {.rank = token, .result = token + 1});
  for (const std::int64_t length : {1000, 200'000}) {
    std::int64_t pairs_looked_up = 0;
    const Ids merged = merge_all(table, Ids(static_cast<std::size_t>(length), 0), &pairs_looked_up);
    ASSERT_LE(pairs_looked_up, 6 * length);
    std::int64_t characters = 0;
    for (const std::int32_t token : merged) characters += std::int64_t{1} << token;
    EXPECT_EQ(characters, length);
    EXPECT_TRUE(std::is_sorted(merged.rbegin(), merged.rend()));
  }
}

TEST(Tokenizer, EncodesLongTextsWithoutASpace) {
  for (const char* name : {"llama-gqa", "qwen3-tied"}) {
    const Tokenizer tokenizer = reference_tokenizer(name);
    for (const char* unit : {"a", "👩", " ", "1", "\n", "e\u0301\u0323", "<|"}) {
      const std::string text = repeated(unit, 200'000);
      const Ids ids = tokenizer.encode(text, false);
      EXPECT_EQ(tokenizer.encode(tokenizer.decode(ids), false), ids) << name << ": " << unit;
    }
  }
}

// Encoding: the rest

// A text that is too long is known by its bytes, before it is encoded.
TEST(Tokenizer, KnowsHowManyBytesATokenStandsForAtMost) {
  for (const std::string& name : tiny_checkpoints()) {
    const Tokenizer tokenizer = reference_tokenizer(name);
    const std::optional<std::int64_t> most = tokenizer.most_bytes_of_a_token();
    ASSERT_TRUE(most) << name;
    for (std::string text : {"the wolf", " ", "<|endoftext|>", "</s>", "\xF0\x9F\x90\xBA",
                             "\u212A",                           // the sign for kelvin, K in a normal form
                             "\u03B1\u0313\u0300\u0345",         // one character in a normal form
                             "\u1112\u1161\u11AB", "\u0301"}) {  // of three; and half of one
      for (int doubled = 0; doubled < 6; ++doubled) text += text;
      EXPECT_GE(std::ssize(tokenizer.encode(text, /*add_special=*/false)) * *most, std::ssize(text)) << text;
    }
  }
  EXPECT_EQ(reference_tokenizer("llama-mha").most_bytes_of_a_token(), 16);
  EXPECT_EQ(reference_tokenizer("qwen2-bias").most_bytes_of_a_token(), 16 * 13) << "NFC and <|endoftext|>";
}

TEST(Tokenizer, KnowsNoSuchBoundWhereATokenMayStandForAnyLength) {
  json file = read_json(checkpoint_folder("qwen2-bias") / "tokenizer.json");
  const auto most = [](const json& file) { return tokenizer_of(file).most_bytes_of_a_token(); };
  ASSERT_TRUE(most(file));
  const auto changed = [&](const char* place, const json& value) {
    json other = file;
    other[json::json_pointer(place)] = value;
    return other;
  };
  EXPECT_FALSE(most(changed("/added_tokens/0/rstrip", true)));
  EXPECT_FALSE(most(changed("/added_tokens/0/lstrip", true)));
  const json spaces = {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", " "}};
  EXPECT_FALSE(most(changed("/normalizer", spaces)));
  const auto replace = [&](const char* pattern, const char* content) {
    return most(changed("/normalizer",
                        {{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}}));
  };
  EXPECT_EQ(replace("a", "bcd"), 13);
  EXPECT_EQ(replace("abc", "d"), 3 * 13);
  EXPECT_EQ(replace("abc", "de"), 2 * 13);
  EXPECT_EQ(replace("", "d"), 13);
  EXPECT_EQ(replace("a", ""), std::nullopt);
  json removes = file;
  removes["pre_tokenizer"]["pretokenizers"].push_back(
      {{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Removed"}});
  EXPECT_FALSE(most(removes));
  EXPECT_FALSE(most(plain_tokenizer())) << "characters without a token are not counted";
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8AndSaysWhere) {
  const Tokenizer tokenizer = reference_tokenizer("qwen3-tied");
  for (const auto& [text, offset] :
       std::initializer_list<std::pair<std::string, const char*>>{{"ab\xFF", "byte 3"},
                                                                  {"é\xE2\x82", "byte 3"},
                                                                  {"\xC0\x80", "byte 1"},
                                                                  {"a\xED\xA0\x80", "byte 2"}}) {
    try {
      tokenizer.encode(text);
      ADD_FAILURE() << "accepted";
    } catch (const InputError& error) {
      EXPECT_PRED_FORMAT2(IsSubstring, offset, error.what());
    }
  }
}

TEST(Tokenizer, PutsTheTemplatesTokensAroundTheText) {
  json file = plain_tokenizer();
  const json template_a = {{"type", "TemplateProcessing"},
                           {"single",
                            {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                             {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                             {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
                           {"special_tokens", {{"<s>", {{"ids", {30, 31}}}}, {"</s>", {{"ids", {32}}}}}}};
  file["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}, template_a}}};
  EXPECT_EQ(tokenizer_of(file).encode("a"), (Ids{30, 31, 0, 32}));
  EXPECT_EQ(tokenizer_of(file).encode(""), (Ids{30, 31, 32}));
  EXPECT_EQ(tokenizer_of(file).encode("a", false), (Ids{0}));
  file["post_processor"]["processors"].push_back(template_a);
  EXPECT_EQ(refusal(file), ": post_processor.processors[2]: a second TemplateProcessing is not supported");
}

TEST(Tokenizer, SaysWhichTokenATextAndTheTemplateBothBeginWith) {
  const Tokenizer llama = reference_tokenizer("llama-gqa");
  EXPECT_EQ(llama.encode_text("<s>user").doubled, 1);
  EXPECT_EQ(llama.encode_text("<s>user", false).doubled, std::nullopt);
  EXPECT_EQ(llama.encode_text("user<s>").doubled, std::nullopt);
  EXPECT_EQ(llama.encode_text("").doubled, std::nullopt);
  EXPECT_EQ(reference_tokenizer("qwen3-tied").encode_text("<|im_start|>user").doubled, std::nullopt);
}

TEST(Tokenizer, RefusesToLengthenATextAgainAndAgain) {
  const json doubling = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  for (const auto& [component, list, doubles] :
       std::initializer_list<std::tuple<const char*, const char*, json>>{
           {"normalizer", "normalizers", doubling}, {"pre_tokenizer", "pretokenizers", bytes}}) {
    json file = plain_tokenizer();
    file[component] = {{"type", "Sequence"}, {list, json::array({doubles})}};
    EXPECT_EQ(refusal_of_text(tokenizer_of(file), "a\u0104"), "nothing") << component;
    file[component][list] = std::vector<json>(40, doubles);
    EXPECT_PRED_FORMAT2(IsSubstring, "tokenizer.json makes the text longer than",
                        refusal_of_text(tokenizer_of(file), "a\u0104"))
        << component;
  }
  // In one go.
  json file = plain_tokenizer();
  file["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100'000, 'b')}};
  EXPECT_NE(refusal_of_text(tokenizer_of(file), std::string(1000, 'a')), "nothing");
  file = plain_tokenizer();
  const json text = {{"Sequence", {{"id", "A"}}}};
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", std::vector<json>(10'000, text)},
                            {"special_tokens", json::object()}};
  EXPECT_EQ(refusal_of_text(tokenizer_of(file), "a"), "nothing");
  EXPECT_NE(refusal_of_text(tokenizer_of(file), std::string(100'000, 'a')), "nothing");
}

TEST(Tokenizer, StopsWhereNobodyWaitsForTheTextAnyMore) {
  std::stop_source nobody_waits;
  const Tokenizer tokenizer = reference_tokenizer("qwen3-tied");
  EXPECT_EQ(tokenizer.encode_text("a", true, nobody_waits.get_token()).ids, (Ids{64}));
  nobody_waits.request_stop();
  EXPECT_THROW(tokenizer.encode_text("a", true, nobody_waits.get_token()), StoppedByRequest);

  // In the middle of a match that would spend the whole budget.
  json file = plain_tokenizer();
  file["pre_tokenizer"] = split_by("(?:a|aa)+[bc]");
  const Tokenizer slow = tokenizer_of(file);
  std::stop_source later;
  std::thread stopping([&later] { later.request_stop(); });
  EXPECT_ANY_THROW(slow.encode_text(std::string(1 << 20, 'a'), true, later.get_token()));
  stopping.join();
}

TEST(Tokenizer, IgnoresTruncationAndPaddingAsTransformersDoes) {
  json file = plain_tokenizer();
  file["truncation"] = {
      {"max_length", 1}, {"strategy", "LongestFirst"}, {"stride", 0}, {"direction", "Right"}};
  file["padding"] = {{"strategy", {{"Fixed", 8}}}, {"direction", "Right"}, {"pad_id", 0}};
  EXPECT_EQ(tokenizer_of(file).encode("abc"), (Ids{0, 1, 2}));
}

TEST(Tokenizer, GivesTheSameIdsOnSeveralThreads) {
  const Tokenizer tokenizer = reference_tokenizer("qwen3-tied");
  const std::string text = repeated("Once upon a time, <|im_start|> there's 👩 42\n", 20'000);
  const Ids expected = tokenizer.encode(text);
  std::vector<Ids> found(4);
  {
    std::vector<std::jthread> threads;
    for (Ids& ids : found) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  }
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

// Decoding

TEST(Decoding, ShowsBytesThatFormNoCharacterAsHuggingFaceDoes) {
  // Byte-level decoders put U+FFFD as Unicode recommends. Byte fallback gives up a whole run of bytes.
  const struct {
    std::string byte_level;
    Ids byte_level_ids;
    std::string byte_fallback;
    Ids byte_fallback_ids;
  } cases[] = {
      {"A\uFFFDB", {32, 187, 33}, "\uFFFD\uFFFD\uFFFD", {68, 258, 69}},
      {"\uFFFD", {172, 253, 239}, "\uFFFD\uFFFD\uFFFD", {243, 162, 148}},
      {"\uFFFDA", {172, 253, 32}, "\uFFFD\uFFFD\uFFFD", {243, 162, 68}},
      {"\uFFFD\u20AC",
       {158, 224, 158, 224, 105},
       "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD",
       {229, 133, 229, 133, 175}},
      {"\uFFFD\uFFFD\uFFFD", {169, 254, 222}, "\uFFFD\uFFFD\uFFFD", {240, 163, 131}},
      {"\uFFFD\uFFFD", {124, 222}, "\uFFFD\uFFFD", {195, 131}},
      {"\uFFFD\uFFFD\uFFFD\uFFFD", {176, 238, 222, 222}, "\uFFFD\uFFFD\uFFFD\uFFFD", {247, 147, 131, 131}},
      {"\u20AC\uFFFD", {158, 224, 105, 187}, "\uFFFD\uFFFD\uFFFD\uFFFD", {229, 133, 175, 258}},
      {"\U0001F469\uFFFD",
       {172, 253, 239, 102, 158},
       "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD",
       {243, 162, 148, 172, 229}},
  };
  const Tokenizer qwen = reference_tokenizer("qwen3-tied");
  const Tokenizer llama = reference_tokenizer("llama-gqa");
  for (const auto& one : cases) {
    EXPECT_EQ(qwen.decode(one.byte_level_ids), one.byte_level);
    EXPECT_EQ(stream(qwen, one.byte_level_ids), one.byte_level);
    EXPECT_EQ(llama.decode(one.byte_fallback_ids), one.byte_fallback);
    EXPECT_EQ(stream(llama, one.byte_fallback_ids), one.byte_fallback);
  }
}

TEST(Decoding, LeavesOutSpecialTokensUnlessAsked) {
  const Tokenizer qwen = reference_tokenizer("qwen3-tied");
  const Ids ids = qwen.encode("<|im_start|>user\nhi<|im_end|>");
  EXPECT_EQ(qwen.decode(ids), "user\nhi");
  EXPECT_EQ(qwen.decode(ids, false), "<|im_start|>user\nhi<|im_end|>");
}

TEST(Decoding, GivesNothingForIdsWithoutAToken) {
  for (const std::string& name : tiny_checkpoints()) {
    const Tokenizer tokenizer = reference_tokenizer(name);
    const Ids none = {768, 1000, -1, std::numeric_limits<std::int32_t>::min(),
                      std::numeric_limits<std::int32_t>::max()};
    EXPECT_EQ(tokenizer.decode(none, false), "");
    EXPECT_EQ(stream(tokenizer, none), "");
    // Not even between the bytes of a character.
    Ids ids = tokenizer.encode("👩", false);
    ids.insert(ids.end() - 1, 768);
    EXPECT_EQ(tokenizer.decode(ids), "👩");
  }
}

TEST(Decoding, RunsTheStepsOfAnyDecoder) {
  const auto decode = [](const json& decoder, const Words& tokens) {
    TokenDecoder steps(decoder.is_null() ? std::nullopt
                                         : std::optional(JsonNode(decoder, "test", "decoder")));
    std::string text;
    for (const std::string& token : tokens) text += steps.push(token);
    return text + steps.finish();
  };
  const auto strip = [](const char* content, int start, int stop) {
    return json{{"type", "Strip"}, {"content", content}, {"start", start}, {"stop", stop}};
  };
  const json fuse = {{"type", "Fuse"}};
  const json fallback = {{"type", "ByteFallback"}};
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  const auto sequence = [](const json& decoders) {
    return json{{"type", "Sequence"}, {"decoders", decoders}};
  };
  const auto metaspace = [](const char* scheme) {
    return json{{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}};
  };

  EXPECT_EQ(decode(nullptr, {"a", "b", "c"}), "a b c");
  EXPECT_EQ(decode(strip("x", 1, 1), {"xxax", "x", "xx", "bxx"}), "xabx");
  EXPECT_EQ(decode(sequence({fuse, strip("x", 1, 2)}), {"xx", "ax", "x", "x"}), "xax");
  EXPECT_EQ(decode(sequence({fuse, strip("x", 1, 2)}), {"x", "ax", "bx"}), "axb");
  EXPECT_EQ(decode(sequence({fuse, replace}), {"▁a", "▁"}), " a ");
  EXPECT_EQ(decode(metaspace("always"), {"▁a▁", "▁b"}), "a b");
  EXPECT_EQ(decode(metaspace("never"), {"▁a▁", "▁b"}), " a  b");
  EXPECT_EQ(decode(fallback, {"<0xe2>", "<0x82>", "<0xAC>", "<0xG0>", "<0xFF>"}), "€<0xG0>\uFFFD");
  EXPECT_EQ(decode({{"type", "ByteLevel"}}, {"Ġa", "日Ġ", "Ã", "©"}), " a日Ġé");
}

TEST(Decoding, RefusesToLengthenATextAgainAndAgain) {
  const auto replace = [](const json& pattern, const std::string& content) {
    return json{{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
  };
  json file = plain_tokenizer();
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders", std::vector<json>(9, replace({{"String", "a"}}, "aa"))}};
  EXPECT_EQ(tokenizer_of(file).decode(Ids{0}), std::string(512, 'a'));
  file["decoder"]["decoders"].push_back(replace({{"String", "ab"}}, "ba"));
  EXPECT_EQ(refusal(file), "nothing");
  file["decoder"]["decoders"].push_back(replace({{"String", "a"}}, "aa"));
  const std::string message = ": decoder: its replacements can make a text more than 1000 times as long";
  EXPECT_EQ(refusal(file), message);
  file["decoder"] = replace({{"Regex", "x*"}}, std::string(1000, 'b'));
  EXPECT_EQ(refusal(file), message);
}

/// The message of a decoder that fails at these ids; "nothing" if it gives their text.
std::string failure(const Tokenizer& tokenizer, const Ids& ids) {
  try {
    return tokenizer.decode(ids), "nothing";
  } catch (const RunError& error) {
    return error.what();
  }
}

TEST(Decoding, NamesTheDecoderAndTheTokenThatItFailsAt) {
  const auto replace = [](const json& pattern) {
    return json{{"type", "Replace"}, {"pattern", pattern}, {"content", std::string(500, 'b')}};
  };
  const std::string longer = "tokenizer.json makes the text longer than 78336 bytes, 32 times what it was; ";
  const std::string slower =
      "the tokenizer's regular expression \"(c+)+$\" takes more than 256 steps for each byte of the text; ";
  const std::string remedy = "give another tokenizer.json", fails = "tokenizer.json's decoder fails at ";
  json file = plain_tokenizer();
  file["model"]["vocab"] = {{"d", 0}, {std::string(400, 'a'), 1}, {std::string(40, 'c') + "!", 2}};
  file["decoder"] = replace({{"String", "a"}});
  EXPECT_EQ(failure(tokenizer_of(file), {0, 2}), "nothing");
  EXPECT_EQ(failure(tokenizer_of(file), {0, 1, 0}), fails + "token 1: " + longer + remedy);
  file["decoder"] = replace({{"Regex", "(c+)+$"}});
  EXPECT_EQ(failure(tokenizer_of(file), {0, 1}), "nothing");
  EXPECT_EQ(failure(tokenizer_of(file), {0, 2, 0}), fails + "token 2: " + slower + remedy);
  file["decoder"] = {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, replace({{"String", "a"}})}}};
  const Tokenizer fusing = tokenizer_of(file);
  EXPECT_EQ(failure(fusing, {1, 0}), fails +
                                         "the end of the text: tokenizer.json makes the text longer than " +
                                         "78368 bytes, 32 times what it was; " + remedy);
  EXPECT_EQ(failure(fusing, {0}), "nothing");
}

TEST(StreamDecoder, GoesOnAfterATokenThatItsDecoderFailsAt) {
  json file = plain_tokenizer();
  file["model"]["vocab"] = {{"d", 0}, {std::string(400, 'a'), 1}};
  const json replace = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(500, 'b')}};
  file["decoder"] = replace;
  const Tokenizer tokenizer = tokenizer_of(file);
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(0), "d");
  EXPECT_THROW(decoder.push(1), RunError);
  EXPECT_EQ(decoder.push(0), "d");
  EXPECT_EQ(decoder.finish(), "");
  file["decoder"] = {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, replace}}};
  const Tokenizer fusing = tokenizer_of(file);
  StreamDecoder of_a_whole(fusing);
  EXPECT_EQ(of_a_whole.push(1), "");
  EXPECT_THROW(of_a_whole.finish(), RunError);
  EXPECT_EQ(of_a_whole.push(0), "");
  EXPECT_EQ(of_a_whole.finish(), "d") << "the next id begins a new text";
  file["model"]["vocab"] = {{"\u2581d", 0}, {std::string(400, 'a'), 1}};
  const json metaspace = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  file["decoder"]["decoders"].insert(file["decoder"]["decoders"].begin(), metaspace);
  const Tokenizer without_first_space = tokenizer_of(file);
  StreamDecoder texts(without_first_space);
  EXPECT_EQ(texts.push(1), "");
  EXPECT_THROW(texts.finish(), RunError);
  EXPECT_EQ(texts.push(0), "");
  EXPECT_EQ(texts.finish(), "d") << "its first token drops the space again";
}

TEST(StreamDecoder, NeverCutsACharacter) {
  const std::string text = "👩‍👩‍👧‍👦日";
  for (const char* name : {"llama-gqa", "qwen3-tied"}) {
    const Tokenizer tokenizer = reference_tokenizer(name);
    const Ids ids = tokenizer.encode(text, false);
    EXPECT_GT(ids.size(), 20U);
    EXPECT_EQ(stream(tokenizer, ids), text);
  }
}

TEST(StreamDecoder, ShowsACharacterAsSoonAsItIsWhole) {
  const Tokenizer qwen = reference_tokenizer("qwen3-tied");
  StreamDecoder decoder(qwen);
  EXPECT_EQ(decoder.push(172), "");
  EXPECT_EQ(decoder.push(253), "");
  EXPECT_EQ(decoder.push(239), "");
  EXPECT_EQ(decoder.push(102), "👩");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, ShowsBadBytesAsSoonAsNothingCanSaveThem) {
  const Tokenizer qwen = reference_tokenizer("qwen3-tied");
  StreamDecoder byte_level(qwen);
  EXPECT_EQ(byte_level.push(187), "\uFFFD");
  EXPECT_EQ(byte_level.push(172), "");
  EXPECT_EQ(byte_level.push(32), "\uFFFDA");
  EXPECT_EQ(byte_level.push(172), "");
  EXPECT_EQ(byte_level.finish(), "\uFFFD");

  const Tokenizer llama = reference_tokenizer("llama-gqa");
  StreamDecoder byte_fallback(llama);
  EXPECT_EQ(byte_fallback.push(229), "");  // E2 82 AC, which FF may still spoil
  EXPECT_EQ(byte_fallback.push(133), "");
  EXPECT_EQ(byte_fallback.push(175), "");
  EXPECT_EQ(byte_fallback.push(258), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(byte_fallback.push(68), "\uFFFD");
  EXPECT_EQ(byte_fallback.push(335), " ");
}

TEST(StreamDecoder, DropsTheFirstSpaceOnceAndNotPerPiece) {
  const Tokenizer llama = reference_tokenizer("llama-gqa");
  StreamDecoder decoder(llama);
  EXPECT_EQ(decoder.push(1), "");
  EXPECT_EQ(decoder.push(335), "");
  EXPECT_EQ(decoder.push(387), " a ");
  EXPECT_EQ(decoder.push(335), " ");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push(335), "");  // a new text

  // A byte-level tokenizer adds no space, and drops none.
  const Tokenizer qwen = reference_tokenizer("qwen3-tied");
  EXPECT_EQ(stream(qwen, {220, 46}), " O");
}

TEST(StreamDecoder, BeginsANewTextAfterTheEnd) {
  json file = plain_tokenizer();
  file.erase("decoder");  // then a space stands between tokens, and none before the first
  const Tokenizer tokenizer = tokenizer_of(file);
  StreamDecoder decoder(tokenizer);
  for (int text = 0; text < 2; ++text) {
    EXPECT_EQ(decoder.push(0), "a");
    EXPECT_EQ(decoder.push(1), " b");
    EXPECT_EQ(decoder.finish(), "");
  }
}

TEST(StreamDecoder, AgreesWithDecodeOnRandomIds) {
  std::mt19937 random(1);
  for (const std::string& name : tiny_checkpoints()) {
    const Tokenizer tokenizer = reference_tokenizer(name);
    std::uniform_int_distribution<std::int32_t> any(-2, 775), bytes(0, 260), length(0, 24), coin(0, 1);
    for (int round = 0; round < 2000; ++round) {
      Ids ids(static_cast<std::size_t>(length(random)));
      for (std::int32_t& id : ids) id = coin(random) == 0 ? any(random) : bytes(random);
      const bool skip_special = coin(random) == 0;
      ASSERT_EQ(stream(tokenizer, ids, skip_special), tokenizer.decode(ids, skip_special))
          << testing::PrintToString(ids);
    }
  }
}

TEST(StreamDecoder, SurvivesAMoveOfItsTokenizer) {
  Tokenizer first = reference_tokenizer("llama-gqa");
  StreamDecoder decoder(first);
  EXPECT_EQ(decoder.push(335), "");
  const Tokenizer second = std::move(first);
  StreamDecoder moved = std::move(decoder);
  EXPECT_EQ(moved.push(387), " a ");
}

// Files that are refused

TEST(TokenizerFile, MustExist) {
  const std::filesystem::path nowhere = std::filesystem::path(SOURCE_DIR) / "tests/reference";
  try {
    const Tokenizer tokenizer(nowhere);
    ADD_FAILURE() << "accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.what(), (nowhere / "tokenizer.json").string() +
                                ": no such file; texts need it, token ids (--ids) do not");
  }
}

TEST(TokenizerFile, IsRefusedByTheNameOfWhatItAsksFor) {
  const auto with = [](const char* pointer, const json& value) {
    json file = plain_tokenizer();
    file[json::json_pointer(pointer)] = value;
    return refusal(file);
  };
  EXPECT_EQ(with("/version", "2.0"), ": version: \"2.0\" is not supported, only \"1.0\"");
  EXPECT_EQ(with("/normalizer", {{"type", "Lowercase"}}),
            ": normalizer: normalizer \"Lowercase\" is not supported");
  EXPECT_EQ(with("/normalizer",
                 {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Precompiled"}}}}}),
            ": normalizer.normalizers[1]: normalizer \"Precompiled\" is not supported");
  EXPECT_EQ(with("/pre_tokenizer", {{"type", "BertPreTokenizer"}}),
            ": pre_tokenizer: pre-tokenizer \"BertPreTokenizer\" is not supported");
  EXPECT_EQ(
      with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "\\h"}}}, {"behavior", "Isolated"}}),
      ": pre_tokenizer.pattern: \\h in a regular expression is not supported");
  EXPECT_EQ(
      with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Glob", "*"}}}, {"behavior", "Isolated"}}),
      ": pre_tokenizer.pattern: must have a \"String\" or a \"Regex\"");
  EXPECT_EQ(
      with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", "Dropped"}}),
      ": pre_tokenizer.behavior: \"Dropped\" is not supported");
  EXPECT_EQ(with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "__"}}),
            ": pre_tokenizer.replacement: must be one character");
  EXPECT_EQ(with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}}),
            ": pre_tokenizer.prepend_scheme: \"last\" is not supported");
  EXPECT_EQ(with("/pre_tokenizer", {{"type", "Metaspace"},
                                    {"replacement", "_"},
                                    {"prepend_scheme", "first"},
                                    {"add_prefix_space", false}}),
            ": pre_tokenizer: add_prefix_space false contradicts the prepend_scheme");
  EXPECT_EQ(with("/model/type", "Unigram"), ": model: type \"Unigram\" is not supported, only \"BPE\"");
  EXPECT_EQ(with("/model/dropout", 0.1),
            ": model.dropout: merging at random is not supported, only null or 0");
  EXPECT_EQ(with("/model/continuing_subword_prefix", "##"),
            ": model.continuing_subword_prefix: not supported, only null or \"\"");
  EXPECT_EQ(with("/model/end_of_word_suffix", "</w>"),
            ": model.end_of_word_suffix: not supported, only null or \"\"");
  EXPECT_EQ(with("/post_processor", {{"type", "BertProcessing"}}),
            ": post_processor: post-processor \"BertProcessing\" is not supported");
  EXPECT_EQ(with("/decoder", {{"type", "WordPiece"}}), ": decoder: decoder \"WordPiece\" is not supported");
  EXPECT_EQ(with("/decoder", {{"type", "Strip"}, {"content", ""}, {"start", 1}, {"stop", 0}}),
            ": decoder.content: must be one character");
}

TEST(TokenizerFile, IsRefusedWhenItContradictsItself) {
  json file = plain_tokenizer();
  file["model"]["vocab"]["x"] = 3;
  EXPECT_EQ(refusal(file), ": model.vocab: \"d\" and \"x\" have the same id 3");
  file = plain_tokenizer();
  file["added_tokens"] = json::array({added_token("<a>", 15), added_token("<b>", 15)});
  EXPECT_EQ(refusal(file), ": added_tokens[1]: \"<b>\" and \"<a>\" have the same id 15");
  file["added_tokens"] = json::array({added_token("<a>", 2)});
  EXPECT_EQ(refusal(file), ": added_tokens[0]: \"<a>\" and \"c\" have the same id 2");
  file = plain_tokenizer();
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
                            {"special_tokens", json::object()}};
  EXPECT_EQ(refusal(file), ": post_processor.special_tokens: lacks \"<s>\"");
  file["post_processor"]["single"] = {{{"Sequence", {{"id", "B"}}}}};
  EXPECT_EQ(refusal(file),
            ": post_processor.single[0].Sequence.id: must be \"A\" in a template for a single text");
}

TEST(TokenizerFile, IsRefusedForIdsOutOfRange) {
  for (const json& id :
       {json(-1), json(2147483648), json(18446744073709551615U), json(1.0), json("1"), json(nullptr)}) {
    json file = plain_tokenizer();
    file["model"]["vocab"]["x"] = id;
    EXPECT_EQ(refusal(file), ": model.vocab[\"x\"]: must be a token id, 0 to 2147483647") << id;
    file = plain_tokenizer();
    file["added_tokens"] = json::array({added_token("<a>", 15)});
    file["added_tokens"][0]["id"] = id;
    EXPECT_PRED_FORMAT2(IsSubstring, "added_tokens[0]", refusal(file)) << id;
  }
}

TEST(TokenizerFile, IsRefusedInOneLineWhateverItContains) {
  EXPECT_PRED_FORMAT2(IsSubstring, "line 1, column 1", refusal(std::string()));
  EXPECT_PRED_FORMAT2(IsSubstring, "line 2, column 5", refusal(std::string("{\n\"a\":\xFF}")));
  EXPECT_EQ(refusal(std::string("[1]")), ": must be an object");
  EXPECT_EQ(refusal(std::string("null")), ": must be an object");
  EXPECT_EQ(refusal(std::string("{}")), ": lacks \"model\"");
  EXPECT_PRED_FORMAT2(IsSubstring, "line 1, column 2", refusal(std::string("{1: 2}")));
  EXPECT_EQ(refusal(std::string(R"({"model": {"vocab": {}, "merges": []}})")),
            ": model.vocab: must be an object with tokens");
  EXPECT_EQ(refusal(std::string(R"({"model": {"vocab": [], "merges": []}})")),
            ": model.vocab: must be an object with tokens");
  EXPECT_EQ(refusal(std::string(R"({"model": {"vocab": {"a": 0}, "merges": {}}})")),
            ": model.merges: must be an array");
  EXPECT_EQ(refusal(std::string(R"({"normalizer": {"type": 3}, "model": {}})")),
            ": normalizer.type: must be a string");
  EXPECT_PRED_FORMAT2(
      IsSubstring, R"("\nxxx)",
      refusal(std::string(R"({"normalizer": {"type": "\n)" + std::string(5000, 'x') + R"("}})")));
}

TEST(TokenizerFile, NamesThePlaceOfAWrongPatternOnce) {
  const auto refusal_with = [](const char* field, const char* type, const json& pattern) {
    json file = plain_tokenizer();
    file[field] = {{"type", type}, {"pattern", pattern}, {"behavior", "Isolated"}, {"content", ""}};
    return refusal(file);
  };
  for (const auto& [field, type] : {std::pair("normalizer", "Replace"), std::pair("pre_tokenizer", "Split"),
                                    std::pair("decoder", "Replace")}) {
    const std::string place = std::string(": ") + field + ".pattern";
    EXPECT_EQ(refusal_with(field, type, " "), place + ": must be an object");
    EXPECT_EQ(refusal_with(field, type, {{"String", 1}}), place + ".String: must be a string");
    EXPECT_EQ(refusal_with(field, type, {{"Regex", 1}}), place + ".Regex: must be a string");
    EXPECT_EQ(refusal_with(field, type, {{"Glob", "*"}}), place + ": must have a \"String\" or a \"Regex\"");
    EXPECT_EQ(refusal_with(field, type, {{"Regex", R"(\h)"}}),
              place + ": \\h in a regular expression is not supported");
    EXPECT_PRED_FORMAT2(IsSubstring, place + ": not a regular expression: ",
                        refusal_with(field, type, {{"String", std::string(100'000, 'a')}}));
  }
}

TEST(TokenizerFile, IsQuotedInWholeCharacters) {
  for (const char* front : {"", "x", "xx", "xxx"}) {
    json file = plain_tokenizer();
    file["normalizer"] = {{"type", front + repeated("\U0001F43A", 400)}};
    const std::string message = refusal(file);
    EXPECT_PRED_FORMAT2(IsSubstring, "\U0001F43A\"...", message);
    EXPECT_PRED_FORMAT2(IsNotSubstring, "\uFFFD", message);
    EXPECT_LT(message.size(), 200U);
  }
}

TEST(TokenizerFile, IsRefusedWithAFieldGivenTwice) {
  const std::string model = R"("model": {"vocab": {"a": 0}, "merges": []})";
  EXPECT_EQ(refusal("{" + model + "}"), "nothing");
  EXPECT_EQ(refusal("{" + model + "," + model + "}"), ": \"model\" is given twice");
  EXPECT_EQ(refusal("{" + model + R"(, "normalizer": {"type": "NFC", "type": "NFD"}})"),
            ": \"type\" is given twice");
  EXPECT_EQ(refusal("{" + model + R"(, "added_tokens": [{"id": 1, "id": 2}]})"), ": \"id\" is given twice");
  EXPECT_EQ(refusal(std::string(R"({"model": {"vocab": {"a": 0, "a": 1}, "merges": []}})")),
            ": \"a\" is given twice");
}

TEST(TokenizerFile, MayBeNestedNoDeeperThanAnyIs) {
  const std::string deep(100'000, '[');
  EXPECT_PRED_FORMAT2(IsSubstring, "nested", refusal(deep));
  EXPECT_PRED_FORMAT2(IsSubstring, "nested", refusal(deep + std::string(100'000, ']')));

  json file = plain_tokenizer();
  json& normalizer = file["normalizer"];
  normalizer = {{"type", "NFC"}};
  const auto wrap = [&] { normalizer = {{"type", "Sequence"}, {"normalizers", json::array({normalizer})}}; };
  for (int depth = 0; depth < 8; ++depth) wrap();
  EXPECT_EQ(refusal(file), "nothing");
  wrap();
  EXPECT_PRED_FORMAT2(IsSubstring, "sequences nested more than 8 deep", refusal(file));
}

TEST(TokenizerFile, IsRefusedOrWorksWhateverIsChangedInIt) {
  // Replaces every value of a real file, one at a time, by values of other types.
  json file = read_json(checkpoint_folder("llama-gqa") / "tokenizer.json");
  json& model = file["model"];
  model["merges"].erase(model["merges"].begin() + 3, model["merges"].end());
  json vocab;
  for (const char* token : {"<unk>", "<s>", "</s>", "h", "e", "he", "▁", "t", "▁t", "a", "▁a"})
    vocab[token] = model["vocab"][token];
  model["vocab"] = vocab;
  const json flat = file.flatten();
  int refused = 0;
  for (const auto& [pointer, original] : flat.items()) {
    for (const json& value : {json(nullptr), json(-1), json(1e300), json(true), json("\x01"),
                              json::array({json::array()}), json{{"type", "Sequence"}}}) {
      json changed = file;
      changed[json::json_pointer(pointer)] = value;
      if (refusal(changed) != "nothing") {
        ++refused;
        continue;
      }
      const Tokenizer tokenizer = tokenizer_of(changed);
      try {
        tokenizer.decode(tokenizer.encode("<s>he the a\n"));
      } catch (const InputError&) {
      }
    }
  }
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace kvcache
