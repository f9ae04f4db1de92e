/// @file
/// A checkpoint with one damaged token: only prompts with this token give NaN logits. A sound checkpoint in
/// float16 does the same at a token whose activations float16 cannot hold.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/checkpoints.h"

namespace kvcache {

/// A copy of the tiny checkpoint llama-gqa.
class DamagedModel {
 public:
  static constexpr std::int32_t kBadToken = 500;

  DamagedModel() { set("model.embed_tokens.weight", kBadToken, std::numeric_limits<float>::quiet_NaN()); }
  const std::filesystem::path& path() const { return copy_.path(); }

  /// Fills one row of a matrix, or its first `count` numbers.
  void set(const std::string& tensor, std::int64_t row, float value, std::int64_t count = 0) {
    std::string bytes = read_file(path() / "model.safetensors");
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    const auto header = nlohmann::json::parse(bytes.substr(sizeof header_bytes, header_bytes));
    const nlohmann::json& entry = header.at(tensor);
    const auto cols = entry.at("shape").at(1).get<std::int64_t>();
    const auto begin = entry.at("data_offsets").at(0).get<std::uint64_t>();
    const std::vector<float> numbers(static_cast<std::size_t>(count > 0 ? count : cols), value);
    const std::size_t row_bytes = static_cast<std::size_t>(cols) * sizeof(float);
    std::memcpy(
        bytes.data() + sizeof header_bytes + header_bytes + begin + static_cast<std::size_t>(row) * row_bytes,
        numbers.data(), numbers.size() * sizeof(float));
    write_file(path() / "model.safetensors", bytes);
  }

 private:
  CheckpointCopy copy_{"llama-gqa"};
};

/// A prompt of `length` good tokens; prompts of different `kind` differ.
inline std::vector<std::int32_t> good_prompt(std::int64_t length, std::int64_t kind = 0) {
  std::vector<std::int32_t> ids;
  for (std::int64_t n = 0; n < length; ++n)
    ids.push_back(static_cast<std::int32_t>((kind * 41 + n * 31) % 400 + 5));
  return ids;
}
/// Such a prompt with the bad token at `place`.
inline std::vector<std::int32_t> bad_prompt(std::int64_t length, std::int64_t place, std::int64_t kind = 0) {
  std::vector<std::int32_t> ids = good_prompt(length, kind);
  ids[static_cast<std::size_t>(place)] = DamagedModel::kBadToken;
  return ids;
}

}  // namespace kvcache
