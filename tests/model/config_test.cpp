/// @file
/// config.json: the fields that are read, the defaults of absent fields, and the refusals, which name the
/// field.
#include "common/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>

#include "common/base/error.h"
#include "common/base/json_file.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/checkpoints.h"

namespace kvcache::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* families[] = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
                                    "Qwen3ForCausalLM"};

class Config : public ::testing::Test {
 protected:
  static json valid(const std::string& architecture = "LlamaForCausalLM") {
    return TestCheckpoint(architecture).config;
  }
  /// `valid` with the field set.
  static json with(const std::string& field, const json& value,
                   const std::string& architecture = "LlamaForCausalLM") {
    json config = valid(architecture);
    config[field] = value;
    return config;
  }
  static json without(const std::string& field, const std::string& architecture = "LlamaForCausalLM") {
    json config = valid(architecture);
    config.erase(field);
    return config;
  }

  ModelConfig read_text(std::string_view text) {
    write_file(folder_ / "config.json", text);
    return read_config(folder_.path());
  }
  ModelConfig read(const json& config) { return read_text(config.dump()); }

  std::string error_of_text(std::string_view text) {
    std::string error = message_of<InputError>([&] { read_text(text); });
    if (!error.empty()) {
      EXPECT_THAT(error, HasSubstr((folder_ / "config.json").string()));
      EXPECT_THAT(error, Not(HasSubstr("\n")));
    }
    return error;
  }
  std::string error_of(const json& config) { return error_of_text(config.dump()); }

  TemporaryFolder folder_;
};

TEST_F(Config, ReadsEverySizeAsWritten) {
  json written = valid();
  written.update({{"vocab_size", 101},
                  {"hidden_size", 60},
                  {"intermediate_size", 77},
                  {"num_hidden_layers", 3},
                  {"num_attention_heads", 6},
                  {"num_key_value_heads", 2},
                  {"head_dim", 14},
                  {"max_position_embeddings", 999},
                  {"rms_norm_eps", 1e-5},
                  {"tie_word_embeddings", true}});
  const ModelConfig config = read(written);
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.vocab_size, 101);
  EXPECT_EQ(config.hidden_size, 60);
  EXPECT_EQ(config.intermediate_size, 77);
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.heads, 6);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 14);
  EXPECT_EQ(config.max_position_embeddings, 999);
  EXPECT_EQ(config.rms_norm_eps, 1e-5F);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.kv_bytes_per_token(4), 3 * 2 * 2 * 14 * 4);
}

TEST_F(Config, ReadsAllReferenceCheckpoints) {
  EXPECT_EQ(read_config(checkpoint_folder("llama-gqa")).kv_heads, 2);
  EXPECT_EQ(read_config(checkpoint_folder("llama-mha")).heads, 3);
  const ModelConfig llama3 = read_config(checkpoint_folder("llama3-rope"));
  EXPECT_EQ(llama3.rope.type, RopeConfig::Type::llama3);
  EXPECT_EQ(llama3.rope.theta, 500000.0);
  EXPECT_EQ(llama3.rope.factor, 8.0);
  EXPECT_EQ(llama3.rope.original_max_position_embeddings, 64.0);
  EXPECT_EQ(llama3.head_dim, 32);  // hidden 64, heads 4
  EXPECT_THAT(llama3.eos_ids, ElementsAre(765, 767));
  const ModelConfig qwen2 = read_config(checkpoint_folder("qwen2-bias"));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_EQ(qwen2.head_dim, 16);
  EXPECT_TRUE(read_config(checkpoint_folder("qwen3-sharded")).qk_norm);
  const ModelConfig tied = read_config(checkpoint_folder("qwen3-tied"));
  EXPECT_TRUE(tied.tie_word_embeddings);
  EXPECT_EQ(tied.rope.theta, 1e6);
}

TEST_F(Config, TakesTransformersDefaultsWhereFieldsAreAbsentOrNull) {
  for (const bool null : {false, true}) {
    json sparse = valid();
    for (const char* field : {"num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
                              "rope_theta", "tie_word_embeddings", "attention_bias", "rope_scaling"}) {
      sparse.erase(field);
      if (null) sparse[field] = nullptr;
    }
    sparse["num_attention_heads"] = 8;
    const ModelConfig config = read(sparse);
    EXPECT_EQ(config.kv_heads, 8);
    EXPECT_EQ(config.head_dim, 4);
    EXPECT_EQ(config.max_position_embeddings, 2048);
    EXPECT_EQ(config.rms_norm_eps, 1e-6F);
    EXPECT_EQ(config.rope.theta, 10000.0);
    EXPECT_FALSE(config.tie_word_embeddings);
    EXPECT_FALSE(config.qkv_bias || config.output_bias || config.mlp_bias || config.qk_norm);
  }
  EXPECT_EQ(read(without("max_position_embeddings", "Qwen2ForCausalLM")).max_position_embeddings, 32768);
  EXPECT_EQ(read(without("head_dim", "Qwen2ForCausalLM")).head_dim, 8);
  EXPECT_EQ(read(without("head_dim", "Qwen3ForCausalLM")).head_dim, 128);  // Qwen3Config's own
  EXPECT_EQ(read(with("head_dim", nullptr, "Qwen3ForCausalLM")).head_dim, 8);
}

