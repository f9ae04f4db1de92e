/// @file
/// Loading weights: every tensor is found, checked against the configuration, and kept or rounded. A tensor
/// that does not fit is refused with its name and file. And weights made from a seed.
#include "common/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <set>

#include "common/base/error.h"
#include "common/base/stored_number.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/sanitized.h"

namespace kvcache::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::filesystem::path references = std::filesystem::path(SOURCE_DIR) / "tests/reference";

constexpr const char* llama = "LlamaForCausalLM";
constexpr const char* qwen2 = "Qwen2ForCausalLM";
constexpr const char* qwen3 = "Qwen3ForCausalLM";

std::vector<float> values_of(const Weight& weight) {
  std::vector<float> values;
  for (std::int64_t index = 0; index < weight.rows * weight.cols; ++index)
    values.push_back(read_number(weight.dtype, weight.data + index * size_of(weight.dtype)));
  return values;
}

std::vector<float> rounded(std::vector<float> values, DType dtype) {
  for (float& value : values) value = round_to(dtype, value);
  return values;
}

/// All weights, also absent ones, with their names in a checkpoint.
std::map<std::string, Weight> named(const Weights& weights) {
  std::map<std::string, Weight> all = {{"model.embed_tokens.weight", weights.embedding},
                                       {"model.norm.weight", weights.final_norm},
                                       {"lm_head.weight", weights.lm_head}};
  for (std::size_t index = 0; index < weights.layers.size(); ++index) {
    const LayerWeights& layer = weights.layers[index];
    const std::string at = "model.layers." + std::to_string(index) + ".";
    all[at + "input_layernorm.weight"] = layer.attention_norm;
    all[at + "post_attention_layernorm.weight"] = layer.mlp_norm;
    all[at + "self_attn.q_norm.weight"] = layer.q_norm;
    all[at + "self_attn.k_norm.weight"] = layer.k_norm;
    const std::pair<const char*, const Projection*> projections[] = {
        {"self_attn.q_proj", &layer.q}, {"self_attn.k_proj", &layer.k}, {"self_attn.v_proj", &layer.v},
        {"self_attn.o_proj", &layer.o}, {"mlp.gate_proj", &layer.gate}, {"mlp.up_proj", &layer.up},
        {"mlp.down_proj", &layer.down}};
    for (const auto& [name, projection] : projections) {
      all[at + name + ".weight"] = projection->weight;
      all[at + name + ".bias"] = projection->bias;
    }
  }
  return all;
}

class LoadWeights : public ::testing::Test {
 protected:
  Weights load(DType dtype = DType::f32, const LoadProgress& progress = {}) {
    return load_weights(folder_.path(), read_config(folder_.path()), dtype, progress);
  }
  /// The error of loading the folder; it must name `file`.
  std::string error_in(const std::string& file, DType dtype = DType::f32) {
    std::string error = message_of<InputError>([&] { load(dtype); });
    EXPECT_THAT(error, AllOf(HasSubstr((folder_ / file).string()), Not(HasSubstr("\n"))));
    return error;
  }
  std::string error_of(const TestCheckpoint& checkpoint, DType dtype = DType::f32) {
    checkpoint.save(folder_.path());
    return error_in("model.safetensors", dtype);
  }
  /// Loads the folder, and compares every weight with the saved one, rounded to `dtype`.
  void expect_loads(const TestCheckpoint& checkpoint, DType dtype = DType::f32) {
    const Weights weights = load(dtype);
    for (const auto& [name, weight] : named(weights)) {
      const auto saved = checkpoint.tensors.find(name);
      if (saved == checkpoint.tensors.end()) {
        EXPECT_TRUE(!weight.present() || name == "lm_head.weight") << name;
        continue;
      }
      const TestTensor& tensor = saved->second;
      const DType stored = tensor.dtype == "F32"   ? DType::f32
                           : tensor.dtype == "F16" ? DType::f16
                                                   : DType::bf16;
      const DType expected = dtype == DType::f32 ? stored : dtype;
      ASSERT_TRUE(weight.present()) << name;
      EXPECT_EQ(weight.dtype, expected) << name;
      EXPECT_EQ(weight.rows, tensor.shape.size() == 1 ? 1 : tensor.shape[0]) << name;
      EXPECT_EQ(weight.cols, tensor.shape.back()) << name;
      EXPECT_EQ(values_of(weight), rounded(rounded(tensor.values, stored), expected)) << name;
    }
  }

