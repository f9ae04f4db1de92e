/// @file
/// The checkpoints that come with the project, and copies of them that a test may change.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/files.h"

namespace kvcache {

/// The folders under tests/reference, one for each kind of model that behaves differently.
inline std::vector<std::string> tiny_checkpoints() {
  return {"llama-gqa", "llama-mha", "llama3-rope", "qwen2-bias", "qwen3-sharded", "qwen3-tied"};
}

/// The folder of such a checkpoint, or that of the shipped model: "fairytale".
inline std::filesystem::path checkpoint_folder(const std::string& name) {
  const std::filesystem::path root = SOURCE_DIR;
  return name == "fairytale" ? root / "common/fairytale" : root / "tests/reference" / name;
}

/// The answers of Hugging Face transformers for a checkpoint.
inline nlohmann::json answers_of(const std::string& name, const std::string& file = "expected.json") {
  return nlohmann::json::parse(
      read_file(std::filesystem::path(SOURCE_DIR) / "tests/reference" / name / file));
}

/// A tiny checkpoint's folder, for --model. Its context is 512 tokens, its vocabulary 768.
inline const std::string kTinyModel = checkpoint_folder("qwen3-tied").string();

/// A copy of a checkpoint in a folder of its own, without the answers. The folder disappears with this
/// object; a loaded model stays.
class CheckpointCopy {
 public:
  explicit CheckpointCopy(const std::string& name = "qwen3-tied") {
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint_folder(name)))
      if (!entry.path().filename().string().starts_with("expected"))
        std::filesystem::copy(entry.path(), path());
  }
  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path operator/(std::string_view name) const { return folder_ / name; }

  void change_config(const nlohmann::json& changes) const {
    nlohmann::json config = nlohmann::json::parse(read_file(*this / "config.json"));
    config.update(changes);
    write_file(*this / "config.json", config.dump());
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace kvcache