// As transformers 4.57 and 5.24: an absent field means the family's default, and null the number of heads.
TEST_F(Config, TakesTheFamilysNumberOfKvHeadsWhereTheFieldIsAbsent) {
  constexpr std::string_view field = "num_key_value_heads";
  const std::pair<const char*, std::int64_t> expected[] = {{"LlamaForCausalLM", 64},
                                                           {"MistralForCausalLM", 8},
                                                           {"Qwen2ForCausalLM", 32},
                                                           {"Qwen3ForCausalLM", 32}};
  for (const auto& [architecture, kv_heads] : expected) {
    json config = without(std::string(field), architecture);
    config["num_attention_heads"] = 64;
    EXPECT_EQ(read(config).kv_heads, kv_heads) << architecture;
    config[field] = nullptr;
    EXPECT_EQ(read(config).kv_heads, 64) << architecture;
    if (kv_heads == 64) continue;
    config.erase(field);
    config["num_attention_heads"] = 4;
    EXPECT_THAT(error_of(config), AllOf(HasSubstr("num_key_value_heads is missing"),
                                        HasSubstr(std::to_string(kv_heads)), HasSubstr("4")));
  }
}

TEST_F(Config, HeadDimIsReadNotDerived) {
  json config = valid();
  config.update({{"hidden_size", 64}, {"num_attention_heads", 4}, {"head_dim", 32}});
  EXPECT_EQ(read(config).head_dim, 32);
  EXPECT_THAT(error_of(with("head_dim", 7)), AllOf(HasSubstr("head_dim"), HasSubstr("7"), HasSubstr("even")));
  config.erase("head_dim");
  config["num_attention_heads"] = 6;
  config["num_key_value_heads"] = 2;
  EXPECT_THAT(error_of(config), AllOf(HasSubstr("hidden_size"), HasSubstr("64"), HasSubstr("6")));
}

TEST_F(Config, TakesAnyRatioOfHeadsThatDivides) {
  for (const auto& [heads, kv_heads] : {std::pair{4, 4}, {8, 2}, {6, 2}, {7, 1}, {12, 4}}) {
    json config = valid();
    config["num_attention_heads"] = heads;
    config["num_key_value_heads"] = kv_heads;
    EXPECT_EQ(read(config).kv_heads, kv_heads);
  }
  EXPECT_THAT(error_of(with("num_key_value_heads", 3)),
              AllOf(HasSubstr("num_key_value_heads"), HasSubstr("3")));
  EXPECT_THAT(error_of(with("num_key_value_heads", 8)), HasSubstr("num_key_value_heads"));
}

TEST_F(Config, BiasesFollowTheFamily) {
  const ModelConfig llama = read(with("attention_bias", true));
  EXPECT_TRUE(llama.qkv_bias && llama.output_bias && !llama.mlp_bias);
  EXPECT_TRUE(read(with("mlp_bias", true)).mlp_bias);
  const ModelConfig qwen2 = read(valid("Qwen2ForCausalLM"));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.output_bias && !qwen2.qk_norm);
  for (const bool ignored : {false, true}) {  // by transformers too: Qwen2 has no such field
    const ModelConfig same = read(with("attention_bias", ignored, "Qwen2ForCausalLM"));
    EXPECT_TRUE(same.qkv_bias && !same.output_bias);
  }
  const ModelConfig qwen3 = read(valid("Qwen3ForCausalLM"));
  EXPECT_TRUE(!qwen3.qkv_bias && !qwen3.output_bias && qwen3.qk_norm);
  const ModelConfig biased = read(with("attention_bias", true, "Qwen3ForCausalLM"));
  EXPECT_TRUE(biased.qkv_bias && biased.output_bias);
  EXPECT_THAT(error_of(with("mlp_bias", true, "Qwen3ForCausalLM")), HasSubstr("mlp_bias"));
}

TEST_F(Config, ReadsThetaInBothSpellings) {
  for (const double theta : {10000.0, 500000.0, 1000000.0}) {
    EXPECT_EQ(read(with("rope_theta", theta)).rope.theta, theta);
    json inside = without("rope_theta");
    inside["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", theta}};
    EXPECT_EQ(read(inside).rope.theta, theta);
    inside["rope_theta"] = 123.0;  // transformers: the one inside wins
    EXPECT_EQ(read(inside).rope.theta, theta);
  }
  EXPECT_EQ(read(with("rope_theta", 500000)).rope.theta, 500000.0);
}

TEST_F(Config, ReadsRopeTypesInAllSpellings) {
  for (const char* outer : {"rope_scaling", "rope_parameters"}) {
    for (const char* key : {"rope_type", "type"}) {
      const RopeConfig linear = read(with(outer, {{key, "linear"}, {"factor", 4}})).rope;
      EXPECT_EQ(linear.type, RopeConfig::Type::linear);
      EXPECT_EQ(linear.factor, 4.0);
      EXPECT_EQ(linear.theta, 10000.0);
      const RopeConfig llama3 = read(with(outer, {{key, "llama3"},
                                                  {"factor", 32.0},
                                                  {"low_freq_factor", 1.5},
                                                  {"high_freq_factor", 4.5},
                                                  {"original_max_position_embeddings", 64}}))
                                    .rope;
      EXPECT_EQ(llama3.type, RopeConfig::Type::llama3);
      EXPECT_EQ(llama3.factor, 32.0);
      EXPECT_EQ(llama3.low_freq_factor, 1.5);
      EXPECT_EQ(llama3.high_freq_factor, 4.5);
      EXPECT_EQ(llama3.original_max_position_embeddings, 64.0);
      EXPECT_EQ(read(with(outer, {{key, "default"}})).rope.type, RopeConfig::Type::default_);
    }
    EXPECT_EQ(read(with(outer, nullptr)).rope.type, RopeConfig::Type::default_);
    EXPECT_EQ(read(with(outer, json::object())).rope.type, RopeConfig::Type::default_);
  }
}

TEST_F(Config, FilledRopeScalingWinsOverRopeParameters) {
  json both = with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}});
  for (const json& empty : {json(nullptr), json::object()}) {
    both["rope_scaling"] = empty;
    EXPECT_EQ(read(both).rope.theta, 7.0);
  }
  both["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(read(both).rope.type, RopeConfig::Type::linear);
}

