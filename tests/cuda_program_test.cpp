// The four binaries with --device cuda, as a user runs them.
#include <gtest/gtest.h>

#include "common/cuda/device.h"
#include "tests/report_of.h"

namespace kvcache {
namespace {

const std::string kSteps[] = {"step1_no_cache", "step2_flat_cache", "step3_paged", "step4_prefix_cache"};

class CudaProgram : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::Device::available()) GTEST_SKIP() << "this machine has no GPU that CUDA can use";
  }
  static nlohmann::json report_of(const std::string& step, std::vector<std::string> arguments) {
    return kvcache::report_of(step, std::move(arguments), Gpu::visible);
  }
  static std::vector<std::string> joined(std::vector<std::string> first,
                                         const std::vector<std::string>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
};

TEST_F(CudaProgram, InFloat32EveryStepGivesTheIdsOfTheCpu) {
  const std::vector<std::string> arguments{
      "--prompt", "Once upon a time", "--prompt", "Once upon a time there", "--tokens",
      "40",       "--dtype",          "f32"};
  const nlohmann::json right = report_of("step1_no_cache", joined(arguments, {"--device", "cpu"}));
  for (const std::string& step : kSteps) {
    const nlohmann::json ours = report_of(step, joined(arguments, {"--device", "cuda"}));
    EXPECT_EQ(ours["device"], "cuda");
    for (std::size_t n = 0; n < 2; ++n) {
      EXPECT_EQ(ours["sequences"][n]["output_ids"], right["sequences"][n]["output_ids"]) << step;
      EXPECT_EQ(ours["sequences"][n]["text"], right["sequences"][n]["text"]) << step;
    }
  }
}

TEST_F(CudaProgram, TheDefaultDeviceIsTheGpuAndItsTypeTheShortOne) {
  const nlohmann::json report = report_of("step3_paged", {"--tokens", "2"});
  EXPECT_EQ(report["device"], "cuda");
  EXPECT_EQ(report["dtype"], std::string(name_of(cuda::Device().default_dtype())));
}

TEST_F(CudaProgram, SamplesAreTheSameInEveryStep) {
  const std::vector<std::string> arguments{"--prompt", "The wolf", "--tokens", "20",   "--temperature", "0.8",
                                           "--top-k",  "40",       "--top-p",  "0.95", "--seed",        "7",
                                           "--dtype",  "f32",      "--device", "cuda"};
  const nlohmann::json first = report_of(kSteps[0], arguments);
  for (const std::string& step : kSteps)
    EXPECT_EQ(report_of(step, arguments)["sequences"][0]["output_ids"], first["sequences"][0]["output_ids"])
        << step;
}

TEST_F(CudaProgram, PagesForkShareAndSwapAsOnTheCpu) {
  const std::vector<std::string> arguments{"--prompt",      "Once upon a time there was a poor fisherman",
                                           "--prompt",      "Once upon a time there was a queen",
                                           "--samples",     "3",
                                           "--temperature", "0.7",
                                           "--tokens",      "30",
                                           "--block-size",  "4",
                                           "--num-blocks",  "30",
                                           "--host-blocks", "64",
                                           "--dtype",       "f32"};
  for (const std::string path : {"paged", "gather"}) {
    const std::vector<std::string> all = joined(arguments, {"--attention", path, "--debug-fill", "nan"});
    const nlohmann::json right = report_of(kSteps[3], joined(all, {"--device", "cpu"}));
    const nlohmann::json ours = report_of(kSteps[3], joined(all, {"--device", "cuda"}));
    EXPECT_GT(ours["counters"]["swaps_in"], 0);
    EXPECT_EQ(ours["counters"], right["counters"]);
    EXPECT_EQ(ours["kv_memory"], right["kv_memory"]);
    for (std::size_t n = 0; n < 6; ++n)
      EXPECT_EQ(ours["sequences"][n]["output_ids"], right["sequences"][n]["output_ids"]) << path << " " << n;
  }
}

TEST_F(CudaProgram, AutoTakesWhatWeightsAndAPassLeave) {
  for (const std::string path : {"paged", "gather"}) {
    const nlohmann::json report = report_of(
        "step3_paged", {"--device", "cuda", "--kv-memory", "auto", "--attention", path, "--tokens", "4"});
    const cuda::Device device;
    EXPECT_GT(report["kv_memory"]["pool_bytes"], device.free_memory() / 2);
    EXPECT_LT(report["kv_memory"]["pool_bytes"], device.total_memory());
  }
}

TEST_F(CudaProgram, AnyContextLengthWorksWithRandomWeights) {
  std::string ids = "1";
  for (int n = 1; n < 4100; ++n) ids += "," + std::to_string(n * 37 % 4000);
  const std::vector<std::string> arguments{
      "--random-weights", "fairytale", "--ids", ids, "--tokens", "5", "--dtype", "f32", "--device", "cuda"};
  const nlohmann::json first = report_of(kSteps[0], arguments);
  for (const std::string& step : kSteps)
    EXPECT_EQ(report_of(step, arguments)["sequences"][0]["output_ids"], first["sequences"][0]["output_ids"])
        << step;
}

TEST_F(CudaProgram, APoolThatTheGpuCannotHoldIsRefused) {
  expect_refusal("step3_paged", {"--device", "cuda", "--kv-memory", "100000GiB"}, 2,
                 {"GPU's memory", "at most"}, Gpu::visible);
  expect_refusal("step2_flat_cache", {"--device", "cuda", "--max-seq-len", "2000000000"}, 1,
                 {"the flat cache", "bytes", "free"}, Gpu::visible);
}

}  // namespace
}  // namespace kvcache