  TemporaryFolder folder_;
};

TEST_F(LoadWeights, FindsEveryTensorOfEveryFamily) {
  for (const char* family : {llama, "MistralForCausalLM", qwen2, qwen3})
    for (const bool tied : {false, true}) {
      const TestCheckpoint checkpoint(family, {{"tie_word_embeddings", tied}});
      checkpoint.save(folder_.path());
      expect_loads(checkpoint);
    }
}

TEST_F(LoadWeights, FindsOptionalBiases) {
  for (const TestCheckpoint& checkpoint :
       {TestCheckpoint(llama, {{"attention_bias", true}, {"mlp_bias", true}}),
        TestCheckpoint(qwen3, {{"attention_bias", true}})}) {
    checkpoint.save(folder_.path());
    expect_loads(checkpoint);
  }
}

/// transformers fills such biases with zeros, and says so.
TEST_F(LoadWeights, ABiasThatNoLayerStoresIsAbsent) {
  for (const char* family : {llama, qwen3})
    for (const char* projection : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      TestCheckpoint checkpoint(family, {{"attention_bias", true}});
      for (const char* layer : {"0", "1"})
        checkpoint.tensors.erase(std::string("model.layers.") + layer + ".self_attn." + projection + ".bias");
      checkpoint.save(folder_.path());
      expect_loads(checkpoint);
    }
}

TEST_F(LoadWeights, ABiasThatOneLayerStoresIsMissingInTheOther) {
  const TestCheckpoint whole(llama, {{"attention_bias", true}, {"mlp_bias", true}});
  for (const auto& [name, tensor] : whole.tensors) {
    TestCheckpoint checkpoint = whole;
    checkpoint.tensors.erase(name);
    EXPECT_THAT(error_of(checkpoint), AllOf(HasSubstr("\"" + name + "\""), HasSubstr("missing")));
  }
}

TEST_F(LoadWeights, TakesHeadDimFromTheConfiguration) {
  const TestCheckpoint checkpoint(llama, {{"hidden_size", 64}, {"num_attention_heads", 4}, {"head_dim", 32}});
  checkpoint.save(folder_.path());
  expect_loads(checkpoint);
  EXPECT_EQ(load().layers[0].o.weight.cols, 4 * 32);
}

TEST_F(LoadWeights, LoadsAllReferenceCheckpoints) {
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(references)) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;  // answers for the shipped model
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const ModelConfig config = read_config(entry.path());
      const Weights weights = load_weights(entry.path(), config, dtype);
      double sum = 0;
      for (const auto& [name, weight] : named(weights))
        if (weight.present())
          for (const float value : values_of(weight)) sum += std::abs(value);
      EXPECT_TRUE(std::isfinite(sum) && sum > 100) << entry.path();
    }
    ++folders;
  }
  EXPECT_GE(folders, 6);
}

TEST_F(LoadWeights, KeepsStoredTypesForF32) {
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    const TestCheckpoint checkpoint(qwen3, {}, dtype);
    checkpoint.save(folder_.path());
    expect_loads(checkpoint);
  }
  TestCheckpoint mixed(qwen3);
  mixed.store_as("BF16", "self_attn");
  mixed.store_as("F16", "mlp");
  mixed.save(folder_.path());
  expect_loads(mixed);
}

TEST_F(LoadWeights, RoundsOtherTypesOnceForF16AndBf16) {
  TestCheckpoint mixed(qwen3);
  mixed.store_as("BF16", "self_attn");
  mixed.store_as("F16", "mlp");
  mixed.save(folder_.path());
  expect_loads(mixed, DType::f16);
  expect_loads(mixed, DType::bf16);
}

TEST_F(LoadWeights, RoundsToNearestEvenAndKeepsNaN) {
  TestCheckpoint checkpoint(llama);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float>& norm = checkpoint.tensors["model.norm.weight"].values;
  norm[0] = 1.00390625F;                        // halfway between 1 and the next bfloat16: to even, 1
  norm[1] = std::nextafter(1.00390625F, 2.0F);  // above halfway: up
  norm[2] = 1.01171875F;                        // halfway, to even: up
  norm[3] = nan;
  norm[4] = 0x1p-133F;  // the smallest subnormal bfloat16
  checkpoint.save(folder_.path());
  const Weights weights = load(DType::bf16);
  const std::vector<float> loaded = values_of(weights.final_norm);
  EXPECT_EQ(loaded[0], 1.0F);
  EXPECT_EQ(loaded[1], 1.0078125F);
  EXPECT_EQ(loaded[2], 1.015625F);
  EXPECT_TRUE(std::isnan(loaded[3]));
  EXPECT_EQ(loaded[4], 0x1p-133F);
}

