// A trace of traffic: which lines are read, what is said of a wrong one, and which ids stand for its tokens.
#include "common/replay/traffic.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

#include "common/base/error.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/files.h"

namespace kvcache {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

Traffic read(const std::string& text, std::int64_t block_size = 4) {
  std::istringstream lines(text);
  return read_traffic(lines, "a trace", block_size);
}

std::string line(const std::string& timestamp, const std::string& input, const std::string& output,
                 const std::string& hashes) {
  return "{\"timestamp\": " + timestamp + ", \"input_length\": " + input + ", \"output_length\": " + output +
         ", \"hash_ids\": " + hashes + "}\n";
}

const std::string kGood = line("0", "5", "3", "[7, 8]");

std::string refusal(const std::string& text, std::int64_t block_size = 4) {
  std::string message = test::message_of<InputError>([&] { static_cast<void>(read(text, block_size)); });
  EXPECT_NE(message, "") << text;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

std::vector<std::int32_t> ids(const Traffic& traffic, std::size_t index) {
  const TokenIds prompt = traffic.prompt_ids(index);
  return {prompt.begin(), prompt.end()};
}

// Reading

TEST(Traffic, ReadsALineOfARequest) {
  const Traffic traffic = read(line("27482", "9", "52", "[46, 47, 18446744073709551615]"));
  ASSERT_EQ(traffic.requests.size(), 1U);
  EXPECT_EQ(traffic.block_size, 4);
  const TrafficRequest& request = traffic.requests[0];
  EXPECT_EQ(request.timestamp_ms, 0) << "since the first one";
  EXPECT_EQ(request.input_length, 9);
  EXPECT_EQ(request.output_length, 52);
  EXPECT_EQ(request.blocks.size(), 3U);
}

TEST(Traffic, IgnoresOtherFieldsAndBlankLines) {
  const Traffic traffic = read(
      "\n  \t\n{\"hash_ids\": [3], \"user\": {\"name\": [null, 1.5]}, \"output_length\": 0, \"timestamp\": "
      "1, "
      "\"input_length\": 4}\n\n" +
      kGood + "\n");
  ASSERT_EQ(traffic.requests.size(), 2U);
  EXPECT_EQ(traffic.requests[1].input_length, 4);
  EXPECT_EQ(traffic.requests[1].output_length, 0);
}

TEST(Traffic, TheLastLineNeedsNoNewline) {
  EXPECT_EQ(read(kGood + kGood.substr(0, kGood.size() - 1)).requests.size(), 2U);
}

TEST(Traffic, ReadsLinesThatEndInCarriageReturns) {
  std::string text = kGood + "\n" + kGood;
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) text.insert(at, "\r");
  EXPECT_EQ(read(text).requests.size(), 2U);
}

TEST(Traffic, SortsByTimeAndKeepsTheOrderOfEqualTimes) {
  const Traffic traffic =
      read(line("9", "1", "0", "[1]") + line("5", "2", "0", "[2]") + line("0", "3", "0", "[3]") +
           line("5", "4", "0", "[4]") + line("5", "1", "7", "[5]"));
  std::vector<std::int64_t> lengths;
  for (const TrafficRequest& request : traffic.requests) lengths.push_back(request.input_length);
  EXPECT_THAT(lengths, ElementsAre(3, 2, 4, 1, 1));
  EXPECT_EQ(traffic.requests[3].output_length, 7);
}

TEST(Traffic, DropsTheFractionOfAMillisecond) {
  const Traffic traffic =
      read(line("0", "1", "0", "[1]") + line("12.7", "1", "0", "[1]") + line("1e3", "1", "0", "[1]"));
  EXPECT_EQ(traffic.requests[1].timestamp_ms, 12);
  EXPECT_EQ(traffic.requests[2].timestamp_ms, 1000);
}

TEST(Traffic, ReadsAFile) {
  const TemporaryFolder folder;
  write_file(folder / "t.jsonl", kGood + kGood);
  EXPECT_EQ(read_traffic_file(folder / "t.jsonl", 4).requests.size(), 2U);
}

TEST(Traffic, TheLengthsMayBeAsLargeAsPositions) {
  const Traffic traffic = read(line("9007199254740992", "2147483646", "1", "[1]"), std::int64_t{1} << 31);
  EXPECT_EQ(traffic.requests[0].input_length, 2147483646);
}

TEST(Traffic, TimesCountFromTheFirstRequestWhichMayHaveADate) {
  const Traffic traffic =
      read(line("1764489600500", "1", "0", "[1]") + line("1764489600000", "1", "0", "[1]"));
  EXPECT_EQ(traffic.requests[0].timestamp_ms, 0);
  EXPECT_EQ(traffic.requests[1].timestamp_ms, 500);
}

TEST(Traffic, MayLastAMonth) {
  EXPECT_EQ(read(line("0", "1", "0", "[1]") + line("2678400000", "1", "0", "[1]")).requests.size(), 2U);
  EXPECT_THAT(refusal(line("0", "1", "0", "[1]") + line("2764800000", "1", "0", "[1]")),
              HasSubstr("within more than 31 days; give a part of them"));
  // A date beside times that count from 0.
  EXPECT_THAT(refusal(line("0", "1", "0", "[1]") + line("1764489600000", "1", "0", "[1]")),
              HasSubstr("within more than 31 days"));
}

// Wrong lines

TEST(Traffic, NamesTheSourceAndTheLineOfWhatIsNotJson) {
  for (const char* wrong : {"timestamp 5", "{\"timestamp\": 5", "{} {}", "nan", "{\"timestamp\": 01}", "'a'"})
    EXPECT_THAT(refusal(fmt::format("{}\n{}\n{}", kGood, wrong, kGood)), StartsWith("a trace, line 3: "))
        << wrong;
  EXPECT_THAT(refusal(std::string("{}\0{}", 5) + "\n"), StartsWith("a trace, line 1: "));
}

TEST(Traffic, NamesTheLineThatIsNoObject) {
  EXPECT_THAT(refusal(kGood + "[1, 2]\n"), AllOf(StartsWith("a trace, line 2: "), HasSubstr("[1,2]"),
                                                 HasSubstr("a request is a JSON object")));
  EXPECT_THAT(refusal("null\n"), HasSubstr("null"));
}

TEST(Traffic, NamesAFieldThatIsMissing) {
  const std::pair<const char*, const char*> lines[] = {
      {"timestamp", R"({"input_length": 5, "output_length": 3, "hash_ids": [7, 8]})"},
      {"input_length", R"({"timestamp": 0, "output_length": 3, "hash_ids": [7, 8]})"},
      {"output_length", R"({"timestamp": 0, "input_length": 5, "hash_ids": [7, 8]})"},
      {"hash_ids", R"({"timestamp": 0, "input_length": 5, "output_length": 3})"}};
  for (const auto& [field, text] : lines)
    EXPECT_THAT(refusal(text), AllOf(StartsWith("a trace, line 1: \"" + std::string(field) + "\" is missing"),
                                     HasSubstr("timestamp, input_length, output_length and hash_ids")));
}

TEST(Traffic, NamesTheNumberThatIsOutOfRange) {
  struct {
    std::string text, field, value, range;
  } const wrong[] = {
      {line("-5", "5", "3", "[7, 8]"), "timestamp", "-5", "from 0 to 9007199254740992"},
      {line("-0.5", "5", "3", "[7, 8]"), "timestamp", "-0.5", "from 0 to 9007199254740992"},
      {line("9007199254740993", "5", "3", "[7, 8]"), "timestamp", "9007199254740993", "to 9007199254740992"},
      {line("18446744073709551615", "5", "3", "[7, 8]"), "timestamp", "18446744073709551615", "from 0"},
      {line("1e300", "5", "3", "[7, 8]"), "timestamp", "1e+300", "from 0"},
      {line("\"5\"", "5", "3", "[7, 8]"), "timestamp", "\"5\"", "from 0"},
      {line("true", "5", "3", "[7, 8]"), "timestamp", "true", "from 0"},
      {line("0", "0", "3", "[]"), "input_length", "0", "from 1 to 2147483647"},
      {line("0", "-1", "3", "[]"), "input_length", "-1", "from 1 to 2147483647"},
      {line("0", "5.0", "3", "[7, 8]"), "input_length", "5.0", "a whole number from 1 to 2147483647"},
      {line("0", "2147483648", "3", "[7]"), "input_length", "2147483648", "from 1 to 2147483647"},
      {line("0", "18446744073709551616", "3", "[7]"), "input_length", "1.8446744073709552e+19", "from 1"},
      {line("0", "null", "3", "[7]"), "input_length", "null", "from 1"},
      {line("0", "5", "-3", "[7, 8]"), "output_length", "-3", "from 0 to 2147483642"},
      {line("0", "5", "2147483643", "[7, 8]"), "output_length", "2147483643", "from 0 to 2147483642"},
      {line("0", "5", "3.5", "[7, 8]"), "output_length", "3.5", "a whole number from 0"},
  };
  for (const auto& [text, field, value, range] : wrong)
    EXPECT_THAT(
        refusal(kGood + text),
        AllOf(StartsWith(fmt::format("a trace, line 2: \"{}\" is {}; ", field, value)), HasSubstr(range)));
}

TEST(Traffic, NamesHashIdsThatAreNone) {
  for (const char* hashes : {"[7, 18446744073709551616]", "[7, -8]", "[7, \"8\"]", "[7, 8.0]", "[7, null]",
                             "[7, [8]]", "7", "{\"7\": 8}", "\"78\""})
    EXPECT_THAT(refusal(line("0", "5", "3", hashes)), AllOf(StartsWith("a trace, line 1: \"hash_ids\" is "),
                                                            HasSubstr("a list of whole numbers below 2^64")))
        << hashes;
}

TEST(Traffic, SaysHowManyHashIdsAreNeededAndHowToGiveTheirSize) {
  for (const char* hashes : {"[]", "[7]", "[7, 8, 9]"})
    EXPECT_THAT(refusal(line("0", "5", "3", hashes)),
                AllOf(StartsWith("a trace, line 1: \"hash_ids\" has "), HasSubstr("input_length 5 needs 2"),
                      HasSubstr("--trace-block")));
  EXPECT_THAT(refusal(kGood, 16), HasSubstr("\"hash_ids\" has 2 numbers, and input_length 5 needs 1"));
  EXPECT_EQ(read(line("0", "8", "3", "[7, 8]")).requests.size(), 1U) << "no partial block";
}

TEST(Traffic, RefusesAFieldThatIsGivenTwice) {
  EXPECT_THAT(refusal(kGood + R"({"timestamp": 0, "input_length": 1, "timestamp": 1})"),
              AllOf(StartsWith("a trace, line 2: "), HasSubstr("\"timestamp\" is given twice")));
}

TEST(Traffic, RefusesDeepNesting) {
  const std::string deep(100, '['), end(100, ']');
  EXPECT_THAT(refusal(kGood + R"({"extra": )" + deep + end + "}"),
              AllOf(StartsWith("a trace, line 2: "), HasSubstr("nested more than 64 levels deep")));
}

TEST(Traffic, RefusesATraceWithoutALine) {
  for (const char* text : {"", "\n", " \n\r\n\t\n"})
    EXPECT_THAT(refusal(text), AllOf(StartsWith("a trace holds no request"), HasSubstr("JSON object")));
}

TEST(Traffic, ShowsTheBeginningAloneOfALongValue) {
  const std::string text = line("0", "\"" + std::string(100'000, 'x') + "\"", "3", "[7]");
  EXPECT_LT(refusal(text).size(), 300U);
}

TEST(Traffic, NamesAFileThatCannotBeRead) {
  const TemporaryFolder folder;
  const auto refused = [](const std::filesystem::path& path) {
    return test::message_of<InputError>([&] { static_cast<void>(read_traffic_file(path, 4)); });
  };
  EXPECT_THAT(refused(folder / "none.jsonl"), AllOf(HasSubstr("none.jsonl"), HasSubstr("No such file")));
  EXPECT_THAT(refused(folder.path()), AllOf(HasSubstr(folder.path().string()), HasSubstr("folder")));
  write_file(folder / "bad.jsonl", kGood + "oh");
  EXPECT_THAT(refused(folder / "bad.jsonl"), HasSubstr("bad.jsonl, line 2: "));
}

// Ids

TEST(Traffic, EqualHashesGiveEqualIdsAndDifferentOnesDifferentIds) {
  const Traffic traffic = read(line("0", "10", "3", "[18446744073709551615, 8, 9]") +
                               line("0", "7", "3", "[18446744073709551615, 8]") +
                               line("0", "12", "3", "[18446744073709551614, 8, 10]"));
  const std::vector<std::int32_t> first = ids(traffic, 0), second = ids(traffic, 1), third = ids(traffic, 2);
  ASSERT_EQ(first.size(), 10U);
  ASSERT_EQ(second.size(), 7U);
  ASSERT_EQ(third.size(), 12U);
  EXPECT_TRUE(std::equal(second.begin(), second.end(), first.begin()));
  // A block of any size that divides the trace's differs: here the smallest, of one token.
  for (std::size_t n = 0; n < 4; ++n) EXPECT_NE(third[n], first[n]) << n;
  for (std::size_t n = 4; n < 8; ++n) EXPECT_EQ(third[n], first[n]) << n;
  for (std::size_t n = 8; n < 10; ++n) EXPECT_NE(third[n], first[n]) << n;
}

TEST(Traffic, EveryOutputHasAnIdOfNoPromptAndNoOtherOutput) {
  std::string text;
  for (int n = 0; n < 50; ++n)
    text += line(std::to_string(n), "5", "3", "[" + std::to_string(n % 7) + ", 1]");
  const Traffic traffic = read(text);
  std::set<std::int32_t> prompts, outputs;
  for (std::size_t n = 0; n < traffic.requests.size(); ++n) {
    for (const std::int32_t id : ids(traffic, n)) {
      EXPECT_GE(id, 0);
      prompts.insert(id);
    }
    outputs.insert(traffic.output_id(n));
  }
  EXPECT_EQ(outputs.size(), 50U);
  for (const std::int32_t id : outputs) EXPECT_EQ(prompts.count(id), 0U);
  EXPECT_GE(*outputs.begin(), 0) << "a token that is unknown is -1";
}

TEST(TrafficRequest, StoresAllTokensButTheLastOutput) {
  TrafficRequest request{.input_length = 10, .output_length = 3};
  EXPECT_EQ(request.tokens_to_store(), 12);
  request.output_length = 1;
  EXPECT_EQ(request.tokens_to_store(), 10);
  request.output_length = 0;
  EXPECT_EQ(request.tokens_to_store(), 10);
}

TEST(TrafficRequest, ALineOfItIsReadAsTheSame) {
  const TrafficRequest one{.timestamp_ms = 0, .input_length = 9, .output_length = 0, .blocks = {0, 1, 2}};
  const TrafficRequest two{.timestamp_ms = 99, .input_length = 4, .output_length = 17, .blocks = {1}};
  EXPECT_EQ(line_of(two),
            "{\"timestamp\": 99, \"input_length\": 4, \"output_length\": 17, \"hash_ids\": [1]}\n");
  const Traffic traffic = read(line_of(one) + line_of(two));
  ASSERT_EQ(traffic.requests.size(), 2U);
  for (const auto& [before, after] : {std::pair{one, traffic.requests[0]}, {two, traffic.requests[1]}}) {
    EXPECT_EQ(after.timestamp_ms, before.timestamp_ms);
    EXPECT_EQ(after.input_length, before.input_length);
    EXPECT_EQ(after.output_length, before.output_length);
    EXPECT_EQ(after.blocks, before.blocks);
  }
}

}  // namespace
}  // namespace kvcache
