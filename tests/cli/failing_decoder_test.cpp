// A tokenizer.json whose decoder fails at one token, as a user runs it. On the command line and over HTTP, an
// output with this token ends with one line that names the decoder, and changes nothing else. No test waits
// for a time.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/files.h"
#include "tests/support/report_of.h"
#include "tests/support/server_program.h"

namespace kvcache {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

/// The tiny checkpoint llama-gqa with a tokenizer in which token 1 is called [1], and so on.
class FailingDecoder : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"config.json", "generation_config.json", "model.safetensors"})
      std::filesystem::copy(std::filesystem::path(SOURCE_DIR) / "tests/reference/llama-gqa" / name,
                            folder_ / name);
    write_tokenizer(-1);
    good_ids_ = alone("5,6,7")["output_ids"];
    bad_ids_ = alone("9,8,7,6")["output_ids"];
    while (std::ranges::find(good_ids_, bad_id()) != good_ids_.end() ||
           std::ranges::find(bad_ids_, bad_id()) != bad_ids_.begin() + place_)
      ASSERT_LT(++place_, std::ssize(bad_ids_));
    write_tokenizer(bad_id());
    why_ = "tokenizer.json's decoder fails at token " + std::to_string(bad_id().get<int>()) +
           ": tokenizer.json makes the text longer than 78336 bytes, 32 times what it was; give another "
           "tokenizer.json";
  }
  /// Its decoder makes more text of token `bad` than any real one does.
  void write_tokenizer(std::int32_t bad) const {
    Json vocab;
    const Json config = Json::parse(read_file(folder_ / "config.json"));
    for (std::int32_t id = 0; id < config["vocab_size"]; ++id)
      vocab[id == bad ? std::string(400, 'a') : name_of(id)] = id;
    const Json decoder = {
        {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(500, 'b')}};
    write_file(folder_ / "tokenizer.json",
               Json{{"model", {{"vocab", vocab}, {"merges", Json::array()}}}, {"decoder", decoder}}.dump());
  }
  static std::string name_of(std::int32_t id) { return "[" + std::to_string(id) + "]"; }
  static std::string text_of(const Json& ids, std::ptrdiff_t count) {
    std::string text;
    for (std::ptrdiff_t n = 0; n < count; ++n) text += name_of(ids[static_cast<std::size_t>(n)]);
    return text;
  }

  Arguments with(const Arguments& more) const {
    Arguments all{"--model", folder_.path().string(), "--ignore-eos", "--tokens", "20", "--threads", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// Of the token at which the decoder fails.
  const Json& bad_id() const { return bad_ids_[static_cast<std::size_t>(place_)]; }
  Json alone(const std::string& ids) const {
    return report_of("step3_paged", with({"--ids", ids}))["sequences"][0];
  }

  const TemporaryFolder folder_;
  Json good_ids_, bad_ids_;
  std::ptrdiff_t place_ = 3;
  std::string why_;
};

TEST_F(FailingDecoder, EndsItsPromptOnTheCommandLineAndNoOther) {
  for (const char* step : {"step1_no_cache", "step2_flat_cache", "step3_paged", "step4_prefix_cache"}) {
    const ProgramResult result = run_step(step, with({"--ids=5,6,7", "--ids=9,8,7,6", "--json"}));
    EXPECT_EQ(result.exit_code, 1) << step;
    EXPECT_EQ(result.err, "error: prompt 2: " + why_ + "\n");
    const Json sequences = Json::parse(result.out)["sequences"];
    EXPECT_EQ(sequences[0]["output_ids"], good_ids_);
    EXPECT_EQ(sequences[0]["text"], text_of(good_ids_, 20));
    EXPECT_EQ(sequences[0]["finish_reason"], "length");
    EXPECT_FALSE(sequences[0].contains("error"));
    EXPECT_EQ(sequences[1]["output_ids"], bad_ids_);
    EXPECT_EQ(sequences[1]["text"], text_of(bad_ids_, place_));
    EXPECT_EQ(sequences[1]["finish_reason"], "error");
    EXPECT_EQ(sequences[1]["error"], why_);
    expect_refusal(step, with({"--ids=9,8,7,6"}), 1, {"error: " + why_});
  }
}

TEST_F(FailingDecoder, EndsNoTrace) {
  const std::string trace = (folder_ / "trace").string();
  const ProgramResult result =
      run_step("step4_prefix_cache", with({"--ids=5,6,7", "--ids=9,8,7,6", "--trace", trace}));
  EXPECT_EQ(result.err, "error: prompt 2: " + why_ + "\n");
  EXPECT_NE(read_file(trace).find("\"token " + std::to_string(bad_id().get<int>()) + "\""),
            std::string::npos);
}

TEST_F(FailingDecoder, EndsItsRequestBehindHttpAndNoOther) {
  for (const char* step : {"step2_flat_cache", "step3_paged", "step4_prefix_cache"}) {
    ServerProgram server(step,
                         {"--model", folder_.path().string(), "--dtype", "f32", "--max-sequences", "4"});
    const int port = server.wait_for_port();
    const Json good = {{"prompt_ids", {5, 6, 7}}, {"max_tokens", 20}, {"ignore_eos", true}};
    Json bad = good;
    bad["prompt_ids"] = {9, 8, 7, 6};
    HttpClient stream(port);
    Json streamed = good;
    streamed["max_tokens"] = 200;
    streamed["stream"] = true;
    stream.send_request("POST", "/generate", streamed.dump());
    EXPECT_EQ(stream.read_head().status, 200);
    for (const std::int64_t samples : {1, 3}) {
      bad["n"] = samples;
      const HttpResponse refused = HttpClient(port).post("/generate", bad);
      EXPECT_EQ(refused.status, 500) << step;
      EXPECT_EQ(refused.error()["message"], why_);
    }
    bad["n"] = 1;
    bad["stream"] = true;
    HttpClient failing(port);
    failing.send_request("POST", "/generate", bad.dump());
    EXPECT_EQ(failing.read_head().status, 200);
    std::string last, end;
    for (std::optional<std::string> chunk; (chunk = failing.read_chunk());) last = std::exchange(end, *chunk);
    EXPECT_EQ(end, "data: [DONE]\n\n");
    const Json part = Json::parse(last.substr(6));
    EXPECT_EQ(part["finish_reason"], "error");
    EXPECT_EQ(part["error"]["message"], why_);
    EXPECT_EQ(HttpClient(port).post("/generate", good).json()["ids"], good_ids_);
    const HttpResponse health = HttpClient(port).get("/health");
    EXPECT_EQ(health.status, 200);
    EXPECT_EQ(health.json()["status"], "ok");
    std::string whole;
    while (const std::optional<std::string> chunk = stream.read_chunk()) whole += *chunk;
    EXPECT_NE(whole.find("\"finish_reason\":\"length\""), std::string::npos) << "the neighbour goes on";
    EXPECT_TRUE(whole.ends_with("data: [DONE]\n\n"));
  }
}

}  // namespace
}  // namespace kvcache