TEST_F(LoadWeights, RefusesNumbersThatFloat16CannotHold) {
  for (const char* stored : {"F32", "BF16"}) {
    for (const float value : {1e5F, -1e5F, 65536.0F, std::numeric_limits<float>::infinity()}) {
      TestCheckpoint checkpoint(llama, {}, stored);
      checkpoint.tensors["model.layers.1.mlp.up_proj.weight"].values[3] = value;
      EXPECT_THAT(error_of(checkpoint, DType::f16),
                  AllOf(HasSubstr("\"model.layers.1.mlp.up_proj.weight\""), HasSubstr("65504"),
                        HasSubstr("index 3"), HasSubstr("bf16 or f32")));
      expect_loads(checkpoint, DType::f32);
      if (std::isfinite(value)) expect_loads(checkpoint, DType::bf16);
    }
  }
  TestCheckpoint checkpoint(llama);
  checkpoint.tensors["model.norm.weight"].values[0] = -65504.0F;
  checkpoint.save(folder_.path());
  expect_loads(checkpoint, DType::f16);
  checkpoint.tensors["model.norm.weight"].values[0] = 1e5F;
  EXPECT_THAT(error_of(checkpoint, DType::f16), AllOf(HasSubstr("model.norm.weight"), HasSubstr("100000")));
}

TEST_F(LoadWeights, NamesTheFirstNumberBeyondTheRange) {
  TestCheckpoint checkpoint(llama);
  std::vector<float>& values = checkpoint.tensors["model.embed_tokens.weight"].values;
  values[2000] = 2e5F;
  values[1000] = 1e5F;
  EXPECT_THAT(error_of(checkpoint, DType::f16), AllOf(HasSubstr("index 1000"), HasSubstr("100000")));
}

TEST_F(LoadWeights, ReadsDataAtAnyAlignment) {
  const TestCheckpoint checkpoint(llama);
  for (std::size_t padding = 0; padding < 4; ++padding) {
    checkpoint.save(folder_.path(), padding);
    expect_loads(checkpoint);
    expect_loads(checkpoint, DType::bf16);
  }
}

TEST_F(LoadWeights, TiedHeadIsTheEmbedding) {
  TestCheckpoint checkpoint(llama, {{"tie_word_embeddings", true}});
  checkpoint.save(folder_.path());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Weights weights = load(dtype);
    EXPECT_EQ(weights.lm_head.data, weights.embedding.data);
    EXPECT_EQ(weights.lm_head.rows, 96);
  }
}

/// As in transformers 5: two tensors that differ in the file are not tied.
TEST_F(LoadWeights, ATiedModelStoredWithAHeadOfItsOwnUsesThatHead) {
  TestCheckpoint checkpoint(llama, {{"tie_word_embeddings", true}});
  checkpoint.tensors["lm_head.weight"] = {"F32", {96, 32}, std::vector<float>(96 * 32, 7.0F), {}};
  checkpoint.save(folder_.path());
  const Weights weights = load();
  EXPECT_EQ(values_of(weights.lm_head), std::vector<float>(96 * 32, 7.0F));
  EXPECT_EQ(values_of(weights.embedding), checkpoint.tensors["model.embed_tokens.weight"].values);
}

/// A saver that stores a shared tensor once may keep either of its two names.
TEST_F(LoadWeights, FindsATiedTableUnderTheHeadsName) {
  TestCheckpoint checkpoint(llama, {{"tie_word_embeddings", true}});
  auto table = checkpoint.tensors.extract("model.embed_tokens.weight");
  table.key() = "lm_head.weight";
  checkpoint.tensors.insert(std::move(table));
  checkpoint.save(folder_.path());
  EXPECT_EQ(values_of(load().embedding), checkpoint.tensors["lm_head.weight"].values);
}

TEST_F(LoadWeights, UntiedHeadIsItsOwn) {
  const TestCheckpoint checkpoint(llama);
  checkpoint.save(folder_.path());
  const Weights weights = load();
  EXPECT_EQ(values_of(weights.lm_head), checkpoint.tensors.at("lm_head.weight").values);
  EXPECT_NE(values_of(weights.lm_head), values_of(weights.embedding));
}

