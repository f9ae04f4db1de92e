// Feeds: model.safetensors.index.json, in a folder with two shards, one.safetensors and two.safetensors. Each
// holds one tensor, "one" or "two".
//
// Holds: InputError, or a checkpoint of these two tensors.
#include "common/base/error.h"
#include "common/model/checkpoint.h"
#include "tests/fuzz/hold.h"
#include "tests/support/checkpoint_builder.h"

using namespace kvcache;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TemporaryFolder folder;
  static const bool has_shards = [] {
    for (const std::string name : {"one", "two"})
      write_file(folder / (name + ".safetensors"),
                 test::safetensors_bytes(test::TestTensors{{name, {"F32", {2}, {1, 2}, {}}}}));
    return true;
  }();
  hold(has_shards, "the shards are there");
  write_file(folder / "model.safetensors.index.json", FuzzInput(data, size).rest());
  try {
    const Checkpoint checkpoint = open_checkpoint(folder.path());
    for (const auto& [name, tensor] : checkpoint.tensors)
      hold((name == "one" || name == "two") && tensor.stored.bytes == 8, "a tensor is one of the shards'");
  } catch (const InputError&) {
  }
  return 0;
}
