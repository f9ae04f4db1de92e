// The lines of --log-trace, from a request and its events: lengths and times as they were, and numbers of
// blocks that are equal where tokens, beginnings and salts are.
#include "common/server/trace_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "common/base/error.h"
#include "fmt/format.h"
#include "tests/support/files.h"

namespace kvcache {
namespace {

using Json = nlohmann::json;
using Numbers = std::vector<std::uint64_t>;
using std::chrono::microseconds;

constexpr std::int64_t kBlockSize = 4;
constexpr TraceLog::Clock::time_point kStart{std::chrono::hours(5)};

class ATraceLog : public testing::Test {
 protected:
  ATraceLog() { log_.replace_file(); }

  static GenerationRequest request(std::vector<std::int32_t> prompt_ids, const std::string& salt = "",
                                   std::int64_t samples = 1) {
    GenerationRequest request;
    request.prompt_ids = std::move(prompt_ids);
    request.salt = salt;
    request.samples = samples;
    return request;
  }
  Numbers numbers(const std::vector<std::int32_t>& prompt_ids, const std::string& salt = "") const {
    return log_.arrived(request(prompt_ids, salt), kStart).hash_ids;
  }
  static GenerationEvent token(std::int64_t sample = 0) { return {.sample = sample, .id = 7}; }
  static GenerationEvent last(const std::string& reason, bool admitted = true) {
    return {.finish_reason = reason, .admitted = admitted};
  }
  std::vector<std::string> lines() const {
    std::istringstream text(read_file(file_));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
  /// What is written for a request of one token that ends so.
  std::vector<std::string> lines_for(const GenerationEvent& end) {
    log_.replace_file();
    LoggedRequest logged = log_.arrived(request({1}), kStart);
    log_.hear(end, logged);
    return lines();
  }

  TemporaryFolder folder_;
  std::string file_ = folder_ / "traffic.jsonl";
  TraceLog log_{file_, kBlockSize, "house", kStart};
};

TEST_F(ATraceLog, HasALineOfFourFieldsForARequest) {
  const std::vector<std::int32_t> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  LoggedRequest logged = log_.arrived(request(prompt), kStart + microseconds(27'482'900));
  log_.hear(token(), logged);
  log_.hear(token(), logged);
  EXPECT_EQ(read_file(file_), "") << "it has not ended";
  log_.hear({.id = 0, .finish_reason = "stop", .admitted = true}, logged);
  const Numbers hashes = numbers(prompt);
  ASSERT_EQ(hashes.size(), 3U) << "two blocks and a partial one";
  EXPECT_EQ(read_file(file_),
            fmt::format("{{\"timestamp\": 27482, \"input_length\": 10, \"output_length\": 3, \"hash_ids\": "
                        "[{}, {}, {}]}}\n",
                        hashes[0], hashes[1], hashes[2]));
}

TEST_F(ATraceLog, HasALineForEachSample) {
  LoggedRequest logged = log_.arrived(request({1, 2, 3, 4, 5}, "", 2), kStart);
  for (const std::int64_t sample : {0, 1, 1, 1}) log_.hear(token(sample), logged);
  log_.hear({.sample = 1, .id = 7, .finish_reason = "length", .admitted = true}, logged);
  log_.hear({.sample = 0, .finish_reason = "cancelled", .admitted = true}, logged);
  ASSERT_EQ(lines().size(), 2U);
  const Json first = Json::parse(lines()[0]), second = Json::parse(lines()[1]);
  EXPECT_EQ(first["output_length"], 4);
  EXPECT_EQ(second["output_length"], 1);
  for (const char* name : {"timestamp", "input_length", "hash_ids"}) EXPECT_EQ(first[name], second[name]);
}

TEST_F(ATraceLog, HasALineForWhatWasComputedAlone) {
  for (const char* reason : {"stop", "length", "capacity", "cancelled"})
    EXPECT_EQ(lines_for(last(reason)).size(), 1U) << reason;
  EXPECT_EQ(lines_for(last("cancelled", /*admitted=*/false)).size(), 0U) << "its client left while it waited";
  EXPECT_EQ(lines_for(last("capacity", /*admitted=*/false)).size(), 0U);
  EXPECT_EQ(lines_for(last("error")).size(), 0U);
}

TEST_F(ATraceLog, GivesEqualPromptsEqualNumbers) {
  EXPECT_EQ(numbers({1, 2, 3, 4, 5, 6}), numbers({1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(numbers({1, 2, 3, 4, 5, 6}).size(), 2U);
  EXPECT_EQ(numbers({1, 2, 3, 4}).size(), 1U) << "a full last block";
  EXPECT_EQ(numbers({1}).size(), 1U);
}

TEST_F(ATraceLog, GivesNumbersThatAreEqualUpToTheFirstOtherBlock) {
  const Numbers one = numbers({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const Numbers other = numbers({1, 2, 3, 4, 5, 0, 7, 8, 9, 10, 11, 12});
  EXPECT_EQ(one[0], other[0]);
  EXPECT_NE(one[1], other[1]);
  EXPECT_NE(one[2], other[2]) << "equal tokens behind others";
  const Numbers shorter = numbers({1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(shorter[0], one[0]);
  EXPECT_NE(shorter[1], one[1]) << "a partial block is none that is full";
  EXPECT_NE(shorter[1], numbers({1, 2, 3, 4, 5, 6, 8})[1]);
  const Numbers twice = numbers({1, 2, 3, 4, 1, 2, 3, 4});
  EXPECT_NE(twice[0], twice[1]) << "equal tokens at another place";
  EXPECT_NE(numbers({1, 2})[0], numbers({2, 1})[0]);
}

TEST_F(ATraceLog, GivesPromptsOfOtherSaltsOtherNumbers) {
  const std::vector<std::int32_t> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Numbers house = numbers(prompt), alice = numbers(prompt, "alice"),
                mallory = numbers(prompt, "mallory");
  EXPECT_EQ(alice, numbers(prompt, "alice"));
  EXPECT_EQ(house, numbers(prompt, "house")) << "the server's own salt";
  std::set<std::uint64_t> all;
  for (const Numbers& some : {house, alice, mallory}) all.insert(some.begin(), some.end());
  EXPECT_EQ(all.size(), 9U);
}

TEST_F(ATraceLog, GivesOtherNumbersThanAnotherServer) {
  const TraceLog other(folder_ / "other", kBlockSize, "house", kStart);
  const std::vector<std::int32_t> prompt{1, 2, 3, 4, 5};
  const Numbers here = numbers(prompt), there = other.arrived(request(prompt), kStart).hash_ids;
  EXPECT_NE(here[0], there[0]);
  EXPECT_NE(here[1], there[1]);
}

TEST_F(ATraceLog, GivesNumbersThatEveryReaderOfJsonKeeps) {
  std::uint64_t together = 0;
  for (std::int32_t id = 0; id < 200; ++id) together |= numbers({id})[0];
  EXPECT_EQ(together, (std::uint64_t{1} << 53) - 1) << "53 bits, and all of them";
}

// The key, the word and the hash are of the authors' list of test vectors; the second hash is OpenSSL's.
TEST(KeyedHash, IsSipHash) {
  const std::array<std::uint64_t, 2> key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  EXPECT_EQ(keyed_hash(key, 0x0706050403020100), 0x93f5f5799a932462U);
  EXPECT_EQ(keyed_hash(key, 0x6867666564636261), 0xc329dda391d44470U);
}

TEST_F(ATraceLog, ReplacesItsFileWhenItIsTold) {
  const std::string file = folder_ / "old";
  write_file(file, std::string(1000, 'x') + "\n");
  TraceLog log(file, kBlockSize, "", kStart);
  EXPECT_EQ(read_file(file).size(), 1001U) << "the server may still refuse its command line";
  log.replace_file();
  LoggedRequest logged = log.arrived(request({1}), kStart);
  log.hear(last("length"), logged);
  EXPECT_TRUE(read_file(file).starts_with(R"({"timestamp": 0, "input_length": 1, "output_length": 0, )"));
}

TEST_F(ATraceLog, RefusesWhatCannotBeWritten) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::map<std::string, std::string> reasons{
      {"/no/such/folder/log", "No such file or directory; give a file that can be written"},
      {folder_.path(), "Is a directory; give a file that can be written"},
      {pipe, "it is a pipe, whose reader could hold up the server; give a file"}};
  for (const auto& [file, why] : reasons) {
    try {
      const TraceLog log(file, kBlockSize, "");
      ADD_FAILURE() << "took " << file;
    } catch (const InputError& error) {
      EXPECT_EQ(error.what(), fmt::format("--log-trace cannot write \"{}\": {}", file, why));
    }
  }
}

TEST_F(ATraceLog, EndsWithOneNoteWhereTheDiskIsFull) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  TraceLog log("/dev/full", kBlockSize, "", kStart);
  log.replace_file();
  testing::internal::CaptureStderr();
  for (int times = 0; times < 3; ++times) {
    LoggedRequest logged = log.arrived(request({1, 2, 3}), kStart);
    log.hear(token(), logged);
    log.hear(last("length"), logged);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "note: --log-trace cannot write \"/dev/full\": No space left on device; no more requests are "
            "logged, and the server goes on\n");
}

// The limit of a file's size stands for a disk that has room for a part of a line.
TEST_F(ATraceLog, KeepsWholeLinesAloneWhereTheDiskGetsFull) {
  constexpr rlim_t kRoom = 3'000;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);  // as the programs do
  const rlimit limit{kRoom, before.rlim_max};
  testing::internal::CaptureStderr();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  for (int times = 0; times < 10; ++times) {
    LoggedRequest logged = log_.arrived(request(std::vector<std::int32_t>(200, 5)), kStart);
    log_.hear(last("length"), logged);
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("File too large; no more"), std::string::npos);
  EXPECT_TRUE(read_file(file_).ends_with("}\n"));
  EXPECT_EQ(lines().size(), 3U);
  for (const std::string& line : lines()) EXPECT_EQ(Json::parse(line)["hash_ids"].size(), 50U);
}

}  // namespace
}  // namespace kvcache