TEST_F(LoadWeights, RefusesAnUntiedModelWithoutAHead) {
  TestCheckpoint checkpoint(llama);
  checkpoint.tensors.erase("lm_head.weight");
  EXPECT_THAT(error_of(checkpoint),
              AllOf(HasSubstr("\"lm_head.weight\""), HasSubstr("missing"), HasSubstr("tie")));
}

TEST_F(LoadWeights, NamesAnyTensorThatIsMissing) {
  const TestCheckpoint whole(qwen2);
  for (const auto& [name, tensor] : whole.tensors) {
    TestCheckpoint checkpoint = whole;
    checkpoint.tensors.erase(name);
    EXPECT_THAT(error_of(checkpoint), AllOf(HasSubstr("\"" + name + "\""), HasSubstr("missing")));
  }
}

TEST_F(LoadWeights, ShowsBothShapesWhereTheyDiffer) {
  const TestCheckpoint whole(qwen3);
  for (const auto& [name, tensor] : whole.tensors) {
    TestCheckpoint checkpoint = whole;
    TestTensor& changed = checkpoint.tensors[name];
    changed.shape.push_back(1);  // the same numbers, another rank
    EXPECT_THAT(error_of(checkpoint),
                AllOf(HasSubstr("\"" + name + "\""), HasSubstr(json(changed.shape).dump()),
                      HasSubstr(json(tensor.shape).dump())));
  }
  TestCheckpoint transposed = whole;
  transposed.tensors["model.layers.0.mlp.up_proj.weight"].shape = {32, 48};
  EXPECT_THAT(error_of(transposed), AllOf(HasSubstr("up_proj"), HasSubstr("[32,48]"), HasSubstr("[48,32]")));
}

TEST_F(LoadWeights, RefusesTensorsThatWouldChangeTheResult) {
  for (const char* name :
       {"model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.o_proj.bias",
        "model.layers.2.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight_scale",
        "model.layers.0.self_attn.q_proj.qweight", "lm_head.bias",
        "model.layers.0.mlp.experts.0.up_proj.weight", "model.layers.00.mlp.up_proj.weight", "score.weight",
        "Model.norm.weight", "norm.weight"}) {
    TestCheckpoint checkpoint(llama);
    checkpoint.tensors[name] = {"F32", {1}, {0.0F}, {}};
    EXPECT_THAT(error_of(checkpoint),
                AllOf(HasSubstr(std::string("\"") + name + "\""), HasSubstr("no place")));
  }
}

TEST_F(LoadWeights, PassesOverStoredRotationFrequencies) {
  TestCheckpoint checkpoint(llama);
  checkpoint.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F64", {1}, {}, std::string(8, '\0')};
  checkpoint.tensors["model.rotary_emb.inv_freq"] = {"F32", {4}, {1, 2, 3, 4}, {}};
  checkpoint.save(folder_.path());
  expect_loads(checkpoint);
}

