// Stop strings: an output ends at the same place however its text is cut into pieces, and no text is told
// that may still become a stop string.
#include "common/engine/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "common/tokenizer/utf8.h"

namespace kvcache {
namespace {

struct Output {
  std::string text;
  bool stopped;
  bool operator==(const Output&) const = default;
};
void PrintTo(const Output& output, std::ostream* out) {
  *out << '"' << output.text << "\" stopped: " << output.stopped;
}

/// The output of `pieces`, each of which must leave whole characters.
Output output_of(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings filter(stops);
  std::string text;
  for (const std::string& piece : pieces) {
    const std::string certain = filter.push(piece);
    EXPECT_FALSE(find_invalid_utf8(certain)) << "cut within a character";
    text += certain;
  }
  const bool stopped = filter.stopped();
  text += filter.finish();
  return {text, stopped};
}

/// The rule at its plainest: letter by letter, the first stop string that is complete ends the text.
Output by_the_rule(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopStrings, EndTheOutputBeforeThem) {
  EXPECT_EQ(output_of({"END"}, {"one two END three"}), (Output{"one two ", true}));
  EXPECT_EQ(output_of({"END"}, {"one two"}), (Output{"one two", false}));
  EXPECT_EQ(output_of({}, {"one", "two"}), (Output{"onetwo", false}));
}

TEST(StopStrings, AreFoundAcrossPieces) {
  EXPECT_EQ(output_of({"END"}, {"one E", "N", "D three"}), (Output{"one ", true}));
  EXPECT_EQ(output_of({"END"}, {"one E", "N", "D", " three"}), (Output{"one ", true}));
}

TEST(StopStrings, HoldBackWhatMayBecomeOneAndNoMore) {
  const std::vector<std::string> stops{"aab"};
  StopStrings filter(stops);
  EXPECT_EQ(filter.push("xa"), "x");
  EXPECT_EQ(filter.push("a"), "");
  EXPECT_EQ(filter.push("a"), "a") << "the last two letters may still become one";
  EXPECT_EQ(filter.push("c"), "aac");
  EXPECT_EQ(filter.push("a"), "");
  EXPECT_EQ(filter.finish(), "a") << "what was held back belongs to the output";
}

TEST(StopStrings, TheFirstToBeCompleteWinsAndOfThoseTheLongest) {
  EXPECT_EQ(output_of({"abcd", "bc"}, {"xabcd"}), (Output{"xa", true}));
  EXPECT_EQ(output_of({"c", "abc"}, {"xabcd"}), (Output{"x", true}));
}

TEST(StopStrings, NeverCutACharacter) {
  // Both letters begin with the same byte, and so do both emoji with the same three.
  EXPECT_EQ(output_of({"è!"}, {"é", "è", "è", "!"}), (Output{"éè", true}));
  EXPECT_EQ(output_of({"😁"}, {"a😀", "😀", "😁b"}), (Output{"a😀😀", true}));
}

TEST(StopStrings, SayNothingAfterAStop) {
  const std::vector<std::string> stops{"."};
  StopStrings filter(stops);
  EXPECT_EQ(filter.push("a.b"), "a");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.push("c.d"), "");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopStrings, DoNotDependOnHowTheTextIsCut) {
  std::mt19937 random(1);
  const auto below = [&](std::size_t bound) { return random() % bound; };
  const std::vector<std::string> letters{"a", "b", "é", "è"};
  const auto text_of = [&](std::size_t length) {
    std::string text;
    while (length-- > 0) text += letters[below(letters.size())];
    return text;
  };
  int stopped = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<std::string> stops, pieces;
    for (std::size_t n = 1 + below(3); n > 0; --n) stops.push_back(text_of(1 + below(5)));
    std::string text;
    for (std::size_t n = below(12); n > 0; --n) text += pieces.emplace_back(text_of(below(4)));
    const Output expected = by_the_rule(stops, text);
    ASSERT_EQ(output_of(stops, pieces), expected) << text;
    stopped += expected.stopped ? 1 : 0;
  }
  EXPECT_GT(stopped, 500);
  EXPECT_LT(stopped, 2900);
}

}  // namespace
}  // namespace kvcache
