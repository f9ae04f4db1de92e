// --serve on a GPU, as a user runs it: the pool takes the memory that the model leaves, and passes still fit.
#include <vector>

#include "common/cuda/device.h"
#include "tests/support/report_of.h"
#include "tests/support/server_program.h"

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

// The memory beside the pool must be enough for long prompts of as many sequences as may run.
void expect_room_for_long_prompts(const std::string& step, std::vector<std::string> arguments) {
  SCOPED_TRACE(step);
  arguments.insert(arguments.end(), {"--device", "cuda", "--random-weights", "qwen3-0.6b"});
  ServerProgram server(step, arguments, Gpu::visible);
  const std::string line = server.read_line();
  ASSERT_TRUE(line.starts_with("listening on ")) << "it did not start";
  const Json health = HttpClient(port_of(line)).get("/health").json();
  EXPECT_GT(health["kv_memory"]["pool_bytes"].get<std::int64_t>(), std::int64_t{1} << 33) << health;

  std::vector<HttpClient> clients;
  for (int n = 0; n < 16; ++n) {
    clients.emplace_back(port_of(line));
    const Json request = {
        {"prompt_ids", std::vector<int>(8000, n + 1)}, {"max_tokens", 8}, {"ignore_eos", true}};
    clients.back().send_request("POST", "/generate", request.dump());
  }
  for (HttpClient& client : clients) EXPECT_EQ(client.read_response().json()["ids"].size(), 8U);
  server.send(SIGTERM);
  EXPECT_EQ(server.wait_for_end(), 0);
}

TEST_F(CudaServer, TakesTheMemoryThatTheModelLeavesAndNoMore) {
  for (const char* step : kSteps) expect_room_for_long_prompts(step, {});
  for (const char* step : {"step3_paged", "step4_prefix_cache"})
    expect_room_for_long_prompts(step, {"--attention", "gather"});
}

TEST_F(CudaServer, RefusesAPoolThatLeavesNothingForItsPasses) {
  const ProgramResult refusal = run_step("step3_paged",
                                         {"--serve", "--port", "0", "--device", "cuda", "--random-weights",
                                          "qwen3-0.6b", "--num-blocks", "1000000"},
                                         Gpu::visible);
  EXPECT_EQ(refusal.exit_code, 2);
  const std::size_t number = refusal.err.find("ask for at most ");
  ASSERT_NE(number, std::string::npos) << refusal.err;
  const std::string most = std::to_string(std::stoll(refusal.err.substr(number + 16)));
  expect_room_for_long_prompts("step3_paged", {"--num-blocks", most});
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