TEST_F(LoadWeights, RefusesWeightsOfTypesThatAreNotFloat) {
  for (const auto& [dtype, bytes] :
       {std::pair{"I8", 1}, {"U8", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F64", 8}, {"I64", 8}}) {
    TestCheckpoint checkpoint(llama);
    TestTensor& tensor = checkpoint.tensors["model.layers.1.self_attn.k_proj.weight"];
    tensor.dtype = dtype;
    tensor.raw = std::string(tensor.values.size() * static_cast<std::size_t>(bytes), '\1');
    for (const DType wanted : {DType::f32, DType::f16})
      EXPECT_THAT(error_of(checkpoint, wanted),
                  AllOf(HasSubstr("\"model.layers.1.self_attn.k_proj.weight\""), HasSubstr(dtype)));
  }
}

TEST_F(LoadWeights, LoadsACheckpointSavedWithoutItsHead) {
  TestCheckpoint checkpoint(qwen3, {{"tie_word_embeddings", true}});
  TestCheckpoint bare = checkpoint;
  bare.tensors.clear();
  for (const auto& [name, tensor] : checkpoint.tensors)
    bare.tensors[name.substr(std::strlen("model."))] = tensor;
  bare.save(folder_.path());
  expect_loads(checkpoint);
  bare.tensors.erase("layers.0.mlp.up_proj.weight");
  EXPECT_THAT(error_of(bare), HasSubstr("\"layers.0.mlp.up_proj.weight\""));
}

TEST_F(LoadWeights, JoinsShards) {
  for (const std::size_t shards : {1U, 2U, 3U, 7U}) {
    const TemporaryFolder folder;
    const TestCheckpoint checkpoint(qwen3);
    checkpoint.save_sharded(folder.path(), shards);
    const ModelConfig config = read_config(folder.path());
    const Weights weights = load_weights(folder.path(), config, DType::f32);
    for (const auto& [name, weight] : named(weights))
      if (checkpoint.tensors.contains(name)) {
        EXPECT_EQ(values_of(weight), checkpoint.tensors.at(name).values);
      }
  }
}

TEST_F(LoadWeights, PrefersTheSingleFileAsTransformersDoes) {
  TestCheckpoint(llama, {}, "F32", 1).save_sharded(folder_.path(), 2);
  const TestCheckpoint single(llama, {}, "F32", 2);
  single.save(folder_.path());
  expect_loads(single);
}

TEST_F(LoadWeights, NeverOpensFilesThatTheIndexDoesNotName) {
  const TestCheckpoint checkpoint(llama);
  checkpoint.save_sharded(folder_.path(), 2);
  write_file(folder_ / "stray.safetensors", "garbage");
  write_file(folder_ / "model-00003-of-00002.safetensors", "garbage");
  expect_loads(checkpoint);
}

TEST_F(LoadWeights, RefusesShardsThatAreMissingCutOrDamaged) {
  const TestCheckpoint checkpoint(llama);
  const std::string second = TestCheckpoint::shard_name(1, 3);
  const std::string third = TestCheckpoint::shard_name(2, 3);
  checkpoint.save_sharded(folder_.path(), 3);
  const std::string whole = read_file(folder_ / third);
  write_file(folder_ / third, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(error_in(third), AllOf(HasSubstr("tensor \""), HasSubstr("out of the file")));
  write_file(folder_ / third, whole.substr(0, 100));
  EXPECT_THAT(error_in(third), HasSubstr("truncated"));
  write_file(folder_ / third, whole);
  std::filesystem::remove(folder_ / second);
  EXPECT_THAT(error_in(second),
              AllOf(HasSubstr("no such file"), HasSubstr("index.json"), HasSubstr("\"model.")));
}

TEST_F(LoadWeights, SaysWhyAnIndexOrAShardCannotBeOpened) {
  namespace fs = std::filesystem;
  fs::permissions(folder_.path(), fs::perms::all);
  for (const std::string& name :
       {std::string("model.safetensors.index.json"), TestCheckpoint::shard_name(1, 2)}) {
    TestCheckpoint(llama).save_sharded(folder_.path(), 2);
    fs::permissions(folder_ / name, fs::perms::none);
    EXPECT_THAT(as_nobody([&] { return error_in(name); }), HasSubstr("Permission denied"));
    fs::remove(folder_ / name);
    fs::create_symlink("gone", folder_ / name);
    EXPECT_THAT(error_in(name), HasSubstr("no such file, this is a link to gone"));
    fs::remove(folder_ / name);
    fs::create_symlink(name, folder_ / name);
    EXPECT_THAT(error_in(name), HasSubstr("Too many levels of symbolic links"));
    fs::remove(folder_ / name);
    ASSERT_EQ(::mkfifo((folder_ / name).c_str(), 0600), 0);
    EXPECT_THAT(error_in(name), HasSubstr("not a regular file"));
  }
}

TEST_F(LoadWeights, RefusesAnIndexThatDisagreesWithItsShards) {
  const std::string index_name = "model.safetensors.index.json";
  const std::string first = TestCheckpoint::shard_name(0, 2);
  const std::string second = TestCheckpoint::shard_name(1, 2);
  const TestCheckpoint checkpoint(llama);
  const json index = checkpoint.save_sharded(folder_.path(), 2);
  const std::string name = index["weight_map"].begin().key();
  ASSERT_EQ(index["weight_map"][name], first);

  json without = index;
  without["weight_map"].erase(name);
  write_file(folder_ / index_name, without.dump());
  EXPECT_THAT(error_in(first), AllOf(HasSubstr("\"" + name + "\""), HasSubstr(index_name)));

  json elsewhere = index;
  elsewhere["weight_map"][name] = second;
  write_file(folder_ / index_name, elsewhere.dump());
  EXPECT_THAT(message_of<InputError>([&] { load(); }),
              AllOf(HasSubstr("\"" + name + "\""), HasSubstr(index_name)));

  json more = index;
  more["weight_map"]["model.extra"] = second;
  write_file(folder_ / index_name, more.dump());
  EXPECT_THAT(error_in(second), AllOf(HasSubstr("\"model.extra\""), HasSubstr("missing")));
}

TEST_F(LoadWeights, RefusesATensorThatTwoShardsHold) {
  const TestCheckpoint checkpoint(llama);
  const json index = checkpoint.save_sharded(folder_.path(), 2);
  const std::string second = TestCheckpoint::shard_name(1, 2);
  const std::string name = index["weight_map"].begin().key();
  TestTensors part = {{name, checkpoint.tensors.at(name)}};
  for (const auto& [tensor, shard] : index["weight_map"].items())
    if (shard == second) part[tensor] = checkpoint.tensors.at(tensor);
  write_file(folder_ / second, safetensors_bytes(part));
  EXPECT_THAT(error_in(second), HasSubstr("\"" + name + "\""));
}

TEST_F(LoadWeights, RefusesShardsOutsideTheFolder) {
  const TestCheckpoint checkpoint(llama);
  for (const json& shard : {json("../model.safetensors"), json("/etc/passwd"), json("sub/model.safetensors"),
                            json(".."), json(""), json("..\\model.safetensors"), json("pytorch_model.bin"),
                            json(std::string("x\0.safetensors", 14)), json(7), json(nullptr)}) {
    json index = checkpoint.save_sharded(folder_.path(), 2);
    index["weight_map"]["lm_head.weight"] = shard;
    write_file(folder_ / "model.safetensors.index.json", index.dump());
    EXPECT_THAT(error_in("model.safetensors.index.json"),
                AllOf(HasSubstr("\"lm_head.weight\""), HasSubstr(shard.dump())));
  }
}

TEST_F(LoadWeights, RefusesAnIndexWithoutAMap) {
  TestCheckpoint(llama).save_sharded(folder_.path(), 2);
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map":{}})", R"({"weight_map":[]})", R"({"weight_map":)"}) {
    write_file(folder_ / "model.safetensors.index.json", text);
    EXPECT_THAT(error_in("model.safetensors.index.json"), Not(IsEmpty())) << text;
  }
  for (const std::string map : {"[]", "{}", "9223372036854775808"}) {
    write_file(folder_ / "model.safetensors.index.json", R"({"weight_map":)" + map + "}");
    EXPECT_THAT(
        error_in("model.safetensors.index.json"),
        HasSubstr("weight_map is " + map + "; it must be an object that names a file for each tensor"));
  }
  write_file(folder_ / "model.safetensors.index.json", "{}");
  EXPECT_THAT(error_in("model.safetensors.index.json"), HasSubstr("weight_map is missing; it must be"));
  write_file(folder_ / "model.safetensors.index.json",
             R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})");
  EXPECT_THAT(error_in("model.safetensors.index.json"), AllOf(HasSubstr("\"a\""), HasSubstr("twice")));
}