TEST_F(Config, RefusesOtherRopeTypesByName) {
  for (const char* type : {"dynamic", "yarn", "longrope", "su", "mrope", "ntk", "LINEAR", ""})
    for (const char* key : {"rope_type", "type"})
      EXPECT_THAT(error_of(with("rope_scaling", {{key, type}, {"factor", 2.0}})),
                  AllOf(HasSubstr(std::string("rope_scaling.") + key), HasSubstr(type), HasSubstr("llama3")));
}

TEST_F(Config, RefusesRopeFieldsThatAreMissingWrongOrUnknown) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  EXPECT_THAT(error_of(with("rope_scaling", llama3)), IsEmpty());
  for (const char* field : {"factor", "low_freq_factor", "high_freq_factor"}) {
    json broken = llama3;
    broken.erase(field);
    EXPECT_THAT(error_of(with("rope_scaling", broken)), AllOf(HasSubstr(field), HasSubstr("missing")));
    for (const json& value : {json("8"), json(0), json(-1.0), json(true), json::array()}) {
      broken[field] = value;
      EXPECT_THAT(error_of(with("rope_scaling", broken)), AllOf(HasSubstr(field), HasSubstr(value.dump())));
    }
  }
  json flat = llama3;
  flat["high_freq_factor"] = 1.0;
  EXPECT_THAT(error_of(with("rope_scaling", flat)), HasSubstr("high_freq_factor"));
  json unlike = llama3;
  unlike["type"] = "yarn";
  EXPECT_THAT(error_of(with("rope_scaling", unlike)),
              AllOf(HasSubstr("rope_scaling.type"), HasSubstr("yarn")));
  EXPECT_THAT(error_of(with("rope_scaling", {{"type", "linear"}})), HasSubstr("factor"));
  EXPECT_THAT(error_of(with("rope_scaling", {{"factor", 4.0}})), HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(
      error_of(with("rope_scaling", {{"type", "linear"}, {"factor", 4.0}, {"attention_factor", 2.0}})),
      HasSubstr("attention_factor"));
  EXPECT_THAT(error_of(with("rope_scaling", "linear")), HasSubstr("rope_scaling"));
  EXPECT_THAT(error_of(with("rope_parameters", {{"full_attention", {{"rope_type", "default"}}}})),
              HasSubstr("full_attention"));
  EXPECT_THAT(error_of(with("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}})),
              HasSubstr("partial_rotary_factor"));
  for (const json& theta : {json("10000"), json(0), json(-1), json(false)})
    EXPECT_THAT(error_of(with("rope_theta", theta)), AllOf(HasSubstr("rope_theta"), HasSubstr(theta.dump())));
}

TEST_F(Config, RefusesRopeNumbersWhoseAnglesFloatCannotHold) {
  const auto refused = [](const std::string& field, const json& value) {
    return HasSubstr(field + " is " + value.dump() + "; it must be a number from 1e-6 to 1e30");
  };
  for (const double wrong : {1e-300, 9e-7, 1.1e30, 1e300}) {
    EXPECT_THAT(error_of(with("rope_theta", wrong)), refused("rope_theta", wrong));
    json inside = without("rope_theta");
    inside["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", wrong}};
    EXPECT_THAT(error_of(inside), refused("rope_parameters.rope_theta", wrong));
    EXPECT_THAT(error_of(with("rope_scaling", {{"type", "linear"}, {"factor", wrong}})),
                refused("rope_scaling.factor", wrong));
    for (const char* field : {"factor", "low_freq_factor", "high_freq_factor"}) {
      json llama3 = {
          {"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
      llama3[field] = wrong;
      EXPECT_THAT(error_of(with("rope_scaling", llama3)),
                  refused(std::string("rope_scaling.") + field, wrong));
    }
  }
  EXPECT_EQ(read(with("rope_theta", 1e-6)).rope.theta, 1e-6);
  EXPECT_EQ(read(with("rope_theta", 1e30)).rope.theta, 1e30);
  // Two bands that are equal in float32: their distance, a divisor, becomes 0.
  EXPECT_THAT(error_of(with("rope_scaling", {{"rope_type", "llama3"},
                                             {"factor", 8.0},
                                             {"low_freq_factor", 4.0},
                                             {"high_freq_factor", 4.0 + 1e-9}})),
              HasSubstr("high_freq_factor"));
}

TEST_F(Config, NamesAGitLfsPointer) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 1234\n";
  EXPECT_THAT(error_of_text(pointer),
              AllOf(HasSubstr("config.json: this is a Git LFS pointer"), HasSubstr("git lfs pull")));
}

TEST_F(Config, TakesTheTrainedLengthFromWhereverItStands) {
  json config =
      with("rope_scaling",
           {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}});
  EXPECT_EQ(read(config).rope.original_max_position_embeddings, 128.0);  // max_position_embeddings
  config["original_max_position_embeddings"] = 32;
  EXPECT_EQ(read(config).rope.original_max_position_embeddings, 32.0);
  config["rope_scaling"]["original_max_position_embeddings"] = 64;
  EXPECT_THAT(error_of(config),
              AllOf(HasSubstr("original_max_position_embeddings"), HasSubstr("64"), HasSubstr("32")));
}

// As transformers' `generate`.
TEST_F(Config, TakesTheEndIdsOfGenerationConfigWhereThatFileExists) {
  json config = valid();
  const auto ids = [&](const json& in_config, const json& in_generation) {
    config["eos_token_id"] = in_config;
    write_file(folder_ / "generation_config.json",
               json{{"eos_token_id", in_generation}, {"do_sample", true}}.dump());
    return read(config).eos_ids;
  };
  EXPECT_THAT(ids(5, nullptr), IsEmpty());
  EXPECT_THAT(ids(5, json::array()), IsEmpty());
  EXPECT_THAT(ids(nullptr, 5), ElementsAre(5));
  EXPECT_THAT(ids(5, json::array({9, 5, 2})), ElementsAre(2, 5, 9));
  EXPECT_THAT(ids(json::array({7, 3}), 4), ElementsAre(4));
  EXPECT_THAT(ids(nullptr, nullptr), IsEmpty());
  EXPECT_THAT(ids(json::array(), 0), ElementsAre(0));
  for (const char* silent : {"{}", R"({"bos_token_id": 1})", R"({"_from_model_config": true})"}) {
    write_file(folder_ / "generation_config.json", silent);
    EXPECT_THAT(read(with("eos_token_id", 5)).eos_ids, IsEmpty()) << silent;
    EXPECT_THAT(read(without("eos_token_id")).eos_ids, IsEmpty()) << silent;
  }
  std::filesystem::remove(folder_ / "generation_config.json");
  EXPECT_THAT(read(with("eos_token_id", json::array({7, 3}))).eos_ids, ElementsAre(3, 7));
  EXPECT_THAT(read(with("eos_token_id", nullptr)).eos_ids, IsEmpty());
}

TEST_F(Config, AssumesLlamasEndIdOnlyWhereNoFileSpeaksOfOne) {
  EXPECT_THAT(read(without("eos_token_id")).eos_ids, ElementsAre(2));
  EXPECT_THAT(read(without("eos_token_id", "Qwen3ForCausalLM")).eos_ids, IsEmpty());
  write_file(folder_ / "generation_config.json", R"({"eos_token_id": 5})");
  EXPECT_THAT(read(without("eos_token_id")).eos_ids, ElementsAre(5));
}

TEST_F(Config, RefusesEndIdsThatAreNoIds) {
  for (const json& id : {json(-1), json(1.5), json("2"), json(true), json(2147483648U), json::object(),
                         json::array({1, "2"}), json::array({json::array({1})}), json::array({nullptr})})
    EXPECT_THAT(error_of(with("eos_token_id", id)), AllOf(HasSubstr("eos_token_id"), HasSubstr(id.dump())));
  EXPECT_THAT(error_of(with("eos_token_id", 9223372036854775808U)),
              HasSubstr("it must be a token id, 0 to 2147483647, or a list of token ids"));
  write_file(folder_ / "config.json", valid().dump());
  write_file(folder_ / "generation_config.json", R"({"eos_token_id": "2"})");
  EXPECT_THAT(message_of<InputError>([&] { return read_config(folder_.path()); }),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("eos_token_id")));
}

