// A model with one damaged token, as a user runs it. On the command line and over HTTP, a prompt with this
// token ends with one line that says so, and changes nothing else. No test waits for a time.
#include "tests/support/damaged_model.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "fmt/ranges.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/report_of.h"
#include "tests/support/server_program.h"

namespace kvcache {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;
using Ids = std::vector<std::int32_t>;

const std::string kWhy =
    "logit 0 is NaN, not a finite number: a sum left the range of the type (try --dtype bf16 or f32), or the "
    "weights are damaged";
const char* const kAllSteps[] = {"step1_no_cache", "step2_flat_cache", "step3_paged", "step4_prefix_cache"};
const char* const kServingSteps[] = {"step2_flat_cache", "step3_paged", "step4_prefix_cache"};

std::string option_of(const Ids& ids) {
  return fmt::format("--ids={}", fmt::join(ids, ","));
}
Arguments joined(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// With --model, and the tokens of each sequence.
class DamagedModelOnTheCommandLine : public testing::Test {
 protected:
  Arguments with(const Arguments& more, const std::string& tokens = "8") const {
    return joined({"--model", damaged_.path(), "--ignore-eos", "--tokens", tokens}, more);
  }
  Json sequence_alone(const std::string& step, const Ids& ids, const Arguments& more = {}) const {
    return kvcache::report_of(step, with(joined({option_of(ids)}, more)))["sequences"][0];
  }
  /// The report of a run that fails in part, with the one line that says so.
  static Json report_and_failure(const std::string& step, const Arguments& arguments,
                                 const std::string& failure) {
    const ProgramResult result = run_step(step, joined(arguments, {"--json"}));
    EXPECT_EQ(result.exit_code, 1) << step;
    EXPECT_EQ(result.err, "error: " + failure + "\n") << step;
    return Json::parse(result.out);
  }

  const DamagedModel damaged_;
  const Ids good_ = good_prompt(9), other_ = good_prompt(20, 3), bad_ = bad_prompt(35, 3, 1);
};

TEST_F(DamagedModelOnTheCommandLine, EndsASinglePromptWithOneLineAndPrintsNothing) {
  for (const char* step : kAllSteps) {
    for (const char* tokens : {"8", "1", "0"}) {
      const Arguments arguments = with({option_of(bad_)}, tokens);
      for (const Arguments& form : {Arguments{}, Arguments{"--json", "--logits"}}) {
        const ProgramResult result = run_step(step, joined(arguments, form));
        EXPECT_EQ(result.exit_code, 1);
        EXPECT_EQ(result.out, "");
        EXPECT_EQ(result.err, "error: " + kWhy + "\n");
      }
    }
  }
}

TEST_F(DamagedModelOnTheCommandLine, PrintsTheGoodPromptsAndNamesTheBadOnes) {
  for (const std::string step : kAllSteps) {
    const Json report = report_and_failure(step, with({option_of(good_), option_of(bad_), option_of(other_)}),
                                           "prompt 2: " + kWhy);
    const Json& sequences = report["sequences"];
    EXPECT_EQ(sequences[0]["output_ids"], sequence_alone(step, good_)["output_ids"]) << step;
    EXPECT_EQ(sequences[0]["finish_reason"], "length");
    EXPECT_FALSE(sequences[0].contains("error"));
    EXPECT_EQ(sequences[1]["finish_reason"], "error");
    EXPECT_EQ(sequences[1]["error"], kWhy);
    EXPECT_EQ(sequences[1]["output_ids"], Json::array());
    EXPECT_EQ(sequences[2]["output_ids"], sequence_alone(step, other_)["output_ids"]) << step;
    EXPECT_EQ(report["blocks"]["in_use"], 0);

    const ProgramResult text = run_step(step, with({option_of(bad_), option_of(good_), option_of(bad_)}));
    EXPECT_EQ(text.exit_code, 1);
    EXPECT_EQ(text.err, "error: prompt 1: " + kWhy + "; failed too: prompt 3\n");
    EXPECT_NE(text.out.find("length"), std::string::npos);
    EXPECT_NE(text.out.find("error"), std::string::npos);
    expect_refusal(step, with({option_of(bad_), option_of(bad_)}), 1,
                   {"prompt 1: ", "; failed too: prompt 2"});
  }
}

TEST_F(DamagedModelOnTheCommandLine, FindsNothingThatABadPromptHasComputed) {
  const Arguments prompts{option_of(bad_), option_of(bad_), option_of(good_prompt(35)),
                          option_of(good_prompt(35))};
  const Json report = report_and_failure("step4_prefix_cache",
                                         with(joined(prompts, {"--block-size", "4", "--host-blocks", "8"})),
                                         "prompt 1: " + kWhy + "; failed too: prompt 2");
  EXPECT_EQ(report["sequences"][1]["cached_tokens"], 0);
  EXPECT_EQ(report["sequences"][3]["cached_tokens"], 32);
  EXPECT_EQ(report["blocks"]["cached"], 10 + 2) << "of the good ones: all 42 tokens, and the ends once more";
}

// The next prompt gets the blocks and slots that a bad prompt has filled with NaN, and fills none of them
// completely.
TEST_F(DamagedModelOnTheCommandLine, LeavesNothingInTheMemoryThatTheNextPromptUses) {
  const DamagedModel sound;
  for (const std::string step : kServingSteps) {
    for (const char* dtype : {"f32", "f16", "bf16"}) {
      for (const char* attention : {"paged", "gather"}) {
        const bool has_blocks = step != "step2_flat_cache";
        if (!has_blocks && attention == std::string("gather")) continue;
        Arguments how{"--dtype", dtype};
        if (has_blocks) how = joined(how, {"--attention", attention, "--block-size", "16"});
        const Json alone = sequence_alone(step, good_, joined(how, {"--logits"}));
        const Json report =
            report_and_failure(step,
                               with(joined({option_of(bad_), option_of(good_), "--logits"},
                                           has_blocks ? joined(how, {"--num-blocks", "3"})
                                                      : joined(how, {"--max-seq-len", "48"}))),
                               "prompt 1: " + kWhy);
        EXPECT_EQ(report["sequences"][1]["output_ids"], alone["output_ids"]) << step << dtype << attention;
        EXPECT_TRUE(report["sequences"][1]["logits"] == alone["logits"]) << step << dtype << attention;
      }
    }
  }
}

TEST_F(DamagedModelOnTheCommandLine, EndsOneSampleAndNamesIt) {
  for (int seed = 0; seed < 400; ++seed) {
    const Arguments arguments = with({option_of(good_), "--samples", "3", "--temperature", "100", "--seed",
                                      std::to_string(seed), "--json"},
                                     "40");
    const ProgramResult result = run_step("step4_prefix_cache", arguments);
    if (result.exit_code == 0) continue;
    const Json sequences = Json::parse(result.out)["sequences"];
    for (std::size_t sample = 0; sample < 3; ++sample) {
      const std::string name = fmt::format("prompt 1, sample {}", sample + 1);
      const bool failed = sequences[sample]["finish_reason"] == "error";
      EXPECT_EQ(result.err.find(name) != std::string::npos, failed) << result.err;
      EXPECT_EQ(sequences[sample]["output_ids"].size() == 40, !failed);
      EXPECT_EQ(sequences[sample]["output_ids"].back() == DamagedModel::kBadToken, failed);
    }
    return;
  }
  FAIL() << "no seed comes upon the damaged token";
}

TEST_F(DamagedModelOnTheCommandLine, IsRefusedAsTheSystemPrompt) {
  // Its text is the damaged token's.
  const Json tokenizer = Json::parse(read_file(damaged_.path() / "tokenizer.json"));
  std::string text;
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) {
    if (id == DamagedModel::kBadToken) text = token;
  }
  for (std::size_t at; (at = text.find("\u0120")) != std::string::npos;) text.replace(at, 2, " ");
  expect_refusal("step4_prefix_cache", with({option_of(good_), "--system-prompt", text}), 1,
                 {"error: the system prompt: logit 0 is NaN"});
}

TEST_F(DamagedModelOnTheCommandLine, WritesIntoTheTraceWhyASequenceLeft) {
  const std::string trace = (damaged_.path() / "trace").string();
  report_and_failure("step4_prefix_cache", with({option_of(bad_), option_of(good_), "--trace", trace}),
                     "prompt 1: " + kWhy);
  EXPECT_NE(read_file(trace).find(R"({"event":"free","sequence":0,"reason":"error")"), std::string::npos);
}

// ---- Behind HTTP ----

std::string chunk_after(HttpClient& client) {
  return client.read_chunk().value_or("the end");
}

/// The ids of a stream and its last part before [DONE].
std::pair<Ids, Json> read_stream(HttpClient& client) {
  std::pair<Ids, Json> read;
  EXPECT_EQ(client.read_head().status, 200);
  for (std::string chunk; (chunk = chunk_after(client)) != "data: [DONE]\n\n";) {
    if (!chunk.starts_with("data: ")) {
      ADD_FAILURE() << chunk;
      break;
    }
    read.second = Json::parse(chunk.substr(6));
    if (read.second.contains("id") && read.second["id"].is_number()) read.first.push_back(read.second["id"]);
  }
  EXPECT_FALSE(client.read_chunk());
  return read;
}

/// A server of the damaged model, with blocks of 4 tokens where there are blocks.
class DamagedModelServer {
 public:
  DamagedModelServer(const std::string& step, const DamagedModel& damaged, const Arguments& more = {})
      : has_blocks_(step != "step2_flat_cache"),
        program_(step,
                 joined({"--model", damaged.path(), "--max-batch-tokens", "32", "--max-sequences", "8"},
                        has_blocks_ ? joined({"--block-size", "4", "--num-blocks", "200"}, more) : more)),
        port_(program_.wait_for_port()) {}

