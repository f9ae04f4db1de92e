// Hugging Face's answers, computed in float64, for every reference checkpoint: prompts encode to the same
// ids, logits agree within 1e-4 of the largest, and 48 greedy ids are equal. The flat cache computes them;
// same_bits_test.cpp holds the other steps to it.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/stored_number.h"
#include "common/cpu/cpu_backend.h"
#include "common/engine/run.h"
#include "common/tokenizer/tokenizer.h"
#include "step2_flat_cache/flat_cache.h"
#include "tests/support/checkpoints.h"

namespace kvcache {
namespace {

/// A checkpoint and the file with its answers.
struct Answers {
  std::string checkpoint;
  std::string file = "expected.json";
  /// A model that is cast to float16 or bfloat16 as a whole has its rotation speeds rounded too. Loading a
  /// checkpoint of that type, as a user does, does not round them; both kinds of answers are kept.
  bool rounded_rotation = false;
};

/// The name of a test of these answers in a list.
void PrintTo(const Answers& answers, std::ostream* out) {
  *out << answers.checkpoint << "/" << answers.file;
}

class Reference : public testing::TestWithParam<Answers> {
 protected:
  std::filesystem::path folder() const { return checkpoint_folder(GetParam().checkpoint); }
  nlohmann::json expected() const { return answers_of(GetParam().checkpoint, GetParam().file); }
  std::vector<float> rotation_speeds(const ModelConfig& config, const Weights& weights) const {
    std::vector<float> speeds = rope_inverse_frequencies(config);
    if (GetParam().rounded_rotation) {
      for (float& speed : speeds) speed = round_to(weights.embedding.dtype, speed);
    }
    return speeds;
  }
};

double largest_magnitude(const std::vector<double>& numbers) {
  double largest = 0;
  for (const double number : numbers) largest = std::max(largest, std::abs(number));
  return largest;
}

TEST_P(Reference, LogitsAndGreedyIdsAreThoseOfHuggingFace) {
  ThreadPool threads(2);
  const ModelConfig config = read_config(folder());
  Weights weights = load_weights(folder(), config, DType::f32);
  const std::vector<float> speeds = rotation_speeds(config, weights);
  Transformer model(config, std::move(weights), std::make_unique<CpuBackend>(DType::f32, threads), speeds);
  const nlohmann::json answers = expected();
  ASSERT_GE(answers["cases"].size(), 10U);
  for (const nlohmann::json& answer : answers["cases"]) {
    Request request;
    request.prompt_ids = answer["prompt_ids"].get<std::vector<std::int32_t>>();
    const auto greedy_ids = answer["greedy_ids"].get<std::vector<std::int32_t>>();
    request.max_tokens = static_cast<std::int64_t>(greedy_ids.size());
    request.ignore_eos = true;
    const FlatCacheShape shape{1, std::ssize(request.prompt_ids) + request.max_tokens,
                               config.kv_bytes_per_token(size_of(DType::f32))};
    FlatCacheManager manager(shape);
    FlatCacheStore store(config, shape, DType::f32, threads);
    const Report report = run(model, manager, store, {&request, 1}, {.keep_logits = true});
    EXPECT_EQ(report.sequences[0].output_ids, greedy_ids) << answer["prompt"];

    const auto logits = answer["next_token_logits"].get<std::vector<double>>();
    ASSERT_EQ(report.sequences[0].logits.size(), logits.size());
    double worst = 0;
    for (std::size_t id = 0; id < logits.size(); ++id) {
      worst = std::max(worst, std::abs(static_cast<double>(report.sequences[0].logits[id]) - logits[id]));
    }
    EXPECT_LE(worst, 1e-4 * largest_magnitude(logits)) << answer["prompt"];
  }
}

/// The checkpoints that have a tokenizer.
class ReferenceTexts : public Reference {};

TEST_P(ReferenceTexts, PromptsEncodeToTheIdsOfHuggingFace) {
  const Tokenizer tokenizer(folder());
  const nlohmann::json answers = expected();
  int texts = 0;
  for (const nlohmann::json& answer : answers["cases"]) {
    if (!answer["prompt"].is_string()) continue;  // given as ids
    const auto prompt = answer["prompt"].get<std::string>();
    EXPECT_EQ(tokenizer.encode(prompt), answer["prompt_ids"].get<std::vector<std::int32_t>>()) << prompt;
    ++texts;
  }
  EXPECT_GE(texts, 5);
}

constexpr const char* kRounded = "expected_rounded_rotation.json";

std::string name_of(const testing::TestParamInfo<Answers>& info) {
  std::string name = info.param.checkpoint + (info.param.rounded_rotation ? "_rounded" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Reference,
                         testing::Values(Answers{"llama-gqa"}, Answers{"llama-mha"},
                                         Answers{"llama-mha", kRounded, true}, Answers{"llama3-rope"},
                                         Answers{"llama3-rope", kRounded, true}, Answers{"qwen2-bias"},
                                         Answers{"qwen3-sharded"}, Answers{"qwen3-sharded", kRounded, true},
                                         Answers{"qwen3-tied"}, Answers{"qwen3-tied", kRounded, true},
                                         Answers{"fairytale"}, Answers{"llama-biases-linear"},
                                         Answers{"llama3-long"}, Answers{"qwen2-untied"}),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Checkpoints, ReferenceTexts,
                         testing::Values(Answers{"llama-gqa"}, Answers{"llama-mha"}, Answers{"llama3-rope"},
                                         Answers{"qwen2-bias"}, Answers{"qwen3-sharded"},
                                         Answers{"qwen3-tied"}, Answers{"fairytale"}),
                         name_of);

}  // namespace
}  // namespace kvcache