TEST_F(Config, RefusesOtherArchitecturesByName) {
  for (const char* other : {"Mistral3ForConditionalGeneration", "MixtralForCausalLM", "Qwen2Model",
                            "LlamaForSequenceClassification", "llama", ""})
    EXPECT_THAT(error_of(with("architectures", {other})),
                AllOf(HasSubstr("architectures"), HasSubstr(other), HasSubstr("Qwen3ForCausalLM")));
  EXPECT_THAT(error_of(with("architectures", {"LlamaForCausalLM", "Qwen3ForCausalLM"})),
              HasSubstr("architectures"));
  EXPECT_THAT(error_of(with("architectures", json::array())), HasSubstr("architectures"));
  EXPECT_THAT(error_of(with("architectures", 3)), HasSubstr("architectures"));
  EXPECT_THAT(error_of(with("model_type", "qwen3")), AllOf(HasSubstr("model_type"), HasSubstr("qwen3")));
  EXPECT_THAT(error_of(with("model_type", "mistral")), HasSubstr("mistral"));
  EXPECT_THAT(error_of(with("model_type", "llama", "MistralForCausalLM")), HasSubstr("\"llama\""));
  json anonymous = without("architectures");
  EXPECT_EQ(read(anonymous).architecture, "LlamaForCausalLM");
  anonymous["model_type"] = "gemma3";
  EXPECT_THAT(error_of(anonymous), AllOf(HasSubstr("model_type"), HasSubstr("gemma3")));
  anonymous.erase("model_type");
  EXPECT_THAT(error_of(anonymous), HasSubstr("architectures"));
  EXPECT_EQ(read(without("model_type", "Qwen2ForCausalLM")).architecture, "Qwen2ForCausalLM");
}

TEST_F(Config, RefusesEverySizeThatIsNoSize) {
  const std::vector<json> wrong = {json("64"),        json(1.5),      json(64.0),
                                   json(0),           json(-64),      json(true),
                                   json::array({64}), json::object(), json(9223372036854775808U),
                                   json(4294967296),  json(1e30)};
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings"})
    for (const json& value : wrong)
      EXPECT_THAT(error_of(with(field, value)), AllOf(HasSubstr(field), HasSubstr(value.dump())));
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    EXPECT_THAT(error_of(without(field)), AllOf(HasSubstr(field), HasSubstr("missing")));
    EXPECT_THAT(error_of(with(field, nullptr)), AllOf(HasSubstr(field), HasSubstr("missing")));
  }
}

/// With more ids the weights of equal logits would add up beyond 64 bits.
TEST_F(Config, RefusesAVocabularyThatTheSamplerCannotAddUp) {
  EXPECT_EQ(read(with("vocab_size", 8388608)).vocab_size, 8388608);
  EXPECT_THAT(error_of(with("vocab_size", 8388609)), AllOf(HasSubstr("vocab_size"), HasSubstr("8388608")));
}

TEST_F(Config, RefusesSizesWhoseProductsDoNotFit) {
  json config = valid();
  config.update({{"num_hidden_layers", 16384},
                 {"num_attention_heads", 1024},
                 {"num_key_value_heads", 1024},
                 {"head_dim", 16384},
                 {"max_position_embeddings", 2147483647}});
  EXPECT_THAT(error_of(config), HasSubstr("max_position_embeddings"));
  config["head_dim"] = 16382;
  config["num_attention_heads"] = 16384;
  EXPECT_THAT(error_of(config), HasSubstr("head_dim"));
}