TEST_F(LoadWeights, SurvivesADamagedIndex) {
  const TestCheckpoint checkpoint(llama, {{"num_hidden_layers", 1}, {"tie_word_embeddings", true}});
  const std::string whole = checkpoint.save_sharded(folder_.path(), 2).dump();
  const ModelConfig config = read_config(folder_.path());
  constexpr std::string_view likely = "0123456789[]{},:\"-./ \0\xff";
  std::mt19937_64 random(3);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = whole;
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
    write_file(folder_ / "model.safetensors.index.json", text);
    const std::string error = message_of<InputError>([&] {
      const Weights weights = load_weights(folder_.path(), config, DType::f32);
      for (const auto& [name, weight] : named(weights))
        if (weight.present()) values_of(weight);
    });
    ++(error.empty() ? accepted : refused);
  }
  EXPECT_GT(accepted, 10);
  EXPECT_GT(refused, 1000);
}

TEST_F(LoadWeights, SaysWhichFormatsAreWanted) {
  const TestCheckpoint checkpoint(llama);
  checkpoint.save(folder_.path());
  std::filesystem::remove(folder_ / "model.safetensors");
  const auto error = [&] { return message_of<InputError>([&] { load(); }); };
  EXPECT_THAT(error(), AllOf(HasSubstr(folder_.path().string()), HasSubstr("model.safetensors"),
                             HasSubstr("index.json")));
  write_file(folder_ / "pytorch_model.bin", "x");
  write_file(folder_ / "model-q4.gguf", "x");
  EXPECT_THAT(error(), AllOf(HasSubstr("model.safetensors"), HasSubstr("\"pytorch_model.bin\""),
                             HasSubstr("\"model-q4.gguf\"")));
}