  HttpClient connect() const { return HttpClient(port_); }
  HttpResponse post(const Json& body, const std::string& path = "/generate") const {
    return connect().post(path, body);
  }
  std::pair<Ids, Json> stream(Json body, const std::string& path = "/generate") const {
    body["stream"] = true;
    HttpClient client = connect();
    client.send_request("POST", path, body.dump());
    return read_stream(client);
  }
  Json healthy() const {
    const HttpResponse health = connect().get("/health");
    EXPECT_EQ(health.status, 200) << health.body;
    EXPECT_EQ(health.json()["status"], "ok");
    return health.json();
  }
  /// Expects that no sequence is there and no block is held.
  void expect_idle() const {
    Json health = healthy();
    // The answer may come before the engine has freed the blocks; each look waits for the engine.
    for (int looks = 0; looks < 200 && health["running"] != 0; ++looks) health = healthy();
    EXPECT_EQ(health["running"], 0);
    EXPECT_EQ(health["waiting"], 0);
    EXPECT_EQ(health["kv_memory"]["used_bytes"], 0);
    EXPECT_EQ(health["blocks"]["in_use"], 0);
  }
  /// Blocks that requests have found in the cache so far.
  std::int64_t hits() const { return healthy()["counters"]["prefix_hits"]; }
  /// A seed with which random ids come upon the damaged token, after some that do not.
  int bad_seed(const Json& body) const {
    for (int seed = 0; seed < 400; ++seed) {
      Json seeded = body;
      seeded["seed"] = seed;
      const int status = post(seeded).status;
      if (status == 500) return seed;
      EXPECT_EQ(status, 200);
    }
    ADD_FAILURE() << "no seed comes upon the damaged token";
    return 0;
  }