TEST_F(Config, RefusesNumbersAndFlagsOfTheWrongKind) {
  for (const json& value : {json("1e-6"), json(0), json(-1e-6), json(1e-60), json(1e300), json(false)})
    EXPECT_THAT(error_of(with("rms_norm_eps", value)),
                AllOf(HasSubstr("rms_norm_eps"), HasSubstr(value.dump())));
  for (const char* field : {"tie_word_embeddings", "attention_bias", "mlp_bias"})
    for (const json& value : {json("true"), json(1), json(0), json::array()})
      EXPECT_THAT(error_of(with(field, value)), AllOf(HasSubstr(field), HasSubstr(value.dump())));
}

TEST_F(Config, RefusesFieldsThatChangeTheResult) {
  const std::vector<std::pair<const char*, json>> foreign = {
      {"quantization_config", {{"quant_method", "gptq"}}},
      {"num_experts", 8},
      {"num_local_experts", 8},
      {"n_routed_experts", 64},
      {"num_experts_per_tok", 2},
      {"moe_intermediate_size", 128},
      {"logits_scaling", 8.0},
      {"logit_scale", 0.0625},
      {"final_logit_softcapping", 30.0},
      {"attn_logit_softcapping", 50.0},
      {"embedding_multiplier", 12.0},
      {"residual_multiplier", 0.22},
      {"attention_multiplier", 0.0078125},
      {"query_pre_attn_scalar", 256},
      {"scale_emb", 12},
      {"clip_qkv", 8.0},
      {"partial_rotary_factor", 0.5},
      {"use_mrope", true},
      {"attention_chunk_size", 8192},
      {"is_causal", false},
      {"is_encoder_decoder", true},
      {"use_qk_norm", true},
      {"pruned_heads", {{"0", {1}}}},
      {"hidden_act", "gelu"},
      {"hidden_act", "gelu_pytorch_tanh"},
      {"hidden_act", 3},
      {"vision_config", json::object()}};
  for (const auto& [field, value] : foreign)
    EXPECT_THAT(error_of(with(field, value)), AllOf(HasSubstr(field), HasSubstr(value.dump()))) << field;
}

TEST_F(Config, PassesOverFieldsThatChangeNothing) {
  const std::vector<std::pair<const char*, json>> harmless = {
      {"quantization_config", nullptr}, {"num_experts", 0},      {"logits_scaling", 1.0},
      {"residual_multiplier", 1},       {"use_mrope", false},    {"partial_rotary_factor", 1.0},
      {"hidden_act", "silu"},           {"hidden_act", "swish"}, {"pretraining_tp", 4},
      {"attention_dropout", 0.1},       {"use_cache", false},    {"is_encoder_decoder", false},
      {"pruned_heads", json::object()}, {"torch_dtype", "bf16"}, {"transformers_version", "4.31.0"},
      {"initializer_range", 0.02},      {"bos_token_id", 1},     {"pad_token_id", -1}};
  for (const auto& [field, value] : harmless) EXPECT_THAT(error_of(with(field, value)), IsEmpty()) << field;
}

TEST_F(Config, ReadsMistralAsALlamaWithDefaultsOfItsOwn) {
  json sparse = valid("MistralForCausalLM");
  sparse["sliding_window"] = nullptr;
  for (const char* field : {"max_position_embeddings", "head_dim", "eos_token_id"}) sparse.erase(field);
  sparse["attention_bias"] = true;  // transformers has no such field here
  const ModelConfig config = read(sparse);
  EXPECT_EQ(config.architecture, "MistralForCausalLM");
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_THAT(config.eos_ids, ElementsAre(2));
  EXPECT_FALSE(config.qkv_bias || config.output_bias || config.mlp_bias || config.qk_norm);
  sparse.erase("architectures");
  EXPECT_EQ(read(sparse).architecture, "MistralForCausalLM");
}

TEST_F(Config, AWindowBelowTheContextBecomesTheContextAndSaysSo) {
  for (const char* family : {"LlamaForCausalLM", "MistralForCausalLM"}) {
    const auto context = [&](const json& window) {
      return read(with("sliding_window", window, family)).max_position_embeddings;
    };
    EXPECT_EQ(context(nullptr), 128);
    EXPECT_EQ(context(64), 64);
    EXPECT_EQ(context(127), 127);
    EXPECT_EQ(context(128), 128);
    EXPECT_EQ(context(4096), 128);
    for (const json& no_window : {json(0), json(-1), json("64"), json(1.5), json(true)})
      EXPECT_THAT(error_of(with("sliding_window", no_window, family)),
                  AllOf(HasSubstr("sliding_window"), HasSubstr(no_window.dump())));
  }
  EXPECT_THAT(read(with("sliding_window", 64)).context_sentence(),
              AllOf(HasSubstr("context is 64"), HasSubstr("sliding_window")));
  EXPECT_EQ(read(with("sliding_window", 128)).context_sentence(), "the model's context is 128");
}

TEST_F(Config, MistralHasAWindowOf4096UnlessItsFileSaysOtherwise) {
  json config = valid("MistralForCausalLM");
  config["max_position_embeddings"] = 32768;
  EXPECT_EQ(read(config).max_position_embeddings, 4096);
  config["layer_types"] = {"full_attention", "full_attention"};  // Mistral's attention does not look at these
  EXPECT_EQ(read(config).max_position_embeddings, 4096);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(read(config).max_position_embeddings, 32768);
  EXPECT_EQ(read(config).sliding_window, 0);
}

TEST_F(Config, AWindowDoesNotChangeHowPositionsTurn) {
  json config =
      with("rope_scaling",
           {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}});
  config["sliding_window"] = 16;
  EXPECT_EQ(read(config).rope.original_max_position_embeddings, 128.0);  // of the file, not of the window
}

