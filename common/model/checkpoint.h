/// @file
/// The tensors of a checkpoint folder by name, whether one file holds them or several. Chapter: step 1.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/model/safetensors.h"

namespace kvcache {

/// One tensor and the file that messages about it name.
struct CheckpointTensor {
  StoredTensor stored;         ///< where its numbers are
  std::filesystem::path file;  ///< model.safetensors or a shard
};

/// What a folder holds. Tensors stay valid as long as `files`, copies of which share the mappings.
struct Checkpoint {
  std::map<std::string, CheckpointTensor> tensors;  ///< by name
  std::filesystem::path contents;  ///< the file that decides what there is: model.safetensors or the index
  std::vector<SafetensorsFile> files;  ///< keep the mappings alive
};

/// Opens `folder`/model.safetensors or, where there is none, the shards that
/// `folder`/model.safetensors.index.json names (the same order as transformers). The index decides: other
/// files of the folder are not opened, and a shard holds exactly the tensors that the index says it holds.
/// @throws InputError naming file and tensor: no such files, a shard that is missing, damaged or outside the
/// folder, a tensor that index and shard disagree on.
[[nodiscard]] Checkpoint open_checkpoint(const std::filesystem::path& folder);

}  // namespace kvcache
