/// @file
/// Finds the files of a checkpoint and joins their tensors into one table.
#include "common/model/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "common/base/input_file.h"
#include "common/base/json_file.h"

namespace kvcache {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// Up to four weight files in `folder` of other formats or names, for the message that none of them is read.
std::string other_weight_files(const fs::path& folder) {
  const std::set<std::string> endings = {".bin",         ".gguf", ".ggml",    ".pt",  ".pth",
                                         ".safetensors", ".h5",   ".msgpack", ".onnx"};
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (endings.contains(entry->path().extension().string())) names.insert(entry->path().filename().string());
  std::string list;
  for (const std::string& name : names)
    if (std::count(list.begin(), list.end(), ',') < 3) list += (list.empty() ? "" : ", ") + shown(name);
  return list;
}

[[noreturn]] void fail_without_weights(const fs::path& folder) {
  const std::string others = other_weight_files(folder);
  throw InputError(fmt::format(
      "{} holds no model.safetensors and no model.safetensors.index.json; weights are read from these only{}",
      folder.string(), others.empty() ? "" : ", not from " + others));
}

/// The tensor names of each shard, as `weight_map` lists them.
std::map<std::string, std::set<std::string>> read_index(const fs::path& index) {
  const json content = read_json_file(index);
  const auto map = content.is_object() ? content.find("weight_map") : content.end();
  if (!content.is_object() || map == content.end() || !map->is_object() || map->empty())
    throw InputError(
        fmt::format("{}: weight_map is {}; it must be an object that names a file for each tensor",
                    index.string(), map == content.end() ? "missing" : shown(*map)));

  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, shard] : map->items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    // A name, not a path: a downloaded index must not reach outside its folder.
    if (!name.ends_with(".safetensors") ||
        name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      throw InputError(
          fmt::format("{}: tensor {} is in {}; it must be the name of a .safetensors file in the "
                      "same folder",
                      index.string(), shown(tensor), shown(shard)));
    shards[name].insert(tensor);
  }
  return shards;
}

/// Adds the tensors of one shard. They must be those that the index lists for the shard.
void add_shard(Checkpoint& checkpoint, const fs::path& path, const std::set<std::string>& listed) {
  if (!has_entry(path))
    throw InputError(fmt::format("{}: no such file, but {} says that it holds {} tensors, {} for one",
                                 path.string(), checkpoint.contents.filename().string(), listed.size(),
                                 shown(*listed.begin())));
  SafetensorsFile file(path);
  for (const std::string& name : listed)
    if (!file.tensors().contains(name))
      throw InputError(fmt::format("{}: tensor {} is missing, but {} says that it is here", path.string(),
                                   shown(name), checkpoint.contents.filename().string()));
  for (const auto& [name, tensor] : file.tensors()) {
    if (!listed.contains(name))
      throw InputError(fmt::format("{}: tensor {} is here, but {} does not say so", path.string(),
                                   shown(name), checkpoint.contents.filename().string()));
    checkpoint.tensors[name] = {tensor, path};
  }
  checkpoint.files.push_back(std::move(file));
}

}  // namespace

Checkpoint open_checkpoint(const std::filesystem::path& folder) {
  Checkpoint checkpoint;
  checkpoint.contents = folder / "model.safetensors";
  if (has_entry(checkpoint.contents)) {
    SafetensorsFile file(checkpoint.contents);
    for (const auto& [name, tensor] : file.tensors()) checkpoint.tensors[name] = {tensor, file.path()};
    checkpoint.files.push_back(std::move(file));
    return checkpoint;
  }
  checkpoint.contents = folder / "model.safetensors.index.json";
  if (!has_entry(checkpoint.contents)) fail_without_weights(folder);
  for (const auto& [shard, listed] : read_index(checkpoint.contents))
    add_shard(checkpoint, folder / shard, listed);
  return checkpoint;
}

}  // namespace kvcache