TEST_F(Config, QwensWindowCountsWhereItIsSwitchedOnAndHasLayers) {
  for (const char* family : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    json config = valid(family);
    config.update({{"sliding_window", 64}, {"max_window_layers", 1}, {"use_sliding_window", false}});
    const auto context = [&] { return read(config).max_position_embeddings; };
    EXPECT_EQ(context(), 128);
    config["use_sliding_window"] = true;
    EXPECT_EQ(context(), 64);
    config["max_window_layers"] = 2;  // as many as there are: no layer has a window
    EXPECT_EQ(context(), 128);
    config["max_window_layers"] = 0;
    EXPECT_EQ(context(), 64);
    config["layer_types"] = {"full_attention", "full_attention"};  // which then decides
    EXPECT_EQ(context(), 128);
    config["layer_types"] = {"full_attention", "sliding_attention"};
    config["max_window_layers"] = 2;
    EXPECT_EQ(context(), 64);
    config.erase("layer_types");
    config["max_window_layers"] = 0;
    config["sliding_window"] = nullptr;
    EXPECT_EQ(context(), 128);
    config.erase("sliding_window");  // transformers then assumes 4096
    config["max_position_embeddings"] = 8192;
    EXPECT_EQ(context(), 4096);
    config["use_sliding_window"] = 1;
    EXPECT_THAT(error_of(config), HasSubstr("use_sliding_window"));
  }
}

TEST_F(Config, QwensWindowBeginsAtLayer28WhereTheFileDoesNotSay) {
  json config = valid("Qwen2ForCausalLM");
  config.update({{"use_sliding_window", true}, {"sliding_window", 64}, {"num_hidden_layers", 28}});
  EXPECT_EQ(read(config).max_position_embeddings, 128);  // as in Qwen2.5-7B: no layer is left for it
  config["num_hidden_layers"] = 29;
  EXPECT_EQ(read(config).max_position_embeddings, 64);
}

TEST_F(Config, RefusesLayersOfOtherTypes) {
  for (const char* family : families) {
    json config = with("sliding_window", nullptr, family);
    const auto error_of_types = [&](const json& types) {
      config["layer_types"] = types;
      return error_of(config);
    };
    EXPECT_THAT(error_of_types({"full_attention", "full_attention"}), IsEmpty());
    for (const char* other : {"sliding_attention", "chunked_attention", "linear_attention"})
      EXPECT_THAT(error_of_types({"full_attention", other}),
                  AllOf(HasSubstr("layer_types"), HasSubstr(other)));
    EXPECT_THAT(error_of_types({"full_attention"}), HasSubstr("layer_types"));
    EXPECT_THAT(error_of_types("full_attention"), HasSubstr("layer_types"));
  }
}

TEST_F(Config, SaysWhichFolderIsWanted) {
  EXPECT_THAT(message_of<InputError>([&] { return read_config(folder_.path()); }),
              AllOf(HasSubstr(folder_.path().string()), HasSubstr("holds no config.json"),
                    HasSubstr("Hugging Face")));
  EXPECT_THAT(message_of<InputError>([&] { return read_config(folder_ / "absent"); }),
              AllOf(HasSubstr("absent"), HasSubstr("no such folder")));
  write_file(folder_ / "model.safetensors", "");
  EXPECT_THAT(message_of<InputError>([&] { return read_config(folder_ / "model.safetensors"); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("not a folder")));
  std::filesystem::create_directory(folder_ / "config.json");
  EXPECT_THAT(message_of<InputError>([&] { return read_config(folder_.path()); }),
              HasSubstr("not a regular file"));
}

TEST_F(Config, SaysThatGgufIsNotReadAndWhatIs) {
  const auto gguf =
      AllOf(HasSubstr("GGUF is not read"), HasSubstr("config.json"), HasSubstr("model.safetensors"));
  const auto error_of_model = [](const std::filesystem::path& path) {
    return message_of<InputError>([&] { return read_config(path); });
  };
  write_file(folder_ / "model.gguf", "GGUF\3");
  write_file(folder_ / "sha256-0123", "GGUF\3");  // as some programs keep it
  EXPECT_THAT(error_of_model(folder_ / "model.gguf"), AllOf(HasSubstr("model.gguf is not a folder"), gguf));
  EXPECT_THAT(error_of_model(folder_ / "sha256-0123"), AllOf(HasSubstr("is not a folder"), gguf));
  for (const char* name : {"model.gguf", "sha256-0123", "MODEL.GGUF"}) {
    const TemporaryFolder folder;
    write_file(folder / name, "GGUF\3");
    EXPECT_THAT(error_of_model(folder.path()), AllOf(HasSubstr("holds no config.json"), gguf)) << name;
  }
}

class ConfigFiles : public Config {
 protected:
  std::string error() {
    return message_of<InputError>([&] { return read_config(folder_.path()); });
  }
  void expect_error(const std::string& name, const std::string& reason) {
    EXPECT_THAT(error(), AllOf(HasSubstr((folder_ / name).string() + ": "), HasSubstr(reason)));
  }
};

TEST_F(ConfigFiles, AreNotAbsentWhereALinkLeadsNowhere) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    write_file(folder_ / "config.json", valid().dump());
    std::filesystem::remove(folder_ / name);
    std::filesystem::create_symlink("gone", folder_ / name);
    expect_error(name, "no such file, this is a link to gone");
    std::filesystem::remove(folder_ / name);
  }
}