TEST_F(LoadWeights, ReportsProgressUpToOne) {
  const TestCheckpoint checkpoint(llama);
  checkpoint.save(folder_.path());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<double> reports;
    load(dtype, [&](double fraction) { reports.push_back(fraction); });
    ASSERT_THAT(reports, Not(IsEmpty()));
    EXPECT_TRUE(std::is_sorted(reports.begin(), reports.end()));
    EXPECT_GE(reports.front(), 0.0);
    EXPECT_EQ(reports.back(), 1.0);
    EXPECT_EQ(std::count(reports.begin(), reports.end(), 1.0), 1);
    EXPECT_EQ(reports.size() > 1, dtype == DType::bf16);
  }
}

ModelConfig tiny_config() {
  ModelConfig config = named_config("fairytale");
  config.layers = 2;
  config.tie_word_embeddings = false;
  config.qkv_bias = true;
  return config;
}

TEST(RandomWeights, AreTheSameForTheSameSeedHoweverTheThreadsShareTheWork) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Weights first = random_weights(tiny_config(), dtype, 7);
    const Weights second = random_weights(tiny_config(), dtype, 7);
    const auto left = named(first);
    for (const auto& [name, weight] : named(second)) {
      ASSERT_EQ(weight.present(), left.at(name).present());
      if (weight.present()) {
        EXPECT_EQ(values_of(weight), values_of(left.at(name))) << name;
      }
    }
  }
}

/// Pinned numbers: another generator would change every published number, and this test shows it.
TEST(RandomWeights, HaveTheseBits) {
  const Weights weights = random_weights(named_config("fairytale"), DType::f32, 0);
  const std::vector<float> q = values_of(weights.layers[3].q.weight);
  EXPECT_EQ(q[0], 0x1.38f5bep-8F);
  EXPECT_EQ(q[1], 0x1.58ad98p-10F);
  EXPECT_EQ(q[256 * 256 - 1], 0x1.26ec18p-5F);
}

TEST(RandomWeights, DifferBetweenSeedsTensorsAndPlaces) {
  const Weights weights = random_weights(tiny_config(), DType::f32, 1);
  const Weights other = random_weights(tiny_config(), DType::f32, 2);
  EXPECT_NE(values_of(weights.embedding), values_of(other.embedding));
  EXPECT_NE(values_of(weights.layers[0].k.weight), values_of(weights.layers[0].v.weight));
  EXPECT_NE(values_of(weights.layers[0].q.weight), values_of(weights.layers[1].q.weight));
  EXPECT_NE(values_of(weights.layers[0].gate.weight), values_of(weights.layers[0].up.weight));
  EXPECT_NE(values_of(weights.lm_head), values_of(weights.embedding));
  const std::vector<float> values = values_of(weights.layers[0].q.weight);
  EXPECT_GT(std::set<float>(values.begin(), values.end()).size(), values.size() / 2);
}

TEST(RandomWeights, AreNearlyNormalWithTheRightDeviation) {
  const Weights weights = random_weights(tiny_config(), DType::f32, 1);
  for (const auto& [name, weight] : named(weights)) {
    if (!weight.present() || weight.rows == 1) continue;
    double sum = 0;
    double squares = 0;
    double beyond_two = 0;
    const std::vector<float> values = values_of(weight);
    const double deviation = 1.0 / std::sqrt(static_cast<double>(weight.cols));
    for (const float value : values) {
      sum += value;
      squares += static_cast<double>(value) * value;
      beyond_two += std::abs(value) > 2 * deviation ? 1 : 0;
    }
    const auto count = static_cast<double>(values.size());
    EXPECT_NEAR(sum / count, 0.0, 4 * deviation / std::sqrt(count)) << name;
    EXPECT_NEAR(std::sqrt(squares / count), deviation, 0.02 * deviation) << name;
    EXPECT_NEAR(beyond_two / count, 0.0432, 0.006) << name;  // normal: 0.0455
  }
}

