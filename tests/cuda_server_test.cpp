// --serve on a GPU, as a user runs it: with a model that leaves little of the machine's memory to chance.
#include <vector>

#include "common/cuda/device.h"
#include "tests/report_of.h"
#include "tests/server_program.h"

namespace kvcache {
namespace {

using Json = nlohmann::json;

const char* const kSteps[] = {"step2_flat_cache", "step3_paged", "step4_prefix_cache"};

class CudaServer : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda::Device::why_unavailable(); !why.empty()) GTEST_SKIP() << why;
  }
};

// Whatever the pool leaves must be enough for long prompts of as many as may run.
TEST_F(CudaServer, TakesTheMemoryThatTheModelLeavesAndNoMore) {
  const std::vector<std::string> ways[] = {{}, {"--attention", "gather"}};
  for (const std::string step : kSteps) {
    for (const std::vector<std::string>& way : ways) {
      if (step == kSteps[0] && !way.empty()) continue;  // it has no other way
      std::vector<std::string> arguments{"--device", "cuda", "--random-weights", "qwen3-0.6b"};
      arguments.insert(arguments.end(), way.begin(), way.end());
      ServerProgram server(step, arguments, Gpu::visible);
      const std::string line = server.read_line();
      ASSERT_TRUE(line.starts_with("listening on ")) << step << " did not start";
      const Json health = HttpClient(port_of(line)).get("/health").json();
      EXPECT_GT(health["kv_memory"]["pool_bytes"].get<std::int64_t>(), std::int64_t{1} << 33) << health;

      std::vector<HttpClient> clients;
      for (int n = 0; n < 16; ++n) {
        clients.emplace_back(port_of(line));
        const Json request = {
            {"prompt_ids", std::vector<int>(8000, n + 1)}, {"max_tokens", 8}, {"ignore_eos", true}};
        clients.back().send_request("POST", "/generate", request.dump());
      }
      for (HttpClient& client : clients) EXPECT_EQ(client.read_response().json()["ids"].size(), 8U) << step;
      server.send(SIGTERM);
      EXPECT_EQ(server.wait_for_end(), 0) << step;
    }
  }
}

TEST_F(CudaServer, GivesInFloat32TheIdsOfTheCpu) {
  const Json expected = report_of("step1_no_cache", {"--prompt", "Once upon a time", "--tokens", "40"});
  for (const char* step : kSteps) {
    ServerProgram server(step, {"--device", "cuda", "--dtype", "f32"}, Gpu::visible);
    const Json answer = HttpClient(server.wait_for_port())
                            .post("/generate", {{"prompt", "Once upon a time"}, {"max_tokens", 40}})
                            .json();
    EXPECT_EQ(answer["ids"], expected["sequences"][0]["output_ids"]) << step;
  }
}

}  // namespace
}  // namespace kvcache