TEST_F(ConfigFiles, AreRefusedWithTheSystemsReason) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const auto put_a_config = [&] { write_file(folder_ / "config.json", valid().dump()); };
    const auto clear = [&] { std::filesystem::remove(folder_ / name); };
    put_a_config(), clear();
    std::filesystem::create_symlink(name, folder_ / name);  // to itself
    expect_error(name, "Too many levels of symbolic links");
    put_a_config(), clear();
    std::filesystem::create_symlink(std::string(300, 'x'), folder_ / name);
    expect_error(name, "File name too long");
    put_a_config(), clear();
    ASSERT_EQ(::mkfifo((folder_ / name).c_str(), 0600), 0);
    expect_error(name, "not a regular file");
    put_a_config(), clear();
    std::filesystem::create_symlink("/dev/zero", folder_ / name);
    expect_error(name, "not a regular file");
    clear();
    std::filesystem::create_directory(folder_ / name);
    expect_error(name, "not a regular file");
    clear();
  }
}

TEST_F(ConfigFiles, OfAnotherUserAreNotAbsent) {
  namespace fs = std::filesystem;
  const auto error_for_nobody = [&] { return as_nobody([&] { return error(); }); };
  fs::permissions(folder_.path(), fs::perms::all);
  fs::create_directory(folder_ / "locked");
  write_file(folder_ / "locked/file.json", valid().dump());
  fs::permissions(folder_ / "locked", fs::perms::none);
  for (const char* name : {"generation_config.json", "config.json"}) {
    write_file(folder_ / "config.json", valid().dump());
    write_file(folder_ / name, valid().dump());
    fs::permissions(folder_ / name, fs::perms::none);
    EXPECT_THAT(error_for_nobody(),
                AllOf(HasSubstr((folder_ / name).string()), HasSubstr("Permission denied")));
    fs::remove(folder_ / name);
    fs::create_symlink("locked/file.json", folder_ / name);  // behind a folder that may not be entered
    EXPECT_THAT(error_for_nobody(),
                AllOf(HasSubstr((folder_ / name).string()), HasSubstr("Permission denied")));
    fs::remove(folder_ / name);
  }
  fs::permissions(folder_.path(), fs::perms::none);
  EXPECT_THAT(error_for_nobody(), AllOf(HasSubstr(folder_.path().string()), HasSubstr("Permission denied")));
  fs::permissions(folder_.path(), fs::perms::owner_all);
  fs::permissions(folder_ / "locked", fs::perms::owner_all);
}

TEST_F(ConfigFiles, MayLackGenerationConfigOrHaveAnEmptyOne) {
  EXPECT_THAT(read(with("eos_token_id", 5)).eos_ids, ElementsAre(5));
  write_file(folder_ / "generation_config.json", "");
  EXPECT_THAT(read(with("eos_token_id", 5)).eos_ids, ElementsAre(5));
  EXPECT_THAT(read(without("eos_token_id")).eos_ids, ElementsAre(2));
  write_file(folder_ / "generation_config.json", "{}");
  EXPECT_THAT(read(with("eos_token_id", 5)).eos_ids, IsEmpty());
  for (const char* damaged : {" ", "{", "[]", "null"}) {
    write_file(folder_ / "generation_config.json", damaged);
    expect_error("generation_config.json", "");
  }
}

TEST_F(ConfigFiles, AreBoundedInSize) {
  const std::string padding(4'000'000, ' ');
  EXPECT_THAT(error_of_text(valid().dump() + padding), AllOf(HasSubstr("4000"), HasSubstr("more than")));
  write_file(folder_ / "config.json", valid().dump());
  write_file(folder_ / "generation_config.json", "{}" + padding);
  expect_error("generation_config.json", "4000002 bytes are more than the 4000000 that are read");
}

TEST_F(Config, ReadsNoNumberOfARopeThatIsDefaultByName) {
  const RopeConfig rope =
      read(with("rope_scaling", {{"rope_type", "default"}, {"factor", 8.0}, {"mrope_section", {2, 1, 1}}}))
          .rope;
  EXPECT_EQ(rope.type, RopeConfig::Type::default_);
  EXPECT_EQ(rope.factor, 1.0);
  EXPECT_EQ(rope.theta, 10000.0);
}

TEST_F(Config, RefusesAnEmptyQuantizationConfigAsTransformersDoes) {
  EXPECT_THAT(error_of(with("quantization_config", json::object())), HasSubstr("quantization_config is {}"));
}