 private:
  bool has_blocks_;
  ServerProgram program_;
  int port_;
};

Json asking(const Ids& ids, int tokens) {
  return {{"prompt_ids", ids}, {"max_tokens", tokens}, {"ignore_eos", true}};
}

void expect_error(const HttpResponse& response) {
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(response.error()["message"], kWhy);
  EXPECT_EQ(response.error()["type"], "server_error");
}

TEST(DamagedModelBehindHttp, EndsTheRequestWithAStatusAndGoesOn) {
  const DamagedModel damaged;
  for (const std::string step : kServingSteps) {
    const DamagedModelServer server(step, damaged);
    const Json good = asking(good_prompt(10), 12);
    const Json expected = server.post(good).json()["ids"];
    EXPECT_EQ(expected.size(), 12U);
    for (const int tokens : {3, 1, 0}) {
      expect_error(server.post(asking({1, 2, DamagedModel::kBadToken}, tokens)));
      Json streamed = asking(bad_prompt(40, 2), tokens);
      streamed["stream"] = true;
      expect_error(server.post(streamed));
    }
    Json several = asking(bad_prompt(10, 2), 4);
    several["n"] = 3;
    expect_error(server.post(several));
    expect_error(server.post({{"prompt", bad_prompt(10, 2)}, {"max_tokens", 4}}, "/v1/completions"));
    EXPECT_EQ(server.post(good).json()["ids"], expected);
    server.expect_idle();
    EXPECT_NE(server.connect().get("/metrics").body.find("kvcache_outputs_total{reason=\"error\"} 10\n"),
              std::string::npos);
  }
}

TEST(DamagedModelBehindHttp, EndsAStreamThatHasBegunWithTheMessage) {
  const DamagedModel damaged;
  const DamagedModelServer server("step4_prefix_cache", damaged);
  Json body = asking(good_prompt(10), 60);
  body["temperature"] = 100;
  body["seed"] = server.bad_seed(body);
  const auto [ids, last] = server.stream(body);
  EXPECT_EQ(ids.back(), DamagedModel::kBadToken);
  EXPECT_EQ(last["finish_reason"], "error");
  EXPECT_EQ(last["error"]["message"], kWhy);
  EXPECT_EQ(last["usage"]["generated_tokens"], ids.size());

  Json openai = {{"prompt", good_prompt(10)}, {"max_tokens", 60}, {"ignore_eos", true}, {"temperature", 100}};
  openai["seed"] = body["seed"];
  const Json end = server.stream(openai, "/v1/completions").second;
  EXPECT_EQ(end["choices"][0]["finish_reason"], "error");
  EXPECT_EQ(end["error"]["message"], kWhy);

  body["n"] = 3;  // its first sample has that seed: the others end with it
  expect_error(server.post(body));
  server.expect_idle();
}

// Streams beside bad requests of every kind, all at once: each gives the same as alone.
TEST(DamagedModelBehindHttp, GivesTheNeighboursTheIdsThatTheyGiveAlone) {
  const DamagedModel damaged;
  for (const std::string step : kServingSteps) {
    const DamagedModelServer server(
        step, damaged, step == "step4_prefix_cache" ? Arguments{"--host-blocks", "20"} : Arguments{});
    constexpr int kNeighbours = 4, kRounds = 5;
    std::vector<Json> good;
    std::vector<Ids> expected;
    for (int n = 0; n < kNeighbours; ++n) {
      good.push_back(asking(good_prompt(6 + 13 * n, n), 40));
      expected.push_back(server.post(good.back()).json()["ids"]);
      EXPECT_EQ(expected.back().size(), 40U);
    }
    std::atomic<int> left{kNeighbours};
    std::vector<std::thread> threads;
    for (std::size_t n = 0; n < kNeighbours; ++n) {
      threads.emplace_back([&, n] {
        for (int round = 0; round < kRounds; ++round) {
          const auto [ids, last] = server.stream(good[n]);
          EXPECT_EQ(ids, expected[n]) << step;
          EXPECT_EQ(last["finish_reason"], "length");
        }
        --left;
      });
    }
    for (int client = 0; client < 2; ++client) {
      threads.emplace_back([&, client] {
        // As long as there are neighbours, and at least a few.
        for (int round = 0; round < 200 && (left > 0 || round < 5); ++round) {
          // Some begin like a neighbour's prompt.
          Json bad = asking(bad_prompt(5 + round % 7 * 8, 3 + round % 2, client), 1 + round % 3);
          bad["n"] = 1 + round % 3;
          bad["stream"] = round % 2 == 0;
          expect_error(server.post(bad));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    server.expect_idle();
    const std::int64_t hits = server.hits();
    for (int client = 0; client < 2; ++client) {
      for (const std::int64_t length : {5, 13, 21, 29, 37, 45, 53})
        expect_error(server.post(asking(bad_prompt(length, 3, client), 1)));
    }
    server.expect_idle();
    EXPECT_EQ(server.hits(), hits) << "already their first block is bad";
  }
}

// A sound checkpoint in float16: one token's activations are beyond its range.
TEST(DamagedModelBehindHttp, EndsARequestWhoseActivationsFloat16CannotHold) {
  DamagedModel model;
  // All of the token's vector lies in one direction, and one row of a matrix looks there alone.
  model.set("model.embed_tokens.weight", DamagedModel::kBadToken, 0.0F);
  model.set("model.embed_tokens.weight", DamagedModel::kBadToken, 1.0F, 1);
  model.set("model.layers.0.mlp.up_proj.weight", 0, 15000.0F, 1);
  for (const std::string step : kServingSteps) {
    const DamagedModelServer server(step, model, {"--dtype", "f16"});
    const Json good = asking(good_prompt(10), 12);
    const Json expected = server.post(good).json()["ids"];
    EXPECT_EQ(expected.size(), 12U);
    const HttpResponse response = server.post(asking({1, 2, DamagedModel::kBadToken}, 3));
    EXPECT_EQ(response.status, 500) << response.body;
    EXPECT_NE(response.body.find("not a finite number"), std::string::npos) << response.body;
    EXPECT_EQ(server.post(good).json()["ids"], expected);
    server.expect_idle();
    EXPECT_EQ(
        report_of(step, {"--model", model.path(), "--tokens", "1", "--dtype", "bf16", "--ids",
                         fmt::format("1,2,{}", DamagedModel::kBadToken)})["sequences"][0]["finish_reason"],
        "length")
        << "a type that can hold them";
  }
}

}  // namespace
}  // namespace kvcache
