// The four programs with --device cuda, as a user runs them.
#include <gtest/gtest.h>

#include <cstring>

#include "common/cuda/device.h"
#include "fmt/ranges.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/damaged_model.h"
#include "tests/support/files.h"
#include "tests/support/reference_model.h"
#include "tests/support/report_of.h"

namespace kvcache {
namespace {

const std::string kSteps[] = {"step1_no_cache", "step2_flat_cache", "step3_paged", "step4_prefix_cache"};

class CudaProgram : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda::Device::why_unavailable(); !why.empty()) GTEST_SKIP() << why;
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
  const std::vector<std::string> variants[] = {
      {"--attention", "paged"}, {"--attention", "gather"}, {"--system-prompt", "Once upon a time there was"}};
  for (const std::vector<std::string>& variant : variants) {
    const std::vector<std::string> all = joined(joined(arguments, variant), {"--debug-fill", "nan"});
    const nlohmann::json right = report_of(kSteps[3], joined(all, {"--device", "cpu"}));
    const nlohmann::json ours = report_of(kSteps[3], joined(all, {"--device", "cuda"}));
    EXPECT_GT(ours["counters"]["swaps_in"], 0);
    EXPECT_EQ(ours["counters"], right["counters"]);
    EXPECT_EQ(ours["blocks"], right["blocks"]);
    EXPECT_EQ(ours["kv_memory"], right["kv_memory"]);
    for (std::size_t n = 0; n < 6; ++n)
      EXPECT_EQ(ours["sequences"][n]["output_ids"], right["sequences"][n]["output_ids"])
          << variant[1] << " " << n;
  }
}

// The next prompt gets the memory that a prompt has filled with NaN.
TEST_F(CudaProgram, EndsAPromptWhoseLogitsAreNotFiniteAndNoOther) {
  const DamagedModel damaged;
  const auto ids = [](const std::vector<std::int32_t>& prompt) {
    return fmt::format("--ids={}", fmt::join(prompt, ","));
  };
  for (const std::string& step : kSteps) {
    for (const char* dtype : {"f32", "f16", "bf16"}) {
      if (dtype == std::string("bf16") && cuda::Device().default_dtype() != DType::bf16) continue;
      for (const char* attention : {"paged", "gather"}) {
        const bool has_blocks = step == kSteps[2] || step == kSteps[3];
        if (!has_blocks && attention == std::string("gather")) continue;
        std::vector<std::string> how{"--model", damaged.path(), "--device", "cuda",        "--dtype",
                                     dtype,     "--tokens",     "8",        "--ignore-eos"};
        if (has_blocks) how = joined(how, {"--attention", attention, "--num-blocks", "3"});
        const nlohmann::json alone = report_of(step, joined(how, {ids(good_prompt(9))}));
        const ProgramResult both = run_step(
            step, joined(how, {ids(bad_prompt(35, 3)), ids(good_prompt(9)), "--json"}), Gpu::visible);
        EXPECT_EQ(both.exit_code, 1);
        EXPECT_TRUE(both.err.starts_with("error: prompt 1: logit ")) << both.err;
        const nlohmann::json sequences = nlohmann::json::parse(both.out)["sequences"];
        EXPECT_EQ(sequences[0]["finish_reason"], "error");
        EXPECT_EQ(sequences[1]["output_ids"], alone["sequences"][0]["output_ids"])
            << step << " " << dtype << " " << attention;
      }
    }
  }
}