TEST_F(Config, RefusesTextThatIsNotOneJsonObject) {
  for (const char* text : {"", "{", "[]", "null", "\"x\"", "{:", "{}{}", "{\"a\":NaN}", "{\"a\":Infinity}",
                           "{\"a\":1e999}", "{'a':1}", "{\"a\":1,}"})
    EXPECT_THAT(error_of_text(text), Not(IsEmpty())) << text;
  EXPECT_THAT(error_of_text(std::string(100'000, '[')), HasSubstr("nested"));
  EXPECT_THAT(error_of_text(valid().dump() + std::string("\0 {}", 4)), HasSubstr("NUL"));
}

TEST_F(Config, QuotesLittleOfTextThatIsWrongAndNamesThePlace) {
  const std::string tabs(1'000'000, '\t');
  std::string wolves;
  for (int n = 0; n < 100'000; ++n) wolves += "\U0001F43A";
  const std::pair<std::string, std::string> wrong[] = {
      {"{\"a\":" + tabs + "x}", "line 1, column 1000006"},
      {"{\n\"a\":\n" + tabs + "\"\x01\"}", "line 3, column 1000002"},
      {"{\"a\":\"" + wolves, "line 1, column"},
      {"{\"a\":" + std::string(1'000'000, '1') + "x}", "line 1, column"},
      {"{\n\"a\":1" + std::string(1'000, '0') + "}", "line 2, column 1006"},
      {"{\n  \"]\\\"\":" + std::string(100'000, '['), "nested more than 64 levels deep at line 2, column 72"},
      {"[[],{}," + std::string(64, '['), "nested more than 64 levels deep at line 1, column 71"},
      {std::string("{}\n\n \0", 6), "line 3, column 2"},
      {"{\"" + wolves + "\":1,\"" + wolves + "\":2}", "is given twice"},
      {"[\"" + wolves + "\"]", "..."},
      {with("hidden_size", wolves).dump(), "hidden_size"},
      {with("hidden_size", {{wolves, wolves}}).dump(), "hidden_size"},
      {with("architectures", {wolves}).dump(), "architectures"},
  };
  for (const auto& [text, place] : wrong) {
    const std::string error = error_of_text(text);
    EXPECT_THAT(error, HasSubstr(place));
    EXPECT_LT(error.size(), 600U) << error.substr(0, 1000);
  }
}

TEST(Shown, IsCutBetweenCharacters) {
  std::string wolves;
  for (int n = 0; n < 20; ++n) wolves += "\U0001F43A";
  const std::string wolf = R"(\ud83d\udc3a)", umlaut = R"(\u00e4)";
  for (std::size_t before = 0; before < 12; ++before) {
    const std::string text = shown(std::string(before, 'x') + wolves);
    EXPECT_LE(text.size(), 103U);
    EXPECT_THAT(text, testing::EndsWith(wolf + "...")) << before;
  }
  EXPECT_THAT(shown(std::string(98, 'x') + "\u00e4\u00e4"), testing::EndsWith("x..."));
  EXPECT_THAT(shown(std::string(98, 'x') + "\n\n"), testing::EndsWith("x..."));
  EXPECT_EQ(shown("a\u00e4"), "\"a" + umlaut + "\"");
}

TEST_F(Config, RefusesAFieldGivenTwice) {
  std::string text = valid().dump();
  text.insert(1, R"("rope_theta":500000.0,)");
  EXPECT_THAT(error_of_text(text), AllOf(HasSubstr("rope_theta"), HasSubstr("twice")));
}

TEST_F(Config, SurvivesDamagedText) {
  const std::string whole = with("rope_scaling", {{"rope_type", "llama3"},
                                                  {"factor", 8.0},
                                                  {"low_freq_factor", 1.0},
                                                  {"high_freq_factor", 4.0},
                                                  {"original_max_position_embeddings", 64}})
                                .dump();
  constexpr std::string_view likely = "0123456789[]{},:\"-.eE \0\xff";
  std::mt19937_64 random(2);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = whole;
    for (std::size_t change = 0; change < 1 + below(3); ++change) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.insert(at, 1, likely[below(likely.size())]);
          break;
        case 2:
          text.erase(at, 1 + below(8));
          break;
        default:
          text[at] = likely[below(likely.size())];
          break;
      }
    }
    if (below(20) == 0) text.resize(below(text.size()));
    ++(error_of_text(text).empty() ? accepted : refused);
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 1000);
}

TEST(NamedConfig, KnowsPublishedShapes) {
  const ModelConfig qwen3 = named_config("qwen3-0.6b");
  EXPECT_EQ(qwen3.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(qwen3.kv_bytes_per_token(2), 114688);
  EXPECT_TRUE(qwen3.qk_norm && qwen3.tie_word_embeddings && !qwen3.qkv_bias);
  const ModelConfig fairytale = named_config("fairytale");
  EXPECT_EQ(fairytale.layers, 8);
  EXPECT_EQ(fairytale.vocab_size, 4096);
  EXPECT_TRUE(named_config("qwen2.5-0.5b").qkv_bias);
  EXPECT_EQ(named_config("tinyllama-1.1b").kv_heads, 4);
  EXPECT_EQ(named_config("llama-3.2-1b").rope.factor, 32.0);
}

/// The numbers of parameters from the model cards; a wrong size anywhere shows here.
TEST(NamedConfig, ShapesHaveThePublishedNumberOfParameters) {
  const std::map<std::string, std::int64_t> published = {
      {"qwen3-0.6b", 596'049'920},     {"qwen3-1.7b", 1'720'574'976},     {"qwen3-4b", 4'022'468'096},
      {"qwen3-8b", 8'190'735'360},     {"qwen2.5-0.5b", 494'032'768},     {"qwen2.5-1.5b", 1'543'714'304},
      {"smollm2-135m", 134'515'008},   {"tinyllama-1.1b", 1'100'048'384}, {"llama-3.2-1b", 1'235'814'400},
      {"llama-3.2-3b", 3'212'749'824}, {"llama-3.1-8b", 8'030'261'248}};
  for (const auto& [name, parameters] : published) {
    const ModelConfig config = named_config(name);
    const std::int64_t q = config.heads * config.head_dim;
    const std::int64_t kv = config.kv_heads * config.head_dim;
    const std::int64_t layer = config.hidden_size * (2 * q + 2 * kv + 3 * config.intermediate_size + 2) +
                               (config.qkv_bias ? q + 2 * kv : 0) +
                               (config.qk_norm ? 2 * config.head_dim : 0);
    const std::int64_t tables = config.vocab_size * config.hidden_size * (config.tie_word_embeddings ? 1 : 2);
    EXPECT_EQ(config.layers * layer + tables + config.hidden_size, parameters) << name;
  }
}

TEST(NamedConfig, HaveRoomForLongPromptsAndNoEnd) {
  for (const char* name : {"fairytale", "qwen3-0.6b", "llama-3.2-1b"}) {
    EXPECT_EQ(named_config(name).max_position_embeddings, 32768);
    EXPECT_THAT(named_config(name).eos_ids, IsEmpty());
  }
}

TEST(NamedConfig, ListsTheNamesForAnUnknownOne) {
  EXPECT_THAT(message_of<InputError>([] { return named_config("gpt-2"); }),
              AllOf(HasSubstr("\"gpt-2\""), HasSubstr("fairytale"), HasSubstr("qwen3-0.6b")));
}

}  // namespace
}  // namespace kvcache::test
