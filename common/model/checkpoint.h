/// @file
/// The tensors of a checkpoint folder by name, whether one file holds them or several. Chapter: step 1.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/model/safetensors.h"

namespace kvcache {

/// One tensor, and the file that messages about it name.
struct CheckpointTensor {
  StoredTensor stored;         ///< where its numbers are
  std::filesystem::path file;  ///< model.safetensors or a shard
};

/// The tensors of a folder. They stay valid as long as `files` or a copy of it, which shares the mappings.
struct Checkpoint {
  std::map<std::string, CheckpointTensor> tensors;  ///< by name
  std::filesystem::path contents;      ///< the file that lists the tensors: model.safetensors or the index
  std::vector<SafetensorsFile> files;  ///< keep the mappings alive
};

/// Opens `folder`/model.safetensors or, where there is none, the shards that
/// `folder`/model.safetensors.index.json names (the same order as transformers). Other files of the folder
/// are not opened, and a shard must hold exactly the tensors that the index lists for it.
/// @throws InputError naming file and tensor: none of these files, a shard that is missing, damaged or
/// outside the folder, a tensor on which index and shard disagree.
[[nodiscard]] Checkpoint open_checkpoint(const std::filesystem::path& folder);

}  // namespace kvcache