TEST(RandomWeights, FollowTheConfiguration) {
  const Weights weights = random_weights(tiny_config(), DType::bf16, 1);
  const LayerWeights& layer = weights.layers.at(1);
  EXPECT_EQ(layer.q.weight.rows, 256);
  EXPECT_EQ(layer.k.weight.rows, 128);
  EXPECT_EQ(layer.q.bias.cols, 256);
  EXPECT_FALSE(layer.o.bias.present());
  EXPECT_EQ(layer.q_norm.cols, 32);
  EXPECT_EQ(values_of(layer.q_norm), std::vector<float>(32, 1.0F));
  EXPECT_EQ(values_of(weights.final_norm), std::vector<float>(256, 1.0F));
  EXPECT_EQ(weights.lm_head.dtype, DType::bf16);
  const Weights tied = random_weights(named_config("fairytale"), DType::f32);
  EXPECT_EQ(tied.lm_head.data, tied.embedding.data);
}

TEST(RandomWeights, RoundTheSameNumbersToEveryType) {
  const Weights exact = random_weights(tiny_config(), DType::f32, 5);
  for (const DType dtype : {DType::f16, DType::bf16})
    EXPECT_EQ(values_of(random_weights(tiny_config(), dtype, 5).layers[1].down.weight),
              rounded(values_of(exact.layers[1].down.weight), dtype));
}

TEST(RandomWeights, SayHowMuchMemoryIsMissingAndWhatNeedsLess) {
  ModelConfig config = tiny_config();
  config.vocab_size = std::int64_t{1} << 30;
  config.hidden_size = std::int64_t{1} << 24;
  const auto refusal_of = [&](DType dtype) {
    return message_of<RunError>([&] { return random_weights(config, dtype); });
  };
  EXPECT_THAT(refusal_of(DType::f32),
              AllOf(HasSubstr("no memory for the weights: "), HasSubstr(" GiB): "),
                    EndsWith("; give --dtype bf16, which halves that, or a smaller model")));
  for (const DType dtype : {DType::f16, DType::bf16})
    EXPECT_THAT(refusal_of(dtype), EndsWith("Cannot allocate memory; give a smaller model"));
}

/// Saves `checkpoint` with a vocabulary of `size` and zeros as numbers, which take no disk. Returns its
/// bytes.
std::uint64_t save_sparse(TestCheckpoint checkpoint, std::int64_t size, const TemporaryFolder& folder) {
  nlohmann::json header;
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    std::vector<std::int64_t> shape = tensor.shape;
    if (shape[0] == checkpoint.config["vocab_size"]) shape[0] = size;
    const std::uint64_t begin = bytes;
    bytes += static_cast<std::uint64_t>(shape[0] * (shape.size() == 1 ? 1 : shape[1])) * 4;
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, bytes}}};
  }
  checkpoint.config["vocab_size"] = size;
  checkpoint.save(folder.path());
  const std::string start = safetensors_bytes(header.dump(), "");
  write_file(folder / "model.safetensors", start);
  std::filesystem::resize_file(folder / "model.safetensors", start.size() + bytes);
  return start.size() + bytes;
}

/// Ends the process with 1 and the RunError of `load`, for which there are `bytes` more of address space.
template <typename Load>
[[noreturn]] void exit_with_error_of(const Load& load, std::uint64_t bytes) {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) + bytes;
  const rlimit limit{most, most};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(99);
  std::fputs(message_of<RunError>(load).c_str(), stderr);
  std::exit(1);
}

// Two tables of 512 MiB are read in place, and need 512 MiB more when they are rounded.
using LoadWeightsDeathTest = LoadWeights;
TEST_F(LoadWeightsDeathTest, WithoutMemoryForRoundedOnesNameTheTypeThatNeedsNone) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs more address space";
  const std::uint64_t bytes = save_sparse(TestCheckpoint(qwen3), 1 << 22, folder_);
  const std::uint64_t room = bytes + (1 << 28);
  EXPECT_EXIT(exit_with_error_of([&] { load(DType::f32); }, room), testing::ExitedWithCode(1), "^$");
  for (const DType dtype : {DType::f16, DType::bf16})
    EXPECT_EXIT(
        exit_with_error_of([&] { load(dtype); }, room), testing::ExitedWithCode(1),
        "^no memory for the weights: .* GiB.: Cannot allocate memory; give --dtype f32, which takes the "
        "file's numbers as they are$");
}

TEST(RandomWeights, ReportProgressUpToOne) {
  std::vector<double> reports;
  static_cast<void>(
      random_weights(tiny_config(), DType::f32, 0, [&](double fraction) { reports.push_back(fraction); }));
  EXPECT_GT(reports.size(), 10U);
  EXPECT_TRUE(std::is_sorted(reports.begin(), reports.end()));
  EXPECT_EQ(reports.back(), 1.0);
}

}  // namespace
}  // namespace kvcache::test