TEST_F(CudaProgram, AutoTakesWhatWeightsAndAPassLeaveAndChangesNoAnswer) {
  struct Run {
    std::string step;
    std::vector<std::string> arguments;
  };
  for (const Run& run : {Run{kSteps[2], {"--attention", "paged"}},
                         {kSteps[2], {"--attention", "gather"}},
                         {kSteps[3], {"--samples", "3", "--temperature", "0.8"}}}) {
    const std::vector<std::string> arguments = joined({"--device", "cuda", "--tokens", "9"}, run.arguments);
    const nlohmann::json report = report_of(run.step, joined(arguments, {"--kv-memory", "auto"}));
    const cuda::Device device;
    EXPECT_GT(report["kv_memory"]["pool_bytes"], device.free_memory() / 2);
    EXPECT_LT(report["kv_memory"]["pool_bytes"], device.total_memory());
    const nlohmann::json right = report_of(run.step, arguments);
    EXPECT_EQ(report["counters"], right["counters"]);
    for (std::size_t n = 0; n < right["sequences"].size(); ++n)
      EXPECT_EQ(report["sequences"][n]["output_ids"], right["sequences"][n]["output_ids"]) << run.step;
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
                 {"the flat cache's K", "bytes", "free"}, Gpu::visible);
}

/// Makes a checkpoint of `layers` layers, each with a feed-forward part `intermediate` wide; all weights are
/// 0: a sparse file, which takes no room on the disk.
/// @return its numbers
std::int64_t save_large(const std::filesystem::path& checkpoint, std::int64_t layers,
                        std::int64_t intermediate, const std::filesystem::path& folder) {
  nlohmann::json config = nlohmann::json::parse(read_file(checkpoint / "config.json"));
  const std::int64_t narrow = config["intermediate_size"];
  config.update(
      {{"num_hidden_layers", layers},
       {"intermediate_size", intermediate},
       {"layer_types", std::vector<std::string>(static_cast<std::size_t>(layers), "full_attention")}});
  write_file(folder / "config.json", config.dump());

  const std::string file = read_file(checkpoint / "model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const nlohmann::json small = nlohmann::json::parse(file.substr(sizeof length, length));
  nlohmann::json header;
  std::int64_t numbers = 0;
  const auto add = [&](const std::string& name, nlohmann::json tensor) {
    std::int64_t size = 1;
    for (nlohmann::json& extent : tensor["shape"]) {
      if (extent == narrow) extent = intermediate;
      size *= extent.get<std::int64_t>();
    }
    tensor["dtype"] = "BF16";
    tensor["data_offsets"] = {2 * numbers, 2 * (numbers + size)};
    header[name] = tensor;
    numbers += size;
  };
  const std::string first = "model.layers.0.";
  for (const auto& [name, tensor] : small.items()) {
    if (name == "__metadata__" || (name.starts_with("model.layers.") && !name.starts_with(first))) continue;
    if (!name.starts_with(first)) {
      add(name, tensor);
      continue;
    }
    for (std::int64_t layer = 0; layer < layers; ++layer)
      add("model.layers." + std::to_string(layer) + "." + name.substr(first.size()), tensor);
  }
  const std::string start = test::safetensors_bytes(header.dump(), "");
  write_file(folder / "model.safetensors", start);
  std::filesystem::resize_file(folder / "model.safetensors",
                               start.size() + static_cast<std::uint64_t>(2 * numbers));
  return numbers;
}

TEST_F(CudaProgram, AModelThatTheGpuCannotHoldIsRefusedWithItsSize) {
  constexpr std::int64_t kIntermediate = 1 << 20, kHidden = 64;
  const std::int64_t layers = cuda::Device().total_memory() * 5 / 4 / (3 * kIntermediate * kHidden * 4) + 1;
  const TemporaryFolder folder;
  const std::int64_t numbers =
      save_large(checkpoint_folder("qwen3-tied"), layers, kIntermediate, folder.path());
  const std::string size =
      std::to_string(numbers * 4).substr(0, 2);  // the first digits of its bytes in float32
  expect_refusal(kSteps[3],
                 {"--device", "cuda", "--dtype", "f32", "--model", folder.path().string(), "--ids", "1"}, 1,
                 {"not enough of the GPU's memory for the weights: " + size,
                  "are free; ask for less, or end other programs that use the GPU"},
                 Gpu::visible);
}

}  // namespace
}  // namespace kvcache
